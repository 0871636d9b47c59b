//! Reads a body as JSON.

use axum::http::{HeaderMap, header};
use sandglass_source::json::{Bounds, DuplicateKeys, read_within};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use super::{Error, require_plain};

/// Deepest nesting of what a client sends.
pub const DEPTH_MAX: usize = sandglass_source::json::MAX_DEPTH;

/// Reads a body that must be a JSON object; `None` if there is no body.
///
/// # Errors
/// Errors if its media type is not JSON, or it is compressed, nests too deep, has too many values or duplicate
/// keys that are rejected, or is not a JSON object of a `T`.
pub fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: &[u8],
    duplicate_keys: DuplicateKeys,
) -> Result<Option<T>, Error> {
    let Some(text) = text(headers, body)? else { return Ok(None) };
    let bounds = bounds(duplicate_keys);
    if text.trim_start().starts_with('{') {
        return Ok(Some(read_within(text, bounds)?));
    }
    // A list or a number would be reported in the parser's words for a `T`.
    read_within::<IgnoredAny>(text, bounds)?;
    Err(Error::NotAnObject)
}

/// Reads a body that may be any JSON value, of at most `max_values` values; `None` if there is no body.
///
/// # Errors
/// As [`json`], but any value is allowed.
pub fn json_value(
    headers: &HeaderMap,
    body: &[u8],
    max_values: u32,
) -> Result<Option<Value>, Error> {
    let Some(text) = text(headers, body)? else { return Ok(None) };
    Ok(Some(read_within(text, Bounds { max_values, ..bounds(DuplicateKeys::LastWins) })?))
}

const fn bounds(duplicate_keys: DuplicateKeys) -> Bounds {
    Bounds { max_depth: DEPTH_MAX, duplicate_keys, ..Bounds::DEFAULT }
}

/// The text of a body that is declared as JSON; `None` if there is no body.
fn text<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<Option<&'a str>, Error> {
    if body.is_empty() {
        return Ok(None);
    }
    if !is_json(headers) {
        return Err(Error::MediaType);
    }
    require_plain(headers)?;
    let text = str::from_utf8(body).map_err(|error| Error::NotText { at: error.valid_up_to() })?;
    Ok(Some(text))
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence = |text: &str| text.split(';').next().unwrap_or_default().trim().to_lowercase();
    let sent = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    sent.map(essence).as_deref() == Some("application/json")
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use sandglass_source::json::MAX_VALUES;

    use super::*;

    fn headers() -> HeaderMap {
        let kind = "application/json; charset=utf-8".parse().expect("a value");
        [(header::CONTENT_TYPE, kind)].into_iter().collect()
    }

    fn read(body: &str) -> Result<Option<Value>, Error> {
        json(&headers(), body.as_bytes(), DuplicateKeys::Rejected)
    }

    #[test]
    fn a_body_that_nests_deeper_than_allowed_is_refused() {
        let nested = |depth: usize| {
            format!(r#"{{"a": {}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1))
        };
        assert!(read(&nested(DEPTH_MAX)).is_ok());
        assert!(read(&nested(DEPTH_MAX + 1)).is_err());
        assert!(read(&"[".repeat(1 << 20)).is_err());
        let brackets_in_text = format!(r#"{{"a": "\"{}"}}"#, "[".repeat(500));
        assert!(read(&brackets_in_text).is_ok());
    }

    #[test]
    fn a_body_with_more_values_than_allowed_is_refused() {
        let values = |count: usize| format!(r#"{{"a": [{}1]}}"#, "1,".repeat(count - 1));
        let most = MAX_VALUES as usize;
        assert!(read(&values(most / 2)).is_ok());
        let error = read(&values(most)).expect_err("the values around them count, too");
        assert!(error.to_string().contains("more than the 65536 values"), "{error}");
    }

    #[test]
    fn an_error_names_line_and_column() {
        let error = read("{\n  \"a\": 1,\n}").expect_err("a comma too many");
        assert!(error.to_string().contains("line 3 column 1"), "{error}");
        let error = read(r#"{"a":[{"b":1,"b":2}]}"#).expect_err("a duplicate key");
        assert_eq!(error.to_string(), "the body has the key `b` twice, at `/a/0`");
        let error = read(&format!(r#"{{"a": {}"#, "[".repeat(DEPTH_MAX))).expect_err("too deep");
        assert!(error.to_string().contains("deeper than 64 at `/a/0/0"), "{error}");
    }

    #[test]
    fn no_body_is_none_and_a_blank_body_is_an_error() {
        assert_eq!(read("").expect("no body"), None);
        assert_eq!(read(" \n").expect_err("it has no value").status(), StatusCode::BAD_REQUEST);
    }

    #[test]
    fn a_body_of_any_value_has_the_bounds_of_an_object() {
        let read = |body: &str| json_value(&headers(), body.as_bytes(), 100);
        for (body, value) in [
            ("null", Value::Null),
            (" 7\n", 7.into()),
            ("\"a\"", "a".into()),
            ("[{}]", serde_json::json!([{}])),
        ] {
            assert_eq!(read(body).expect("JSON"), Some(value), "{body}");
        }
        assert_eq!(read("").expect("no body"), None);
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&deep(DEPTH_MAX)).is_ok());
        let many = format!("[{}1]", "1,".repeat(100));
        for bad in [" ", "nul", "7 7", &deep(DEPTH_MAX + 1), &many] {
            let error = read(bad).expect_err("not within the bounds");
            assert_eq!((error.status(), error.is_shape()), (StatusCode::BAD_REQUEST, false));
        }
        let plain = json_value(&HeaderMap::new(), b"1", 100).expect_err("it has no media type");
        assert_eq!(plain.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }

    #[test]
    fn invalid_json_and_json_of_another_shape_are_different_errors() {
        for shape in ["[1]", "7", "\"a\"", "null"] {
            assert!(read(shape).expect_err("no object").is_shape(), "{shape}");
        }
        for syntax in ["[1", "{", "nul", "{\"a\":}"] {
            assert!(!read(syntax).expect_err("no JSON").is_shape(), "{syntax}");
        }
        let plain = json::<Value>(&HeaderMap::new(), b"{}", DuplicateKeys::LastWins)
            .expect_err("it has no media type");
        assert_eq!(plain.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    }
}
