//! Problems with what people or clients wrote: where, what is wrong, and what to do.

use std::cell::RefCell;
use std::fmt;

use sandglass_source::{DIAGNOSTICS_MAX, did_you_mean, printable, shortened};

/// Most problems that are reported for one file or one request: more than an author fixes at once.
pub const PROBLEMS_MAX: usize = DIAGNOSTICS_MAX;

/// Longest [`Problem::what`], in characters: names in it have bounds of their own.
const WHAT_MAX_CHARS: usize = 2_000;

/// Most characters of a foreign text that a problem quotes.
const QUOTED_MAX_CHARS: usize = 80;

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where, as a JSON pointer (RFC 6901) such as `/nodes/2/inputs/delayMs`; empty for the whole
    /// text. If a value is missing, it points to the object that lacks it.
    pub path: String,
    /// The place in the text, if it was read from a text that has such a place.
    pub place: Option<Place>,
    /// What is wrong and what to do: no control characters, no full stop, at most 2,000
    /// characters.
    pub what: String,
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The column, from 1, in characters.
    pub column: usize,
}

impl Problem {
    /// A problem without a place in a text.
    #[must_use]
    pub fn new(path: impl Into<String>, what: impl AsRef<str>) -> Self {
        let what = shortened(&printable(what.as_ref()), WHAT_MAX_CHARS).into_owned();
        Self { path: path.into(), place: None, what }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = self.place {
            write!(f, "{place}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", printable(&self.path))?;
        }
        f.write_str(&self.what)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// Collects problems: at most [`PROBLEMS_MAX`].
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: RefCell<Vec<Problem>>,
}

impl Problems {
    pub(crate) fn add(&self, path: impl Into<String>, what: impl AsRef<str>) {
        if self.len() < PROBLEMS_MAX {
            self.found.borrow_mut().push(Problem::new(path, what));
        }
    }

    /// A hint that names the nearest of `known`; empty once no more problems are kept, because it
    /// takes time.
    pub(crate) fn hint<'a>(
        &self,
        wanted: &str,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) -> String {
        if self.len() < PROBLEMS_MAX { did_you_mean(wanted, known).text() } else { String::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.found.borrow().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes the problems that were added after the first `at`.
    pub(crate) fn split_off(&self, at: usize) -> Vec<Problem> {
        self.found.borrow_mut().split_off(at)
    }

    pub(crate) fn append(&self, problems: Vec<Problem>) {
        let mut found = self.found.borrow_mut();
        found.extend(problems);
        found.truncate(PROBLEMS_MAX);
    }

    /// `value` if there are no problems.
    pub(crate) fn check<T>(self, value: Option<T>) -> Result<T, Vec<Problem>> {
        value.filter(|_| self.is_empty()).ok_or_else(|| self.found.into_inner())
    }
}

/// A foreign text, shortened and quoted for a message.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("`{}`", shortened(text, QUOTED_MAX_CHARS))
}

/// The pointer to `key` of the object that `path` points to.
pub(crate) fn under(path: &str, key: &str) -> String {
    let mut path = path.to_owned();
    push_key(&mut path, key);
    path
}

/// The pointer to the item `index` of the list that `path` points to.
pub(crate) fn at(path: &str, index: usize) -> String {
    format!("{path}/{index}")
}

/// Adds `key` to a pointer.
pub(crate) fn push_key(path: &mut String, key: &str) {
    path.push('/');
    for c in key.chars() {
        match c {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            c => path.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_reads_as_place_pointer_and_what() {
        let mut problem = Problem::new(under("/nodes/2", "a/b~c"), "it is\nwrong");
        assert_eq!(problem.to_string(), "/nodes/2/a~1b~0c: it is\\nwrong");
        problem.place = Some(Place { line: 3, column: 7 });
        assert_eq!(problem.to_string(), "3:7: /nodes/2/a~1b~0c: it is\\nwrong");
        assert_eq!(Problem::new("", "too large").to_string(), "too large");
    }

    #[test]
    fn the_number_and_the_length_of_problems_are_limited() {
        let problems = Problems::default();
        for _ in 0..PROBLEMS_MAX + 10 {
            problems.add("", "x".repeat(10_000));
        }
        let found = problems.check(Some(())).expect_err("problems");
        assert_eq!(found.len(), PROBLEMS_MAX);
        assert!(found[0].what.chars().count() <= WHAT_MAX_CHARS + 1);
    }
}
