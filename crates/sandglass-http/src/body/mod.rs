//! Reads request bodies, bounded in size and time, and if they are JSON, in depth and values. Errors
//! name the offset of what is wrong.

mod error;
mod json;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;

pub use self::error::Error;
pub use self::json::{DEPTH_MAX, json, json_value};
use crate::timer::within;
pub use sandglass_source::json::DuplicateKeys;

/// Bounds of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body, in bytes.
    pub max_bytes: usize,
    /// How long each piece of it may take to arrive; the whole body may take four times that.
    pub timeout: Duration,
}

/// A body above this size, in bytes, is large: few are read at the same time.
pub const LARGE_BYTES: usize = 256 << 10;

/// Reads a whole body. One whose announced size is too large is refused unread. Before more than
/// [`LARGE_BYTES`] are held, it takes a `slot`, which is dropped when the body was read.
///
/// # Errors
/// Errors if it is [too large](Error::TooLarge), [too slow](Error::Slow) or [broken](Error::Broken), or
/// there is no slot.
pub async fn bytes<S, E: From<Error>>(
    headers: &HeaderMap,
    body: Body,
    limits: Limits,
    slot: impl FnOnce() -> Result<S, E>,
) -> Result<Bytes, E> {
    /// A body arrives in a few pieces, unless its client trickles it to hold a connection.
    const PIECES_MAX: u32 = 4;
    let Limits { max_bytes: max, timeout } = limits;
    let announced = refuse_announced(headers, max)?;
    let whole = async {
        let mut stream = body.into_data_stream();
        let mut bytes = Vec::new();
        let (mut take_slot, mut _slot) = (Some(slot), None);
        while let Some(piece) = within(timeout, stream.next()).await.map_err(|_| Error::Slow)? {
            let piece = piece.map_err(|_| Error::Broken)?;
            if bytes.len() + piece.len() > max {
                return Err(Error::TooLarge { announced: None, max }.into());
            }
            if bytes.len() + piece.len() > LARGE_BYTES
                && let Some(take) = take_slot.take()
            {
                _slot = Some(take()?);
                bytes.reserve_exact(announced.saturating_sub(bytes.len()));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from(bytes))
    };
    within(timeout.saturating_mul(PIECES_MAX), whole).await.map_err(|_| Error::Slow)?
}

/// The announced length of a body; 0 if it announces none.
fn refuse_announced(headers: &HeaderMap, max: usize) -> Result<usize, Error> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length > max as u64 => {
            Err(Error::TooLarge { announced: Some(length), max })
        }
        length => Ok(length.and_then(|length| usize::try_from(length).ok()).unwrap_or_default()),
    }
}

/// Refuses a compressed body, which would be misread as its media type.
///
/// # Errors
/// [`Error::Coded`].
pub fn require_plain(headers: &HeaderMap) -> Result<(), Error> {
    let coded = headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| {
        !coding.to_str().is_ok_and(|coding| coding.trim().eq_ignore_ascii_case("identity"))
    });
    if coded { Err(Error::Coded) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_large_body_takes_a_slot_and_a_small_one_does_not() {
        let limits = Limits { max_bytes: 2 * LARGE_BYTES, timeout: Duration::from_secs(60) };
        let no_slot = || Err::<(), _>(Error::Coded);
        for (length, is_large) in [(0, false), (LARGE_BYTES, false), (LARGE_BYTES + 1, true)] {
            let pieces = vec![7; length].chunks(1000).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let pieces = futures_util::stream::iter(pieces.into_iter().map(Ok::<_, Error>));
            let body = Body::from_stream(pieces);
            let read = bytes(&HeaderMap::new(), body, limits, no_slot).await;
            match read {
                Ok(read) => assert!(!is_large && read.len() == length, "{length}"),
                Err(error) => assert!(is_large && matches!(error, Error::Coded), "{length}"),
            }
        }
    }
}
