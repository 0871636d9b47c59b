//! Text of foreign origin, made safe for terminals and logs.

use std::borrow::Cow;

pub use sandglass_model::text::is_unprintable;

/// Returns `text` with [unprintable characters](is_unprintable) as escapes.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return text.into();
    }
    let shown = |c: char| if is_unprintable(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(shown).collect::<String>().into()
}

/// Returns at most `max` characters of `text`, with an ellipsis if there are more.
#[must_use]
pub fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("plain é"), "plain é");
        assert_eq!(printable("\u{1b}[31m\n\u{9b}\u{202e}"), "\\u{1b}[31m\\n\\u{9b}\\u{202e}");
        assert_eq!(printable("\u{2028}\u{200b}\u{feff}"), "\\u{2028}\\u{200b}\\u{feff}");
    }

    #[test]
    fn long_text_is_shortened_between_characters() {
        assert_eq!(shortened("éé", 2), "éé");
        assert_eq!(shortened("ééé", 2), "éé…");
    }
}
