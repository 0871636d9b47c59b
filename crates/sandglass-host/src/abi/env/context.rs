//! What a guest is given and gives back: its context, its result, and why the last
//! function failed.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{WhenTooSmall, fill, memory, slice};
use crate::boundary::instant;
use crate::functions::Functions;
use crate::store::RunStore;

use super::MODULE;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_get_context(caller, ptr: i32, len: i32) -> i32 {
            let context = caller.data().guest.context();
            fill(caller, (ptr, len), &context, WhenTooSmall::SayTheSize)
        }
    }
    instant! { linker, functions, MODULE;
        fn host_set_result(caller, ptr: i32, len: i32) -> () {
            let memory = memory(caller)?;
            let (memory, store) = memory.data_and_store_mut(caller);
            store.guest.result.set(slice(memory, "the result", ptr, len));
            Ok(())
        }
    }
    instant! { linker, functions, MODULE;
        fn host_last_error(caller, ptr: i32, len: i32) -> i32 {
            let error = caller.data().guest.last_error().to_owned();
            fill(caller, (ptr, len), error.as_bytes(), WhenTooSmall::RefuseInSilence)
        }
    }
    Ok(())
}
