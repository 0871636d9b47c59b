//! The key-value scratch of one dispatch: in memory, bounded by the manifest, and dropped with the run.

use std::collections::BTreeMap;

use crate::covered;
use crate::host_memory::{Charge, HostMemory, OutOfHostMemory};

/// Longest key, in bytes: a name.
pub const KEY_MAX_BYTES: u32 = 256;

/// What an entry counts besides its key and value, in bytes, so that empty values are bounded as well.
const OVERHEAD_BYTES: u64 = 64;

/// Why the scratch refuses an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScratchError {
    /// The integration is granted no scratch.
    #[error("no scratch was granted to this integration; `scratch` in its manifest would")]
    Denied,
    /// The scratch exceeds its grant, in bytes.
    #[error("the scratch of {0} bytes is full: delete what is no longer needed")]
    Full(u64),
    /// The memory account of the run cannot cover it.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfHostMemory),
    /// The key has too many bytes: this many.
    #[error("a key has from 1 to {KEY_MAX_BYTES} bytes, and this one has {0}")]
    InvalidKey(usize),
}

/// The scratch of one run.
#[derive(Debug)]
pub struct Scratch {
    granted_bytes: u64,
    used_bytes: u64,
    charge: Charge,
    entries: BTreeMap<String, Vec<u8>>,
}

// The entries are charged.
covered!(Scratch: granted_bytes, used_bytes, charge, entries);

impl Scratch {
    pub(super) fn new(granted_bytes: u64, memory: &HostMemory) -> Self {
        let charge = memory.nothing();
        Self { granted_bytes, used_bytes: 0, charge, entries: BTreeMap::new() }
    }

    fn check(&self, key: &str) -> Result<(), ScratchError> {
        if self.granted_bytes == 0 {
            return Err(ScratchError::Denied);
        }
        if key.is_empty() || key.len() > KEY_MAX_BYTES as usize {
            return Err(ScratchError::InvalidKey(key.len()));
        }
        Ok(())
    }

    /// Returns the value of `key`, if there is one.
    ///
    /// # Errors
    /// The scratch is not granted, or the key is invalid.
    pub fn get(&self, key: &str) -> Result<Option<&[u8]>, ScratchError> {
        self.check(key)?;
        Ok(self.entries.get(key).map(Vec::as_slice))
    }

    /// The keys, in order.
    ///
    /// # Errors
    /// The scratch is not granted.
    pub fn keys(&self) -> Result<Vec<String>, ScratchError> {
        if self.granted_bytes == 0 {
            return Err(ScratchError::Denied);
        }
        Ok(self.entries.keys().cloned().collect())
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// As [`Scratch::get`], or the scratch is full; then nothing has changed.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), ScratchError> {
        self.check(key)?;
        let freed = self.entries.get(key).map_or(0, |held| cost(key, held));
        let used = self.used_bytes - freed + cost(key, value);
        if used > self.granted_bytes {
            return Err(ScratchError::Full(self.granted_bytes));
        }
        self.charge.resize(used)?;
        self.used_bytes = used;
        self.entries.insert(key.to_owned(), value.to_vec());
        Ok(())
    }

    /// Removes `key`. Returns whether it had a value.
    ///
    /// # Errors
    /// As [`Scratch::get`].
    pub fn delete(&mut self, key: &str) -> Result<bool, ScratchError> {
        self.check(key)?;
        let removed = self.entries.remove(key);
        self.used_bytes -= removed.as_ref().map_or(0, |held| cost(key, held));
        self.charge.resize(self.used_bytes)?;
        Ok(removed.is_some())
    }
}

fn cost(key: &str, value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64 + OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_denied_unless_granted() {
        let mut scratch = Scratch::new(0, &HostMemory::new(1 << 20));
        assert_eq!(scratch.check("a"), Err(ScratchError::Denied));
        assert_eq!(scratch.set("a", b""), Err(ScratchError::Denied));
        assert_eq!(scratch.delete("a"), Err(ScratchError::Denied));
    }

    #[test]
    fn deleted_values_free_their_bytes() {
        let mut scratch = Scratch::new(200, &HostMemory::new(1 << 20));
        scratch.set("a", &[1; 100]).expect("165 bytes");
        assert_eq!(scratch.set("b", &[]), Err(ScratchError::Full(200)));
        assert_eq!(scratch.set("a", &[1; 136]), Err(ScratchError::Full(200)));
        assert_eq!(scratch.entries["a"].len(), 100, "nothing has changed");
        scratch.set("a", &[]).expect("less than before");
        scratch.set("b", &[]).expect("now there is room");
        assert_eq!((scratch.delete("a"), scratch.delete("a")), (Ok(true), Ok(false)));
        assert_eq!(scratch.used_bytes, 65);
    }

    #[test]
    fn keys_are_bounded() {
        let mut scratch = Scratch::new(10_000, &HostMemory::new(1 << 20));
        assert_eq!(scratch.set("", b""), Err(ScratchError::InvalidKey(0)));
        let long = "x".repeat(257);
        assert_eq!(scratch.set(&long, b""), Err(ScratchError::InvalidKey(257)));
    }
}
