//! The key-value scratch of a dispatch.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill, memory, slice, text};
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, NAME_BYTES, done, failed};

/// What the removal of a key answers where there was one.
const REMOVED: i32 = 1;
const NOTHING_REMOVED: i32 = 0;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_scratch_get(caller, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = match text(caller, "the key", (key_ptr, key_len), NAME_BYTES)? {
                Ok(key) => key,
                Err(unreadable) => return Ok(failed(caller, unreadable)),
            };
            match caller.data().guest().scratch_value(&key).map(|value| value.map(<[u8]>::to_vec)) {
                Ok(Some(value)) => fill(caller, (ptr, len), &value, WhenTooSmall::SayTheSize),
                Ok(None) => Ok(failed(caller, format!("there is nothing under the key `{key}`"))),
                Err(error) => Ok(failed(caller, error)),
            }
        }
    }
    instant! { linker, functions, MODULE;
        fn host_scratch_set(caller, key_ptr: i32, key_len: i32, ptr: i32, len: i32) reads [(key_ptr, key_len), (ptr, len)] up_to (Reads::Scratch) -> i32 {
            let key = match text(caller, "the key", (key_ptr, key_len), NAME_BYTES)? {
                Ok(key) => key,
                Err(unreadable) => return Ok(failed(caller, unreadable)),
            };
            let memory = memory(caller)?;
            #[allow(clippy::disallowed_methods, reason = "a value has a limit of its own")]
            let (memory, store) = memory.data_and_store_mut(&mut *caller);
            let set = match slice(memory, "the value", ptr, len) {
                Ok(value) => {
                    store.guest_mut().set_scratch(&key, value).map_err(|error| error.to_string())
                }
                Err(unreadable) => Err(unreadable.to_string()),
            };
            Ok(done(caller, set))
        }
    }
    instant! { linker, functions, MODULE;
        fn host_scratch_delete(caller, key_ptr: i32, key_len: i32) reads [(key_ptr, key_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let key = match text(caller, "the key", (key_ptr, key_len), NAME_BYTES)? {
                Ok(key) => key,
                Err(unreadable) => return Ok(failed(caller, unreadable)),
            };
            Ok(match caller.data_mut().guest_mut().delete_scratch(&key) {
                Ok(true) => REMOVED,
                Ok(false) => NOTHING_REMOVED,
                Err(error) => failed(caller, error),
            })
        }
    }
    Ok(())
}
