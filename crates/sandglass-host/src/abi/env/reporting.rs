//! What a guest reports to people: log lines, progress and status.

use wasmtime::{Linker, Result};

use crate::abi::guest_memory::{start_of_text, text};
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::capability::log::{LINE_MAX_BYTES, Level};
use sandglass_supervisor::capability::signal;
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, NAME_BYTES, OK};

/// Longest log line that is read, in bytes: more than is logged, because secrets are removed before
/// the line is cut.
const LOG_BYTES: u32 = 4 * LINE_MAX_BYTES;
/// Longest status that is read; likewise.
const STATUS_BYTES: u32 = 4 * signal::STATUS_MAX_BYTES;

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_log(caller, level_ptr: i32, level_len: i32, ptr: i32, len: i32) reads [(level_ptr, level_len), (ptr, len)] up_to (Reads::bytes(NAME_BYTES + LOG_BYTES)) -> () {
            let level = start_of_text(caller, "the log level", (level_ptr, level_len), NAME_BYTES)?;
            let message = start_of_text(caller, "the log message", (ptr, len), LOG_BYTES)?;
            caller.data().guest().log.write(Level::of(&level), message);
            Ok(())
        }
        fn host_emit_progress(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(signal::SIGNAL_MAX_BYTES)) -> i32 {
            let text = text(caller, "the progress", (ptr, len), signal::SIGNAL_MAX_BYTES)?;
            caller.data_mut().guest_mut().progress(signal::progress(&text)?);
            Ok(OK)
        }
        fn host_set_status(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(STATUS_BYTES)) -> i32 {
            let status = start_of_text(caller, "the status", (ptr, len), STATUS_BYTES)?;
            caller.data_mut().guest_mut().status(status);
            Ok(OK)
        }
    }
    Ok(())
}
