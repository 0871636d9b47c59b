//! The error of a host function.

use std::fmt;

/// Why a host function failed, in the host's words: something was not granted, does not exist, or was
/// invalid. Only that call failed; the handler continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostError {
    message: String,
}

impl HostError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for HostError {}

/// Writes `value` as JSON. `what` names it in the error.
pub(crate) fn to_json(
    what: &str,
    value: &(impl serde::Serialize + ?Sized),
) -> Result<String, HostError> {
    serde_json::to_string(value)
        .map_err(|error| HostError::new(format!("{what} cannot be written as JSON: {error}")))
}
