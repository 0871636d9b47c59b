//! A key-value store for one dispatch, discarded when the dispatch ends. The integration's manifest grants its
//! size (`scratch`); by default none. An entry takes the bytes of its key and its value, and 64 more;
//! a key has 1 to 256 bytes.

use crate::{HostError, backend};

/// The value of `key`; `None` if there is none.
///
/// # Errors
/// Errors if the integration was granted no scratch, or if the key is not allowed.
pub fn get(key: &str) -> Result<Option<Vec<u8>>, HostError> {
    backend::scratch_get(key)
}

/// Sets `key` to `value`, replacing an earlier value.
///
/// # Errors
/// As [`get`]; also if the scratch is full. Nothing has changed then.
pub fn set(key: &str, value: impl AsRef<[u8]>) -> Result<(), HostError> {
    backend::scratch_set(key, value.as_ref())
}

/// Removes `key`; returns whether it had a value.
///
/// # Errors
/// As [`get`].
pub fn delete(key: &str) -> Result<bool, HostError> {
    backend::scratch_delete(key)
}
