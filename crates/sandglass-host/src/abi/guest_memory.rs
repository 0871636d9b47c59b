//! Reads and writes a guest's memory. Every pointer and length comes from the
//! guest: bounds are checked before anything is allocated.
//!
//! Host functions read a guest's memory by this module alone, so that each read counts against
//! what the function may read in one call; the few exceptions say why they need no such bound.

#![allow(clippy::disallowed_methods, reason = "this is what the others are to use")]

use bytes::Bytes;
use wasmtime::{Caller, Extern, Memory, Result};

use crate::store::RunStore;
use sandglass_supervisor::argument::Unreadable;

/// What a function that fills a buffer answers where it can't do its work.
pub(crate) const FAILED: i32 = -1;
/// What a function that fills a buffer answers where the buffer is too small.
pub(crate) const TOO_SMALL: i32 = -2;

/// The guest's memory. Modules without one are rejected when they are loaded.
pub(crate) fn memory(caller: &mut Caller<'_, RunStore>) -> Result<Memory> {
    if let Some(memory) = caller.data().memory() {
        return Ok(memory);
    }
    match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => {
            caller.data_mut().set_memory(memory);
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

/// Takes `len` bytes of what the present call may read, of `what` that may have `max`.
fn read(store: &mut RunStore, what: &'static str, len: u32, max: u32) -> Result<(), Unreadable> {
    let left = store.readable_bytes();
    if len > max || u64::from(len) > left {
        let max = max.min(u32::try_from(left).unwrap_or(u32::MAX));
        return Err(Unreadable::TooLong { what, len, max });
    }
    store.set_readable_bytes(left - u64::from(len));
    Ok(())
}

/// A copy of the UTF-8 text of at most `max` bytes at (`ptr`, `len`). A longer one
/// is refused before it is read: what is done with it can't be interrupted.
pub(crate) fn text(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
    max: u32,
) -> Result<Result<String, Unreadable>> {
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    let bytes = slice(memory, what, ptr, len);
    Ok(bytes.and_then(|bytes| {
        read(store, what, len.cast_unsigned(), max)?;
        str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|error| Unreadable::NotUtf8 { what, at: error.valid_up_to() })
    }))
}

/// As [`text`], but of a longer text the first `max` bytes, up to a character's end.
pub(crate) fn start_of_text(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
    max: u32,
) -> Result<Result<String, Unreadable>> {
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    let bytes = slice(memory, what, ptr, len);
    Ok(bytes.and_then(|bytes| {
        read(store, what, len.cast_unsigned().min(max), max)?;
        let start = &bytes[..bytes.len().min(max as usize)];
        match str::from_utf8(start) {
            Ok(text) => Ok(text.to_owned()),
            // Cut in the middle of a character.
            Err(error) if error.error_len().is_none() && start.len() < bytes.len() => {
                Ok(String::from_utf8_lossy(&start[..error.valid_up_to()]).into_owned())
            }
            Err(error) => Err(Unreadable::NotUtf8 { what, at: error.valid_up_to() }),
        }
    }))
}

/// A copy of the bytes at (`ptr`, `len`), which fits into what the host may hold for the run; it
/// is not charged, so it must not outlive the call.
pub(crate) fn copy(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
) -> Result<Result<Vec<u8>, Unreadable>> {
    let memory = memory(caller)?;
    let (memory, store) = memory.data_and_store_mut(caller);
    Ok(slice(memory, what, ptr, len).and_then(|bytes| {
        read(store, what, len.cast_unsigned(), u32::MAX)?;
        store.guest().memory.check(bytes.len() as u64)?;
        Ok(bytes.to_vec())
    }))
}

/// The same, charged until the last clone of the bytes is dropped.
pub(crate) fn bytes(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    place: (i32, i32),
) -> Result<Result<Bytes, Unreadable>> {
    let copied = copy(caller, what, place)?;
    Ok(copied.and_then(|bytes| Ok(caller.data().guest().memory.bytes(bytes)?)))
}

/// What a function does with a buffer that is too small for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenTooSmall {
    /// It writes nothing and answers the size that it needs.
    SayTheSize,
    /// It writes nothing and answers [`TOO_SMALL`].
    Refuse,
    /// The same, and leaves the last error as it is: it is what was asked for.
    RefuseInSilence,
}

/// Writes `answer` to the buffer at (`ptr`, `len`) and answers its length.
pub(crate) fn fill(
    caller: &mut Caller<'_, RunStore>,
    (ptr, len): (i32, i32),
    answer: &[u8],
    when_too_small: WhenTooSmall,
) -> Result<i32> {
    let Ok(size) = i32::try_from(answer.len()) else {
        caller.data_mut().guest_mut().fail("the answer is larger than any buffer can be");
        return Ok(FAILED);
    };
    if answer.len() > len.cast_unsigned() as usize {
        return Ok(match when_too_small {
            WhenTooSmall::SayTheSize => size,
            WhenTooSmall::Refuse => too_small(caller, len, answer.len()),
            WhenTooSmall::RefuseInSilence => TOO_SMALL,
        });
    }
    let memory = memory(caller)?;
    match slice(memory.data(&*caller), "the buffer", ptr, len) {
        Ok(_) => {
            memory.write(&mut *caller, ptr.cast_unsigned() as usize, answer)?;
            caller.data_mut().tape_mut().wrote(ptr.cast_unsigned(), answer);
            Ok(size)
        }
        Err(_) if when_too_small == WhenTooSmall::RefuseInSilence => Ok(FAILED),
        Err(unreadable) => {
            caller.data_mut().guest_mut().fail(unreadable);
            Ok(FAILED)
        }
    }
}

/// Refuses to fill a buffer of `len` bytes with `size`.
pub(crate) fn too_small(caller: &mut Caller<'_, RunStore>, len: i32, size: usize) -> i32 {
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
