//! Which characters are no text: what a terminal or a reader's eye obeys.

/// Whether `c` drives what shows it, rather than being shown: a control character, one that
/// turns the direction of writing, a separator of lines, one that has no width.
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
    fn what_drives_is_told_from_what_is_shown() {
        for c in "\0\n\u{1b}\u{7f}\u{80}\u{9f}\u{61c}\u{200b}\u{200d}\u{200f}\u{2028}\u{2029}\u{202e}\u{2069}\u{feff}".chars()
        {
            assert!(is_unprintable(c), "{c:?}");
        }
        for c in " a~\u{a0}é日😀\u{2027}\u{202f}\u{2065}\u{206a}".chars() {
            assert!(!is_unprintable(c), "{c:?}");
        }
    }
}
