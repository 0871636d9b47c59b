//! The secrets that the integration was granted.

use crate::glue::block_on;
use crate::{HostError, backend};

/// The secret `name`. From then on, the host removes it from everything that the handler logs,
/// reports and returns, in plain form and in JSON; it does not recognize other encodings. The
/// call may wait, and counts as a call to the outside.
///
/// # Errors
/// Errors if the integration was granted no such secret, if it was not available in time, or if it is not
/// UTF-8.
pub fn get(name: &str) -> Result<String, HostError> {
    block_on(backend::secret(name))
}

/// As [`get`], for an asynchronous handler, whose other tasks go on.
///
/// # Errors
/// As [`get`].
pub async fn fetch(name: &str) -> Result<String, HostError> {
    backend::secret(name).await
}
