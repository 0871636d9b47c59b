//! Lists of `name=value`, as headers and attributes of the resource are given: what can't
//! be decoded or sent is an error, and no value is shown, since it may be a secret.

use std::collections::BTreeMap;
use std::str::FromStr;

use hyper::header::{HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::environment::{Environment, InvalidSetting};

/// Headers that say what is sent and to whom, which the exporter does: another value would
/// break the request.
const NOT_TO_BE_SET: [&str; 11] = [
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

/// The headers that `variable` asks for. As given: the exporter decodes the values.
pub(super) fn headers(
    environment: &Environment<'_>,
    variable: &'static str,
) -> Result<Option<BTreeMap<String, String>>, InvalidSetting> {
    let Some(text) = environment.get(variable) else { return Ok(None) };
    let mut headers = BTreeMap::new();
    for (at, (name, value)) in pairs(variable, &text)?.into_iter().enumerate() {
        let wrong = |why: &str| InvalidSetting { variable, why: format!("header {}{why}", at + 1) };
        let name = HeaderName::from_str(&name)
            .map_err(|_| wrong(" can't be sent: its name is no name of a header"))?;
        if NOT_TO_BE_SET.contains(&name.as_str()) {
            return Err(wrong(&format!(", {name}, is the exporter's to set: leave it out")));
        }
        let decoded = decoded(&value).ok_or_else(|| wrong(NOT_ENCODED))?;
        if HeaderValue::from_str(&decoded).is_err() {
            return Err(wrong(" can't be sent: its value has characters that no header may have"));
        }
        if headers.insert(name.to_string(), value).is_some() {
            return Err(wrong(&format!(", {name}, is given twice")));
        }
    }
    Ok(Some(headers))
}

/// The attributes that `variable` asks for, decoded.
pub(super) fn attributes(
    environment: &Environment<'_>,
    variable: &'static str,
) -> Result<Vec<(String, String)>, InvalidSetting> {
    let text = environment.get(variable).unwrap_or_default();
    let attributes = pairs(variable, &text)?.into_iter().enumerate();
    attributes
        .map(|(at, (name, value))| match (decoded(&name), decoded(&value)) {
            (Some(name), Some(value)) => Ok((name, value)),
            _ => {
                let why = format!("entry {}{NOT_ENCODED}", at + 1);
                Err(InvalidSetting { variable, why })
            }
        })
        .collect()
}

const NOT_ENCODED: &str = " is not percent-encoded UTF-8: write % as %25, and other bytes as % and two hexadecimal digits";

/// What percent-encoded `text` stands for; nothing where a `%` begins no byte, or the bytes
/// are no UTF-8.
fn decoded(text: &str) -> Option<String> {
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
