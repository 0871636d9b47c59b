//! Reads and writes a core module's memory. Every pointer and length comes from the guest: bounds
//! are checked before anything is allocated.
//!
//! Host functions read a guest's memory through this module alone, so that each read counts against
//! what the function may read in one call. The few exceptions state why they need no such bound.

#![allow(clippy::disallowed_methods, reason = "other modules use this one instead")]

use bytes::Bytes;
use sandglass_supervisor::argument::Unreadable;
use sandglass_supervisor::capability::cache::CacheError;
use sandglass_supervisor::capability::http::HttpError;
use sandglass_supervisor::capability::meter::InvalidMetric;
use sandglass_supervisor::capability::named_streams::StreamError;
use sandglass_supervisor::capability::scratch::ScratchError;
use sandglass_supervisor::capability::spans::NoSuchSpan;
use sandglass_supervisor::host_memory::OutOfHostMemory;
use sandglass_supervisor::race::CallEnded;
use wasmtime::{Caller, Extern, Memory};

use crate::store::RunStore;

/// What a function returns if it failed; `host_last_error` says why.
pub(crate) const FAILED: i32 = -1;
/// What a function that fills a buffer returns if the buffer is too small.
pub(crate) const TOO_SMALL: i32 = -2;

/// Why a host function of a core module did not do its work. In the body of such a function, `?`
/// turns each error into the right one of these.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// An argument cannot be read. The guest gets an error code, and goes on.
    Unreadable(Unreadable),
    /// The function fails. The guest gets an error code, and goes on.
    Reported(String),
    /// The call is not granted. The guest gets an error code, and goes on.
    Denied(String),
    /// The run ends.
    Fatal(wasmtime::Error),
}

impl CallFailure {
    /// Notes why the call failed, for `host_last_error`.
    ///
    /// # Errors
    /// The run ends.
    pub(crate) fn report(self, store: &mut RunStore) -> wasmtime::Result<()> {
        match self {
            Self::Unreadable(unreadable) => store.guest_mut().fail(unreadable),
            Self::Reported(why) => store.guest_mut().fail(why),
            Self::Denied(why) => {
                store.guest_mut().note_refusal(&why);
                store.guest_mut().fail(why);
            }
            Self::Fatal(error) => return Err(error),
        }
        Ok(())
    }
}

impl From<wasmtime::Error> for CallFailure {
    fn from(error: wasmtime::Error) -> Self {
        Self::Fatal(error)
    }
}

impl From<Unreadable> for CallFailure {
    fn from(unreadable: Unreadable) -> Self {
        Self::Unreadable(unreadable)
    }
}

impl From<String> for CallFailure {
    fn from(why: String) -> Self {
        Self::Reported(why)
    }
}

macro_rules! reported {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for CallFailure {
            fn from(error: $error) -> Self {
                Self::Reported(error.to_string())
            }
        }
    )+};
}

reported!(&str, CacheError, CallEnded, HttpError, InvalidMetric, NoSuchSpan, OutOfHostMemory);
reported!(StreamError);

impl From<ScratchError> for CallFailure {
    fn from(error: ScratchError) -> Self {
        match error {
            ScratchError::Denied => Self::Denied(error.to_string()),
            _ => Self::Reported(error.to_string()),
        }
    }
}

/// A result of a host function that a guest takes for a failure.
pub(crate) trait FailureCode {
    const FAILED: Self;
}

impl FailureCode for i32 {
    const FAILED: Self = FAILED;
}

impl FailureCode for i64 {
    const FAILED: Self = FAILED as Self;
}

/// The ABI has no code for it; the guest can ask for the last error.
impl FailureCode for () {
    const FAILED: Self = ();
}

impl<T> FailureCode for Option<T> {
    const FAILED: Self = None;
}

/// The guest's memory. Modules without one are rejected when they are loaded.
pub(crate) fn memory(caller: &mut Caller<'_, RunStore>) -> wasmtime::Result<Memory> {
    if let Some(memory) = caller.data().memory.handle {
        return Ok(memory);
    }
    match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => {
            caller.data_mut().memory.handle = Some(memory);
            Ok(memory)
        }
        _ => wasmtime::bail!("the guest exports no memory"),
    }
}

/// The bytes at (`ptr`, `len`), still in the guest's memory.
pub(crate) fn slice<'a>(
    memory: &'a [u8],
    what: &'static str,
    ptr: i32,
    len: i32,
) -> Result<&'a [u8], Unreadable> {
    let (ptr, len) = (ptr.cast_unsigned(), len.cast_unsigned());
    let from = ptr as usize;
    from.checked_add(len as usize)
        .and_then(|to| memory.get(from..to))
        .ok_or(Unreadable::OutOfBounds { what, ptr, len, memory: memory.len() })
}

/// A copy of the UTF-8 text of at most `max` bytes at (`ptr`, `len`). A longer one is refused before
/// it is read, because nothing can interrupt what is done with it.
pub(crate) fn text(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
    max: u32,
) -> Result<String, CallFailure> {
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    let bytes = slice(memory, what, ptr, len)?;
    store.memory.count_read(what, len.cast_unsigned(), max)?;
    match str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(Unreadable::NotUtf8 { what, at: error.valid_up_to() }.into()),
    }
}

