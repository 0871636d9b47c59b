//! What a handler tells while it runs, for whoever watches it. None of it is an action: it
//! changes no state, no timer waits for it, and it proves to nobody that the handler isn't
//! stuck.

use serde::Serialize;

use crate::host_error::to_json;
use crate::{HostError, backend};

/// Tells how far the handler has come: what serializes to JSON of at most 16 KiB.
///
/// # Errors
/// It can't be written as JSON, or is too large.
pub fn emit(progress: impl Serialize) -> Result<(), HostError> {
    backend::progress(&to_json("the progress", &progress)?)
}

/// Tells what the handler is doing, in a line for people; cut after 256 bytes.
pub fn status(line: &str) {
    backend::status(line);
}
