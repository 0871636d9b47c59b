//! The WASM node pack ABI of OpenWOP, version 1, for packs in Rust: a pack is a name and
//! its nodes, and [`export_pack`] makes the exports of it. Pairs of a pointer and a length
//! are packed into one `i64`, the length in its high half.
//!
//! ```text
//! openwop_node_invoke -> invoke::respond -> Request -> Node -> Outcome -> JSON
//!                                                       |
//!                                                     host::*  (the imports)
//! ```

pub mod host;
mod invoke;
pub mod memory;
mod outcome;
mod request;

pub use invoke::respond;
pub use outcome::Outcome;
pub use request::Request;
pub use serde_json::{Map, Value, json};

/// The version of the ABI that this crate has the exports of.
pub const ABI_VERSION: i32 = 1;

/// What answers an invocation. What is wrong with the inputs is the `Err`, in words.
pub type Node = fn(&Request) -> Result<Outcome, String>;

/// A pack: its name as in `pack.json`, and its nodes by their type ids.
#[derive(Debug)]
pub struct Pack {
    /// The pack's name.
    pub name: &'static str,
    /// Each node's type id and what answers its invocations; a node's index is its place.
    pub nodes: &'static [(&'static str, Node)],
}

/// Exports a [`Pack`] as the ABI wants it. A second argument is the ABI version that the
/// module says it has, for a pack that is to be refused.
#[macro_export]
macro_rules! export_pack {
    ($pack:expr) => {
        $crate::export_pack!($pack, $crate::ABI_VERSION);
    };
    ($pack:expr, $abi_version:expr) => {
        static PACK: $crate::Pack = $pack;

        #[allow(unsafe_code, reason = "the names of exports are the ABI's")]
        mod exports {
            #[unsafe(no_mangle)]
            extern "C" fn openwop_abi_version() -> i32 {
                $abi_version
            }

            #[unsafe(no_mangle)]
            extern "C" fn openwop_pack_name() -> u64 {
                $crate::memory::pair_of(super::PACK.name.as_bytes())
            }

            #[unsafe(no_mangle)]
            extern "C" fn openwop_node_count() -> u32 {
                super::PACK.nodes.len() as u32
            }

            #[unsafe(no_mangle)]
            extern "C" fn openwop_node_id_at(index: u32) -> u64 {
                let id = super::PACK.nodes.get(index as usize).map_or("", |(id, _)| id);
                $crate::memory::pair_of(id.as_bytes())
            }

            #[unsafe(no_mangle)]
            extern "C" fn openwop_alloc(size: u32) -> u32 {
                $crate::memory::allocate(size)
            }

            /// # Safety
            /// As of `node_pack::memory::free`.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn openwop_free(pointer: u32, size: u32) {
                // SAFETY: what the caller has to hold is the same.
                unsafe { $crate::memory::free(pointer, size) }
            }

            /// # Safety
            /// `pointer` and `len` are of `len` bytes that the host wrote.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn openwop_node_invoke(index: u32, pointer: u32, len: u32) -> u64 {
                // SAFETY: what the caller has to hold is the same.
                let request = unsafe { $crate::memory::borrow(pointer, len) };
                $crate::memory::give($crate::respond(&super::PACK, index, request))
            }
        }
    };
}
