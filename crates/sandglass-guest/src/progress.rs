//! Progress and status of a running handler, for people and tools that watch it. They are not
//! actions: they change no state, and restart no state timeout. In a session they are activity.

use serde::Serialize;

use crate::host_error::to_json;
use crate::{HostError, backend};

/// Reports progress, which serializes to JSON of at most 16 KiB and 1,024 values. It is a signal to the
/// entity of the handler. The text `kind` of an object is the kind of the signal; otherwise the kind is
/// `progress`. `action`, `asked`, `dispatched`, `ended`, `heartbeat`, `host_call` and `status` are
/// reserved.
///
/// # Errors
/// Errors if it cannot be written as JSON, is too large, or has a reserved kind.
pub fn emit(progress: impl Serialize) -> Result<(), HostError> {
    backend::progress(&to_json("the progress", &progress)?)
}

/// Reports what the handler is doing, in one line for people, which is cut after 256 bytes.
pub fn status(line: &str) {
    backend::status(line);
}
