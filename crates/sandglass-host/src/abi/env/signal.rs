//! Signals to other entities.

use sandglass_model::SignalError;
use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{CallFailure, text};
use crate::boundary::waiting;
use crate::store::RunStore;
use sandglass_supervisor::capability::entity_signal as signal;
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, OK};

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    waiting! { linker, functions, MODULE;
        fn host_signal(
            caller, race, ptr: i32, len: i32
        ) reads [(ptr, len)] up_to (Reads::bytes(signal::REQUEST_MAX_BYTES)) -> i32 {
            let failed = |error| CallFailure::Reported(signal::error_for_guest(&error));
            let place = (ptr, len);
            let request = match text(caller, "the signal", place, signal::REQUEST_MAX_BYTES) {
                Ok(text) => signal::Request::from_json(&text),
                Err(CallFailure::Unreadable(why)) => Err(SignalError::Invalid(why.to_string())),
                Err(failure) => return Err(failure),
            };
            let wait = request
                .and_then(|request| signal::begin(caller.data_mut(), request))
                .map_err(failed)?;
            let Some(sent) = race.run(wait).await else { return Ok(None) };
            sent.map(|()| Some(OK)).map_err(failed)
        }
    }
    Ok(())
}
