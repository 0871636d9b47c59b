//! Lists of `name=value`, for headers and resource attributes. A pair that cannot be decoded or sent is an
//! error. Errors show no values, because they may be secrets.

use std::collections::BTreeMap;
use std::str::FromStr;

use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::environment::{Environment, InvalidSetting};

/// Headers that the exporter sets itself; another value would break the request.
const RESERVED: [&str; 11] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "expect",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The headers in `variable`. Values stay encoded: the exporter decodes them.
pub(super) fn headers(
    environment: &Environment<'_>,
    variable: &'static str,
) -> Result<Option<BTreeMap<String, String>>, InvalidSetting> {
    let Some(text) = environment.get(variable) else { return Ok(None) };
    let mut headers = BTreeMap::new();
    for (at, (name, value)) in pairs(variable, &text)?.into_iter().enumerate() {
        let wrong = |why: &str| InvalidSetting { variable, why: format!("header {}{why}", at + 1) };
        let name = HeaderName::from_str(&name)
            .map_err(|_| wrong(" cannot be sent: its name is not a valid header name"))?;
        if RESERVED.contains(&name.as_str()) {
            return Err(wrong(&format!(", {name}, is set by the exporter; remove it")));
        }
        let decoded = decode(&value).ok_or_else(|| wrong(NOT_ENCODED))?;
        if HeaderValue::from_str(&decoded).is_err() {
            return Err(wrong(
                " cannot be sent: its value has characters that are invalid in a header",
            ));
        }
        if headers.insert(name.to_string(), value).is_some() {
            return Err(wrong(&format!(", {name}, is given twice")));
        }
    }
    Ok(Some(headers))
}

/// The decoded attributes in `variable`.
pub(super) fn attributes(
    environment: &Environment<'_>,
    variable: &'static str,
) -> Result<Vec<(String, String)>, InvalidSetting> {
    let text = environment.get(variable).unwrap_or_default();
    let attributes = pairs(variable, &text)?.into_iter().enumerate();
    attributes
        .map(|(at, (name, value))| match (decode(&name), decode(&value)) {
            (Some(name), Some(value)) => Ok((name, value)),
            _ => {
                let why = format!("entry {}{NOT_ENCODED}", at + 1);
                Err(InvalidSetting { variable, why })
            }
        })
        .collect()
}

const NOT_ENCODED: &str = " is not percent-encoded UTF-8: write % as %25, and other bytes as % with two hexadecimal digits";

/// Decodes percent-encoded `text`; `None` if a `%` is not followed by two digits, or the bytes are not
/// UTF-8.
fn decode(text: &str) -> Option<String> {
    let is_encoded = text.split('%').skip(1).all(|rest| {
        rest.as_bytes().get(..2).is_some_and(|byte| byte.iter().all(u8::is_ascii_hexdigit))
    });
    if !is_encoded {
        return None;
    }
    percent_decode_str(text).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

/// Reads `name=value,name=value`.
fn pairs(variable: &'static str, text: &str) -> Result<Vec<(String, String)>, InvalidSetting> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .enumerate()
        .map(|(at, entry)| match entry.split_once('=') {
            Some((name, value)) if !name.trim().is_empty() => {
                Ok((name.trim().to_owned(), value.trim().to_owned()))
            }
            _ => {
                Err(InvalidSetting { variable, why: format!("entry {} is not name=value", at + 1) })
            }
        })
        .collect()
}
