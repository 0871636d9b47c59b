//! Which characters must not be printed as they are.

/// Whether `c` would control a terminal or mislead its reader: a control character, a change of the
/// writing direction, a line separator, or a character without width.
#[must_use]
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_and_invisible_characters_are_unprintable() {
        for c in "\0\n\u{1b}\u{7f}\u{80}\u{9f}\u{61c}\u{200b}\u{200d}\u{200f}\u{2028}\u{2029}\u{202e}\u{2069}\u{feff}".chars()
        {
            assert!(is_unprintable(c), "{c:?}");
        }
        for c in " a~\u{a0}é日😀\u{2027}\u{202f}\u{2065}\u{206a}".chars() {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }
}
