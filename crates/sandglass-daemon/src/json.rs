//! Reads JSON of clients: bounded in size, depth, values and time, and what is wrong with
//! it is told with its place.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt as _;
use sandglass_model::json;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::error::Category;

use crate::error::{Code, Error};
use crate::patience::within;

/// Deepest nesting of what a client sends. It is kept in records that nest it further,
/// and what reads those stops at 128.
pub(crate) const DEPTH_MAX: usize = 64;

/// The value of a body, or the default where there is none.
pub(crate) fn read<T: DeserializeOwned + Default>(
    headers: &HeaderMap,
    body: &[u8],
) -> Result<T, Error> {
    if body.is_empty() {
        return Ok(T::default());
    }
    if !is_json(headers) {
        let message = "send the body as `Content-Type: application/json`";
        return Err(Error::new(Code::UnsupportedMediaType, message));
    }
    require_plain(headers)?;
    if let Some(at) = too_deep(body) {
        let message = format!("the body nests deeper than {DEPTH_MAX} at byte {at}");
        return Err(Error::new(Code::BadJson, message));
    }
    let begins = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if begins.is_some_and(|byte| b"[\"-0123456789tfn".contains(byte)) {
        serde_json::from_slice::<IgnoredAny>(body).map_err(|error| unreadable(&error))?;
        return Err(Error::new(Code::BadBody, "the body must be a JSON object"));
    }
    let text = str::from_utf8(body).map_err(|error| {
        let at = error.valid_up_to();
        Error::new(Code::BadJson, format!("the body is no UTF-8 at byte {at}"))
    })?;
    json::read(text).map_err(|error| match error {
        json::Error::Invalid(error) => unreadable(&error),
        other => Error::new(Code::BadJson, format!("the body can't be read: {other}")),
    })
}

/// Refuses a body that is compressed: taken for what it says it would be nothing.
pub(crate) fn require_plain(headers: &HeaderMap) -> Result<(), Error> {
    let coded = headers.get_all(header::CONTENT_ENCODING).iter().any(|coding| {
        !coding.to_str().is_ok_and(|coding| coding.trim().eq_ignore_ascii_case("identity"))
    });
    if coded {
        let message = "send the body as it is, without a `Content-Encoding`";
        return Err(Error::new(Code::UnsupportedMediaType, message));
    }
    Ok(())
}

fn unreadable(error: &serde_json::Error) -> Error {
    let code = match error.classify() {
        Category::Data => Code::BadBody,
        Category::Syntax | Category::Eof | Category::Io => Code::BadJson,
    };
    Error::new(code, format!("the body can't be read: {error}"))
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = |text: &str| text.split(';').next().unwrap_or_default().trim().to_lowercase();
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    sent.map(essence).as_deref() == Some("application/json")
}

/// The place of the first bracket that opens more than [`DEPTH_MAX`] of them.
fn too_deep(body: &[u8]) -> Option<usize> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for (at, byte) in body.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                if depth > DEPTH_MAX {
                    return Some(at);
                }
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// All of a body that has at most `max` bytes; `patience` is for each piece of it, and
/// `PIECES_MAX` times that for all.
pub(crate) async fn bytes(body: Body, max: usize, patience: Duration) -> Result<Bytes, Error> {
    /// A body comes in a few pieces, or its client trickles it to hold a connection.
    const PIECES_MAX: u32 = 4;
    let slow = |_| Error::new(Code::SlowRequest, "the body took too long to come");
    let whole = async {
        let mut stream = body.into_data_stream();
        let mut bytes = Vec::new();
        while let Some(piece) = within(patience, stream.next()).await.map_err(slow)? {
            let piece = piece.map_err(|_| {
                Error::new(Code::BadJson, "the body broke off, or its chunks are none")
            })?;
            if bytes.len() + piece.len() > max {
                let message = format!("the body is larger than {max} bytes");
                return Err(Error::new(Code::TooLarge, message));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Bytes::from(bytes))
    };
    within(patience.saturating_mul(PIECES_MAX), whole).await.map_err(slow)?
}

/// Refuses a body that says itself that it is too large, before any of it is read.
pub(crate) fn announced(headers: &HeaderMap, max: usize) -> Result<(), Error> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.and_then(|text| text.parse::<u64>().ok()) {
        Some(length) if length > max as u64 => {
            let message = format!("the body has {length} bytes, and {max} are allowed");
            Err(Error::new(Code::TooLarge, message))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn json(body: &str) -> Result<Value, Error> {
        let headers =
            [(header::CONTENT_TYPE, "application/json; charset=utf-8".parse().expect("a value"))];
        read(&headers.into_iter().collect(), body.as_bytes())
    }

    #[test]
    fn what_nests_as_deep_as_allowed_is_read_and_no_deeper() {
        let nested = |depth: usize| {
            format!(r#"{{"a": {}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1))
        };
        assert!(json(&nested(DEPTH_MAX)).is_ok());
        assert!(json(&nested(DEPTH_MAX + 1)).is_err());
        assert!(json(&"[".repeat(1 << 20)).is_err());
        let brackets_in_text = format!(r#"{{"a": "\"{}"}}"#, "[".repeat(500));
        assert!(json(&brackets_in_text).is_ok());
    }

    #[test]
    fn so_many_values_are_read_and_no_more() {
        let values = |count: usize| format!(r#"{{"a": [{}1]}}"#, "1,".repeat(count - 1));
        let most = json::MAX_VALUES as usize;
        assert!(json(&values(most / 2)).is_ok());
        let error = json(&values(most)).expect_err("it is more with what is around them");
        assert!(format!("{error:?}").contains("more than the 65536 values"), "{error:?}");
    }

    #[test]
    fn an_error_tells_its_place() {
        let error = json("{\n  \"a\": 1,\n}").expect_err("a comma too many");
        assert!(format!("{error:?}").contains("line 3 column 1"), "{error:?}");
    }
}
