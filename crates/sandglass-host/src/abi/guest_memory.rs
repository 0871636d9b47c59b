//! Reads and writes a guest's memory. Every pointer and length comes from the
//! guest: bounds are checked before anything is allocated.

use wasmtime::{Caller, Extern, Memory, Result};

use crate::store::RunStore;

/// What a function that fills a buffer answers where it can't do its work.
pub(crate) const FAILED: i32 = -1;
/// What a function that fills a buffer answers where the buffer is too small.
pub(crate) const TOO_SMALL: i32 = -2;

/// Why guest memory can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error(
        "{what} lies outside the guest's memory (pointer {ptr}, length {len}, memory {memory} bytes)"
    )]
    OutOfBounds { what: &'static str, ptr: u32, len: u32, memory: usize },
    #[error("{what} is no UTF-8 (byte {at})")]
    NotUtf8 { what: &'static str, at: usize },
    #[error("{what} has {len} bytes, and {max} are allowed")]
    TooLong { what: &'static str, len: u32, max: u32 },
}

/// The guest's memory. Modules without one are rejected when they are loaded.
pub(crate) fn memory(caller: &mut Caller<'_, RunStore>) -> Result<Memory> {
    if let Some(memory) = caller.data().memory {
        return Ok(memory);
    }
    match caller.get_export("memory") {
        Some(Extern::Memory(memory)) => {
            caller.data_mut().memory = Some(memory);
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

/// A copy of the UTF-8 text of at most `max` bytes at (`ptr`, `len`). A longer one
/// is refused before it is read: what is done with it can't be interrupted.
pub(crate) fn text(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
    max: u32,
) -> Result<Result<String, Unreadable>> {
    let memory = memory(caller)?;
    let bytes = slice(memory.data(&*caller), what, ptr, len);
    Ok(bytes.and_then(|bytes| {
        if len.cast_unsigned() > max {
            return Err(Unreadable::TooLong { what, len: len.cast_unsigned(), max });
        }
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
    let bytes = slice(memory.data(&*caller), what, ptr, len);
    Ok(bytes.and_then(|bytes| {
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

/// A copy of the bytes at (`ptr`, `len`).
pub(crate) fn bytes(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    (ptr, len): (i32, i32),
) -> Result<Result<Vec<u8>, Unreadable>> {
    let memory = memory(caller)?;
    Ok(slice(memory.data(&*caller), what, ptr, len).map(<[u8]>::to_vec))
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
        caller.data_mut().guest.fail("the answer is larger than any buffer can be");
        return Ok(FAILED);
    };
    if answer.len() > len.cast_unsigned() as usize {
        return Ok(match when_too_small {
            WhenTooSmall::SayTheSize => size,
            WhenTooSmall::Refuse => {
                caller.data_mut().guest.fail(format!(
                    "the buffer of {} bytes is too small for an answer of {size} bytes",
                    len.cast_unsigned()
                ));
                TOO_SMALL
            }
            WhenTooSmall::RefuseInSilence => TOO_SMALL,
        });
    }
    let memory = memory(caller)?;
    match slice(memory.data(&*caller), "the buffer", ptr, len) {
        Ok(_) => {
            memory.write(&mut *caller, ptr.cast_unsigned() as usize, answer)?;
            caller.data_mut().tape.wrote(ptr.cast_unsigned(), answer);
            Ok(size)
        }
        Err(_) if when_too_small == WhenTooSmall::RefuseInSilence => Ok(FAILED),
        Err(unreadable) => {
            caller.data_mut().guest.fail(unreadable);
            Ok(FAILED)
        }
    }
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
