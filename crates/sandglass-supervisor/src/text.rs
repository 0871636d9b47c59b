//! Text that a guest chose, made fit for people.

use sandglass_model::text::is_unprintable;

use crate::capability::log::prefix;

/// Longest name that is shown, in characters: enough for a generic function's.
pub const NAME_MAX_CHARS: usize = 256;

/// Returns the first characters of `name`, without those that would drive a terminal.
#[must_use]
pub fn printable(name: &str) -> String {
    let end = name.char_indices().nth(NAME_MAX_CHARS).map_or(name.len(), |(end, _)| end);
    prefix(name, end).chars().map(|c| if is_unprintable(c) { '\u{fffd}' } else { c }).collect()
}
