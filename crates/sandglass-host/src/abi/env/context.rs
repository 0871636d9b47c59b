//! What a guest is given and gives back: its context and the fields
//! of its entity, its result, and why the last
//! function failed.

use std::sync::Arc;

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill, memory, slice, text};
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, NAME_BYTES, failed};

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_get_context(caller, ptr: i32, len: i32) -> i32 {
            let context = Arc::clone(caller.data().guest().context().json());
            fill(caller, (ptr, len), &context, WhenTooSmall::SayTheSize)
        }
    }
    instant! { linker, functions, MODULE;
        fn host_read_field(caller, name_ptr: i32, name_len: i32, ptr: i32, len: i32) reads [(name_ptr, name_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let name = match text(caller, "the field's name", (name_ptr, name_len), NAME_BYTES)? {
                Ok(name) => name,
                Err(unreadable) => return Ok(failed(caller, unreadable)),
            };
            match caller.data_mut().guest_mut().field_bytes(&name) {
                Some(value) => fill(caller, (ptr, len), &value, WhenTooSmall::SayTheSize),
                None => Ok(failed(caller, format!("the entity has no field `{name}`"))),
            }
        }
    }
    instant! { linker, functions, MODULE;
        fn host_set_result(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::Response) -> () {
            let memory = memory(caller)?;
            #[allow(clippy::disallowed_methods, reason = "a result has a limit of its own")]
            let (memory, store) = memory.data_and_store_mut(caller);
            Ok(store.guest_mut().result.set(slice(memory, "the result", ptr, len))?)
        }
    }
    instant! { linker, functions, MODULE;
        fn host_last_error(caller, ptr: i32, len: i32) -> i32 {
            let error = caller.data().guest().last_error().to_owned();
            fill(caller, (ptr, len), error.as_bytes(), WhenTooSmall::RefuseInSilence)
        }
    }
    Ok(())
}
