//! Asks of another entity.

use sandglass_model::AskError;
use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{CallFailure, WhenTooSmall, fill, text};
use crate::boundary::waiting;
use crate::store::RunStore;
use sandglass_supervisor::capability::ask;
use sandglass_supervisor::functions::{Functions, Reads};

use super::MODULE;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_ask(
            caller, race, ptr: i32, len: i32, out_ptr: i32, out_len: i32
        ) reads [(ptr, len)] up_to (Reads::bytes(ask::REQUEST_MAX_BYTES)) -> i32 {
            let failed = |error| CallFailure::Reported(ask::error_for_guest(&error));
            let request = match text(caller, "the ask", (ptr, len), ask::REQUEST_MAX_BYTES) {
                Ok(text) => ask::Request::from_json(&text),
                Err(CallFailure::Unreadable(why)) => Err(AskError::Invalid(why.to_string())),
                Err(failure) => return Err(failure),
            };
            let wait = request
                .and_then(|request| ask::begin(caller.data_mut(), request))
                .map_err(failed)?;
            let Some(answer) = race.run(wait).await else { return Ok(None) };
            let answer = ask::to_json(&answer.map_err(failed)?);
            fill(caller, (out_ptr, out_len), &answer, WhenTooSmall::Refuse).map(Some)
        }
    }
    Ok(())
}
