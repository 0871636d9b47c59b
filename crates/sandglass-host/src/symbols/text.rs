//! Texts of a module's author, cut to a bounded length.

use super::budget::{Budget, Exceeded};

/// A text in a symbol table.
pub(super) type Text = std::sync::Arc<str>;

/// Longest name or path that is kept, in bytes. Mangled names of generic functions reach some
/// kilobytes.
const TEXT_MAX_BYTES: usize = 16 << 10;

/// What a text occupies beside its bytes: its counters, and the pointer to it.
const TEXT_OVERHEAD_BYTES: usize = 48;

/// Copies `text` into the table, cut to [`TEXT_MAX_BYTES`].
pub(super) fn keep(text: &str, budget: &mut Budget) -> Result<Text, Exceeded> {
    budget.scan(text.len())?;
    let cut = shortened(text);
    budget.keep(cut.len() + TEXT_OVERHEAD_BYTES)?;
    Ok(cut.into())
}

/// As much of `text` as is kept.
pub(crate) fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX_BYTES)]
}
