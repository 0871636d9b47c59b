//! What a guest gets and gives back: its context, the fields of its entity, its result, and why the
//! last function failed.

use std::sync::Arc;

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fatal, fill, memory, slice, text};
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, NAME_BYTES};

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_get_context(caller, ptr: i32, len: i32) -> i32 {
            let context = Arc::clone(caller.data().guest().context.json());
            fill(caller, (ptr, len), &context, WhenTooSmall::ReturnSize)
        }
        fn host_read_field(caller, name_ptr: i32, name_len: i32, ptr: i32, len: i32) reads [(name_ptr, name_len)] up_to (Reads::bytes(NAME_BYTES)) -> i32 {
            let name = text(caller, "the field's name", (name_ptr, name_len), NAME_BYTES)?;
            let value = caller.data_mut().guest_mut().field_bytes(&name);
            let value = value.ok_or_else(|| format!("the entity has no field `{name}`"))?;
            fill(caller, (ptr, len), &value, WhenTooSmall::ReturnSize)
        }
        fn host_set_result(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::Response) -> () {
            let memory = memory(caller)?;
            #[allow(clippy::disallowed_methods, reason = "a result has a limit of its own")]
            let (memory, store) = memory.data_and_store_mut(caller);
            // The function returns nothing, so a guest could not notice that its result is lost.
            store.guest_mut().result.set(slice(memory, "the result", ptr, len)).map_err(fatal)
        }
        fn host_last_error(caller, ptr: i32, len: i32) -> i32 {
            let guest = caller.data_mut().guest_mut();
            guest.forget_refusals();
            let error = guest.last_error().to_owned();
            fill(caller, (ptr, len), error.as_bytes(), WhenTooSmall::RefuseSilently)
        }
    }
    Ok(())
}
