//! Conditions of edges: compiled when a definition is read, so that none fails later.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::expression::{Expression, Path, contains, same};
use crate::fields::{Fields, kind};
use crate::problem::{Problem, Problems, quoted};

/// Longest pattern of a `regex` condition, in bytes.
pub const PATTERN_MAX_BYTES: usize = 1_024;

/// Largest program that a pattern may become, in bytes: room for a class of all letters and a
/// counted repetition or two, and at most some thousand states for each byte of the text.
pub const REGEX_MAX_BYTES: usize = 64 << 10;

/// Longest text that a `regex` condition searches, in bytes; it doesn't hold for a longer one.
/// With [`REGEX_MAX_BYTES`] it bounds what a search takes, whatever the pattern: its time is at
/// most their product.
pub const REGEX_TEXT_MAX_BYTES: usize = 64 << 10;

/// When an edge is taken, by what its source ended with.
#[derive(Clone, Debug)]
pub struct Condition {
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Equals(Path, Value),
    NotEquals(Path, Value),
    Contains(Path, Value),
    Regex(Path, Box<Regex>),
    Expression(Expression),
}

#[derive(Clone, Copy)]
enum Kind {
    Equals,
    NotEquals,
    Contains,
    Regex,
    Expression,
}

const KINDS: &[(&str, Kind)] = &[
    ("equals", Kind::Equals),
    ("notEquals", Kind::NotEquals),
    ("contains", Kind::Contains),
    ("regex", Kind::Regex),
    ("expression", Kind::Expression),
];

impl Condition {
    /// Reads an `EdgeCondition` of the protocol's workflow definitions.
    ///
    /// # Errors
    /// All that is wrong with it, with paths that begin at the condition.
    pub fn compile(declared: &Value) -> Result<Self, Vec<Problem>> {
        let mut out = Problems::default();
        let condition = Self::read(declared, "", &mut out);
        condition.ok_or_else(|| out.into_vec())
    }

    /// The same, with the problems added to `out`: at least one where it answers none.
    pub(crate) fn read(declared: &Value, path: &str, out: &mut Problems) -> Option<Self> {
        let fields = Fields::of(declared, path, "the condition", out)?;
        fields.only(&["type", "left", "right", "expression"], out);
        fields.required("type", out)?;
        let test = match fields.word("type", KINDS, out)? {
            Kind::Expression => Test::Expression(expression(&fields, out)?),
            kind => {
                let left = left(&fields, out);
                let right = fields.required("right", out)?;
                match kind {
                    Kind::Equals => Test::Equals(left?, right.clone()),
                    Kind::NotEquals => Test::NotEquals(left?, right.clone()),
                    Kind::Contains => Test::Contains(left?, right.clone()),
                    _ => {
                        let regex = pattern(&fields, right, out);
                        Test::Regex(left?, Box::new(regex?))
                    }
                }
            }
        };
        Some(Self { test })
    }

    /// Whether it is a search by a pattern, the costliest test there is.
    pub(crate) const fn is_regex(&self) -> bool {
        matches!(self.test, Test::Regex(..))
    }

    /// Whether it is an expression.
    pub(crate) const fn is_expression(&self) -> bool {
        matches!(self.test, Test::Expression(_))
    }

    /// Whether it holds in `scope`, an object with `status`, `output`, `outputs`, `variables`
    /// and `inputs`. What a path doesn't find is null, and what can't be compared doesn't hold.
    ///
    /// `equals` and `notEquals` compare numbers by what they are worth. `contains` looks for a
    /// text in a text, an item in a list, a key in an object. `regex` searches a text of at
    /// most [`REGEX_TEXT_MAX_BYTES`].
    #[must_use]
    pub fn holds(&self, scope: &Value) -> bool {
        let found = |path: &Path| path.find(scope).unwrap_or(&Value::Null);
        match &self.test {
            Test::Equals(path, right) => same(found(path), right),
            Test::NotEquals(path, right) => !same(found(path), right),
            Test::Contains(path, right) => contains(found(path), right),
            Test::Regex(path, regex) => found(path)
                .as_str()
                .is_some_and(|text| text.len() <= REGEX_TEXT_MAX_BYTES && regex.is_match(text)),
            Test::Expression(expression) => expression.holds(scope),
        }
    }
}

fn expression(fields: &Fields<'_>, out: &mut Problems) -> Option<Expression> {
    let text = fields.required_text("expression", out)?;
    let parsed = Expression::parse(text);
    parsed.map_err(|what| out.add(fields.under("expression"), what)).ok()
}

fn left(fields: &Fields<'_>, out: &mut Problems) -> Option<Path> {
    let text = fields.required_text("left", out)?;
    Path::whole(text).map_err(|what| out.add(fields.under("left"), what)).ok()
}

fn pattern(fields: &Fields<'_>, right: &Value, out: &mut Problems) -> Option<Regex> {
    let path = fields.under("right");
    let Some(pattern) = right.as_str() else {
        out.add(path, format!("a pattern must be a string, and this is {}", kind(right)));
        return None;
    };
    if pattern.len() > PATTERN_MAX_BYTES {
        let is = pattern.len();
        out.add(
            path,
            format!("the pattern has {is} bytes, and {PATTERN_MAX_BYTES} are allowed; shorten it"),
        );
        return None;
    }
    let mut builder = RegexBuilder::new(pattern);
    let compiled = builder.size_limit(REGEX_MAX_BYTES).dfa_size_limit(REGEX_MAX_BYTES).build();
    let why = match compiled {
        Ok(regex) => return Some(regex),
        Err(regex::Error::CompiledTooBig(_)) => {
            "becomes too large a program; use fewer or smaller repetitions and classes".to_owned()
        }
        Err(error) => {
            // The parser draws the place in several lines; its last one says what is wrong.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            format!("is no regular expression: {}", last.trim_start_matches("error: "))
        }
    };
    out.add(path, format!("the pattern {} {why}", quoted(pattern)));
    None
}
