//! A text of a file, with its place.

use std::fmt;
use std::ops::{Deref, Range};

/// A name and its place in a file. Names are equal if their texts are.
#[derive(Clone)]
pub struct Name {
    text: String,
    span: Range<usize>,
}

impl Name {
    /// Creates a name at `span`, in bytes of the source.
    #[must_use]
    pub fn new(text: impl Into<String>, span: Range<usize>) -> Self {
        Self { text: text.into(), span }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Its place, in bytes of the source.
    #[must_use]
    pub fn span(&self) -> &Range<usize> {
        &self.span
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Name {}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}
