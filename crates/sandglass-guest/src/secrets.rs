//! The secrets that the integration was granted.

use crate::{HostError, backend};

/// The secret called `name`. From then on it is taken out of whatever the run logs, tells
/// and answers, as it is and as JSON writes it; an encoding that the handler makes of it
/// is not found. It may take a while, and counts as a call to the outside.
///
/// # Errors
/// There is none of that name for this integration, it did not come in time, or it is no
/// UTF-8.
pub fn get(name: &str) -> Result<String, HostError> {
    backend::secret(name)
}
