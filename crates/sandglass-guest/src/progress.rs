//! Progress and status of a running handler, for people and tools that watch it. They are not
//! actions: they change no state, and no timer depends on them.

use serde::Serialize;

use crate::host_error::to_json;
use crate::{HostError, backend};

/// Reports progress, which serializes to JSON of at most 16 KiB.
///
/// # Errors
/// Errors if it cannot be written as JSON, or is too large.
pub fn emit(progress: impl Serialize) -> Result<(), HostError> {
    backend::progress(&to_json("the progress", &progress)?)
}

/// Reports what the handler is doing, in one line for people, which is cut after 256 bytes.
pub fn status(line: &str) {
    backend::status(line);
}
