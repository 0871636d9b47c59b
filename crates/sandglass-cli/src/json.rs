//! JSON as every command writes it: what is foreign in it drives no terminal, though
//! nothing of it is lost.

use std::fmt::Write as _;

use sandglass_model::text::is_unprintable;
use serde::Serialize;

/// A value in one line.
///
/// # Errors
/// It has a map whose keys are no text.
pub(crate) fn line(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(escaped)
}

/// A value in lines that people read.
///
/// # Errors
/// As [`line`].
pub(crate) fn pretty(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string_pretty(value).map(escaped)
}

/// JSON with all that is unprintable in its strings as escapes; such characters are nowhere
/// else but for the ends of lines, since what is below a space is escaped already.
fn escaped(json: String) -> String {
    let drives = |c: char| is_unprintable(c) && c != '\n';
    if !json.contains(drives) {
        return json;
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for c in json.chars() {
        if drives(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // A text takes whatever is written to it.
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
    fn nothing_drives_a_terminal_and_nothing_is_lost() {
        let foreign =
            "a\u{1b}\u{7f}\u{85}\u{9b}31m\u{61c}\u{200b}\u{2028}\u{202e}\u{feff}é😀\n\"\\";
        let value = json!({ foreign: [foreign] });
        for text in [line(&value), pretty(&value)] {
            let text = text.expect("text for keys");
            let drives = |c: char| is_unprintable(c) && c != '\n';
            assert!(!text.contains(drives), "{text:?}");
            assert!(text.contains("\\u009b31m") && text.contains("é😀"), "{text}");
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), value);
        }
        assert_eq!(line(&value).expect("text for keys").lines().count(), 1);
    }
}