/// As [`text`], but of a longer text the first `max` bytes, without the secrets and what may be a part of
/// one.
pub(crate) fn start_of_text(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
    max: u32,
) -> Result<String, CallFailure> {
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    let bytes = slice(memory, what, ptr, len)?;
    store.memory.count_read(what, len.cast_unsigned().min(max), max)?;
    let start = &bytes[..bytes.len().min(max as usize)];
    let is_whole = start.len() == bytes.len();
    let text = match str::from_utf8(start) {
        Ok(text) => text.to_owned(),
        // Cut in the middle of a character.
        Err(error) if error.error_len().is_none() && !is_whole => {
            String::from_utf8_lossy(&start[..error.valid_up_to()]).into_owned()
        }
        Err(error) => return Err(Unreadable::NotUtf8 { what, at: error.valid_up_to() }.into()),
    };
    Ok(if is_whole { text } else { store.guest().redactor.start_of_text(text) })
}

/// A copy of the bytes at (`ptr`, `len`), if the account of the run has room for it. It is not
/// charged, so it must not outlive the call.
pub(crate) fn copy(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
) -> Result<Vec<u8>, CallFailure> {
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    let bytes = slice(memory, what, ptr, len)?;
    store.memory.count_read(what, len.cast_unsigned(), u32::MAX)?;
    store.guest().memory.check(bytes.len() as u64)?;
    Ok(bytes.to_vec())
}

/// As [`copy`], charged until the last clone of the bytes is dropped.
pub(crate) fn bytes(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    place: (i32, i32),
) -> Result<Bytes, CallFailure> {
    let bytes = copy(caller, what, place)?;
    Ok(caller.data().guest().memory.bytes(bytes)?)
}

/// What a function does if the guest's buffer is too small for its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenTooSmall {
    /// It writes nothing, and returns the size that it needs.
    ReturnSize,
    /// It writes nothing, and returns [`TOO_SMALL`].
    Refuse,
    /// As `Refuse`, but the last error stays, because the guest is asking for that one.
    RefuseSilently,
}

/// Writes `result` to the buffer at (`ptr`, `len`), and returns its length.
pub(crate) fn fill(
    caller: &mut Caller<'_, RunStore>,
    (ptr, len): (i32, i32),
    result: &[u8],
    when_too_small: WhenTooSmall,
) -> Result<i32, CallFailure> {
    let size = i32::try_from(result.len())
        .map_err(|_| CallFailure::from("the answer is larger than any buffer can be"))?;
    if result.len() > len.cast_unsigned() as usize {
        return Ok(match when_too_small {
            WhenTooSmall::ReturnSize => size,
            WhenTooSmall::Refuse => refuse_buffer(caller, len, result.len()),
            WhenTooSmall::RefuseSilently => TOO_SMALL,
        });
    }
    let memory = memory(caller)?;
    match slice(memory.data(&*caller), "the buffer", ptr, len) {
        Ok(_) => {
            memory.write(&mut *caller, ptr.cast_unsigned() as usize, result).map_err(fatal)?;
            caller.data_mut().calls.recording.wrote(ptr.cast_unsigned(), result);
            Ok(size)
        }
        Err(_) if when_too_small == WhenTooSmall::RefuseSilently => Ok(FAILED),
        Err(unreadable) => Err(unreadable.into()),
    }
}

/// Checks that the buffer at (`ptr`, `len`) is in the guest's memory, before something happens whose
/// result goes there.
pub(crate) fn check_buffer(
    caller: &mut Caller<'_, RunStore>,
    (ptr, len): (i32, i32),
) -> Result<(), CallFailure> {
    let memory = memory(caller)?;
    Ok(slice(memory.data(&*caller), "the buffer", ptr, len).map(drop)?)
}

/// An error that ends the run.
pub(crate) fn fatal(error: impl Into<wasmtime::Error>) -> CallFailure {
    CallFailure::Fatal(error.into())
}

/// Refuses to fill a buffer of `len` bytes with `size`.
pub(crate) fn refuse_buffer(caller: &mut Caller<'_, RunStore>, len: i32, size: usize) -> i32 {
    caller.data_mut().guest_mut().fail(format!(
        "the buffer of {} bytes is too small for an answer of {size} bytes",
        len.cast_unsigned()
    ));
    TOO_SMALL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pointer_or_length_reaches_outside_the_memory() {
        let memory = [1, 2, 3, 4];
        assert_eq!(slice(&memory, "x", 1, 2), Ok(&[2, 3][..]));
        assert_eq!(slice(&memory, "x", 4, 0), Ok(&[][..]));
        for (ptr, len) in [(0, 5), (5, 0), (-1, 1), (1, -1), (i32::MIN, i32::MAX), (-1, -1)] {
            assert!(
                matches!(slice(&memory, "x", ptr, len), Err(Unreadable::OutOfBounds { .. })),
                "({ptr}, {len})"
            );
        }
    }
}
