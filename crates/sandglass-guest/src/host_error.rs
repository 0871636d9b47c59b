//! That the host did not do what it was asked to.

use std::fmt;

/// Why a function of the host failed, in the host's words: what was asked for isn't
/// granted, isn't there, or can't be taken as it is. It concerns that one call, and the
/// handler goes on.
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

/// `value` as JSON, or that it can't be.
pub(crate) fn to_json(
    what: &str,
    value: &(impl serde::Serialize + ?Sized),
) -> Result<String, HostError> {
    serde_json::to_string(value)
        .map_err(|error| HostError::new(format!("{what} can't be written as JSON: {error}")))
}
