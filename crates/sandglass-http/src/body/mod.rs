//! Reads bodies of requests: bounded in size and time and, where they are JSON, in depth and
//! values. What is wrong with one is told with its place.

mod error;
mod json;

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;

pub use self::error::Error;
pub use self::json::{DEPTH_MAX, json};
use crate::patience::within;

/// How much a body may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body, in bytes.
    pub max_bytes: usize,
    /// How long each piece of it may take to come; four times that for all of it.
    pub timeout: Duration,
}

/// All of a body. One that says itself that it is too large is refused before any of it is
/// read.
///
/// # Errors
/// It is [too large](Error::TooLarge), [too slow](Error::Slow) or [broken](Error::Broken).
pub async fn bytes(headers: &HeaderMap, body: Body, limits: Limits) -> Result<Bytes, Error> {
    /// A body comes in a few pieces, or its client trickles it to hold a connection.
    const PIECES_MAX: u32 = 4;
    let Limits { max_bytes: max, timeout } = limits;
    refuse_announced(headers, max)?;
    let whole = async {
        let mut stream = body.into_data_stream();
        let mut bytes = Vec::new();
        while let Some(piece) = within(timeout, stream.next()).await.map_err(|_| Error::Slow)? {
            let piece = piece.map_err(|_| Error::Broken)?;
            if bytes.len() + piece.len() > max {
                return Err(Error::TooLarge { announced: None, max });
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from(bytes))
    };
    within(timeout.saturating_mul(PIECES_MAX), whole).await.map_err(|_| Error::Slow)?
}

fn refuse_announced(headers: &HeaderMap, max: usize) -> Result<(), Error> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length > max as u64 => {
            Err(Error::TooLarge { announced: Some(length), max })
        }
        _ => Ok(()),
    }
}

/// Refuses a body that is compressed: taken for what it says it would be nothing.
///
/// # Errors
/// [`Error::Coded`].
pub fn require_plain(headers: &HeaderMap) -> Result<(), Error> {
    let coded = headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| {
        !coding.to_str().is_ok_and(|coding| coding.trim().eq_ignore_ascii_case("identity"))
    });
    if coded { Err(Error::Coded) } else { Ok(()) }
}
