//! Named streams: bytes that a guest passes from one host function to another without copying them
//! into its memory. They live as long as their run, unless the embedder keeps them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::Guest;
use crate::host_memory::{Charge, OutOfHostMemory};
use crate::sync::lock;

/// Most streams of one run; each is a file or a body.
const STREAMS_MAX: usize = 64;

/// Longest name of a stream, in bytes.
const NAME_MAX_BYTES: usize = 256;

/// The streams of one dispatch. An embedder that keeps a clone can give the handler bytes before it
/// runs, and take what it leaves afterwards.
#[derive(Clone, Default)]
pub struct Streams(Arc<Mutex<BTreeMap<String, Stream>>>);

struct Stream {
    bytes: Bytes,
    /// The charge of the run whose guest has written it; `None` if the embedder has.
    charge: Option<Charge>,
}

/// Why a stream cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// There is no stream of this name.
    #[error("there is no stream called `{0}` in this run")]
    Unknown(String),
    /// The name has too many bytes: this many.
    #[error("a name has from 1 to {NAME_MAX_BYTES} bytes, and this one has {0}")]
    InvalidName(usize),
    /// There are too many streams.
    #[error("a run has at most {STREAMS_MAX} streams")]
    TooMany,
    /// The memory account of the run cannot cover it.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfHostMemory),
    /// All streams together exceed this limit, in bytes.
    #[error("the streams of this run would hold more than {0} bytes together")]
    Full(u64),
}

impl Streams {
    /// Creates an empty set of streams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the stream called `name`.
    pub fn put(&self, name: impl Into<String>, bytes: impl Into<Bytes>) {
        lock(&self.0).insert(name.into(), Stream { bytes: bytes.into(), charge: None });
    }

    /// Removes the stream called `name`, and returns its bytes.
    #[must_use]
    pub fn take(&self, name: &str) -> Option<Bytes> {
        lock(&self.0).remove(name).map(|stream| stream.bytes)
    }

    /// The names of the streams.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        lock(&self.0).keys().cloned().collect()
    }

    /// How many bytes the stream `name` may have, if all streams together may have `most`.
    fn room(&self, name: &str, most: u64) -> Result<u64, StreamError> {
        check_name(name)?;
        let held = lock(&self.0);
        if held.len() >= STREAMS_MAX && !held.contains_key(name) {
            return Err(StreamError::TooMany);
        }
        let others = held.iter().filter(|(other, _)| *other != name);
        let used: usize = others.map(|(_, stream)| stream.bytes.len()).sum();
        Ok(most.saturating_sub(used as u64))
    }
}

fn check_name(name: &str) -> Result<(), StreamError> {
    match name.len() {
        1..=NAME_MAX_BYTES => Ok(()),
        len => Err(StreamError::InvalidName(len)),
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: BTreeMap<_, _> =
            lock(&self.0).iter().map(|(name, stream)| (name.clone(), stream.bytes.len())).collect();
        f.debug_tuple("Streams").field(&sizes).finish()
    }
}

impl Guest {
    /// The bytes of the stream called `name`.
    ///
    /// # Errors
    /// There is none of that name, or the name is invalid.
    pub fn stream(&self, name: &str) -> Result<Bytes, StreamError> {
        check_name(name)?;
        let held = self
            .streams
            .as_ref()
            .and_then(|streams| lock(&streams.0).get(name).map(|stream| stream.bytes.clone()));
        held.ok_or_else(|| StreamError::Unknown(name.to_owned()))
    }

    /// How many bytes the stream called `name` may have.
    ///
    /// # Errors
    /// There are too many streams, or the name is invalid.
    pub fn stream_room(&self, name: &str) -> Result<u64, StreamError> {
        self.streams.clone().unwrap_or_default().room(name, self.grants.stream_bytes)
    }

    /// Sets the stream called `name`.
    ///
    /// # Errors
    /// As [`Guest::stream_room`], or it is too large.
    pub fn put_stream(&mut self, name: &str, bytes: Bytes) -> Result<(), StreamError> {
        if bytes.len() as u64 > self.stream_room(name)? {
            return Err(StreamError::Full(self.grants.stream_bytes));
        }
        let mut held = lock(&self.streams.get_or_insert_default().0);
        let size = bytes.len() as u64;
        match held.get_mut(name) {
            // If the account cannot cover the new bytes, the old ones stay.
            Some(Stream { bytes: before, charge: Some(charge) }) if charge.is_of(&self.memory) => {
                charge.resize(size)?;
                *before = bytes;
            }
            _ => {
                let charge = Some(self.memory.charge(size)?);
                held.insert(name.to_owned(), Stream { bytes, charge });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_name_is_another_error_than_an_unknown_one() {
        let guest = Guest::idle();
        assert_eq!(guest.stream(""), Err(StreamError::InvalidName(0)));
        assert_eq!(guest.stream(&"x".repeat(257)), Err(StreamError::InvalidName(257)));
        assert_eq!(guest.stream("x"), Err(StreamError::Unknown("x".to_owned())));
    }

    #[test]
    fn streams_are_bounded_in_number_and_size() {
        let streams = Streams::new();
        assert_eq!(streams.room("", 100), Err(StreamError::InvalidName(0)));
        streams.put("a", vec![1; 60]);
        assert_eq!(streams.room("a", 100), Ok(100), "it would be replaced");
        assert_eq!(streams.room("b", 100), Ok(40));
        for nth in 1..STREAMS_MAX {
            streams.put(nth.to_string(), Vec::new());
        }
        assert_eq!(streams.room("b", 100), Err(StreamError::TooMany));
        assert_eq!(streams.names().len(), STREAMS_MAX);
        assert_eq!(streams.take("a").map(|bytes| bytes.len()), Some(60));
        assert_eq!((streams.take("a"), streams.room("b", 100)), (None, Ok(100)));
    }
}
