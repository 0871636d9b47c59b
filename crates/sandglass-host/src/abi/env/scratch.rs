//! The key-value scratch of a dispatch.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill, memory, slice, text};
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, NAME_BYTES, OK};

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_scratch_get(caller, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = text(caller, "the key", (key_ptr, key_len), NAME_BYTES)?;
            let value = caller.data().guest().scratch.get(&key)?.map(<[u8]>::to_vec);
            let value = value.ok_or_else(|| format!("there is nothing under the key `{key}`"))?;
            fill(caller, (ptr, len), &value, WhenTooSmall::ReturnSize)
        }
        fn host_scratch_set(caller, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len), (ptr, len)] up_to (Reads::Scratch) -> i32 {
            let key = text(caller, "the key", (key_ptr, key_len), NAME_BYTES)?;
            let memory = memory(caller)?;
            #[allow(clippy::disallowed_methods, reason = "a value has a limit of its own")]
            let (memory, store) = memory.data_and_store_mut(caller);
            store.guest_mut().scratch.set(&key, slice(memory, "the value", ptr, len)?)?;
            Ok(OK)
        }
        fn host_scratch_delete(caller, key_ptr: i32, key_len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = text(caller, "the key", (key_ptr, key_len), NAME_BYTES)?;
            // 1 if there was a value, 0 if there was none.
            Ok(caller.data_mut().guest_mut().scratch.delete(&key)?.into())
        }
    }
    Ok(())
}
