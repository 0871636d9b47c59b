//! Foreign text in errors.

/// The start of `text` as it is shown in an error.
pub(crate) fn escape(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_debug).collect()
}
