//! Writes JSON so that foreign text in it cannot control a terminal, and nothing of it is lost.

use std::fmt::Write as _;

use sandglass_model::text::is_unprintable;
use serde::Serialize;

/// Formats a value in one line.
///
/// # Errors
/// Errors if it has a map whose keys are not strings.
pub(crate) fn line(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(escape)
}

/// Formats a value in indented lines.
///
/// # Errors
/// As [`line`].
pub(crate) fn pretty(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(escape)
}

/// Escapes unprintable characters in JSON. They occur only in strings, apart from line breaks: JSON
/// itself escapes control characters.
fn escape(json: String) -> String {
    let is_escaped = |c: char| is_unprintable(c) && c != '\n';
    if !json.contains(is_escaped) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn foreign_text_is_escaped_and_nothing_is_lost() {
        let foreign =
            "a\u{1b}\u{7f}\u{85}\u{9b}31m\u{61c}\u{200b}\u{2028}\u{202e}\u{feff}é😀\n\"\\";
        let value = json!({ foreign: [foreign] });
        for text in [line(&value), pretty(&value)] {
            let text = text.expect("text for keys");
            let is_escaped = |c: char| is_unprintable(c) && c != '\n';
            assert!(!text.contains(is_escaped), "{text:?}");
            assert!(text.contains("\\u009b31m") && text.contains("é😀"), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
        }
        assert_eq!(line(&value).expect("text for keys").lines().count(), 1);
    }
}
