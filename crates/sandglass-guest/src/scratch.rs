//! A key-value store of the dispatch's own, gone when it ends. How large it may grow is
//! granted by the integration's manifest (`scratch`); nothing, by default. An entry takes
//! its key, its value and 64 bytes; a key has from 1 to 256 bytes.

use crate::{HostError, backend};

/// The value under `key`, if there is one.
///
/// # Errors
/// The integration was granted no scratch, or the key is not allowed.
pub fn get(key: &str) -> Result<Option<Vec<u8>>, HostError> {
    backend::scratch_get(key)
}

/// Puts `value` under `key`, in the place of what was there.
///
/// # Errors
/// As [`get`], or there is no room; then nothing has changed.
pub fn set(key: &str, value: impl AsRef<[u8]>) -> Result<(), HostError> {
    backend::scratch_set(key, value.as_ref())
}

/// Removes what is under `key`; says whether there was something.
///
/// # Errors
/// As [`get`].
pub fn delete(key: &str) -> Result<bool, HostError> {
    backend::scratch_delete(key)
}
