//! Conditions of edges: compiled when a definition is read, so that none fails later.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::expression::{Expression, Path, contains, same};
use crate::fields::{Fields, kind};
use crate::problem::{Problem, Problems, quoted};

/// Longest pattern of a `regex` condition, in bytes.
pub const PATTERN_MAX_BYTES: usize = 1_024;

/// Largest program that a pattern may become, in bytes: room for some classes of all letters
/// (Unicode has many) and a counted repetition or two.
pub const REGEX_MAX_BYTES: usize = 256 << 10;

/// Longest text that a `regex` condition searches, in bytes; it doesn't hold for a longer one.
/// A search takes at most as long as the text times the program, and with both of this size
/// and the worst pattern that is some tenths of a second.
pub const REGEX_TEXT_MAX_BYTES: usize = 16 << 10;

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
        condition.filter(|_| out.is_empty()).ok_or_else(|| out.into_vec())
    }

    /// The same, with the problems added to `out`: at least one where it answers none.
    /// Where there are some, what it answers isn't to be used.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn condition(kind: &str, left: &str, right: Value) -> Condition {
        let declared = json!({"type": kind, "left": left, "right": right});
        Condition::compile(&declared).expect("a condition")
    }

    #[test]
    fn conditions_hold_by_what_the_scope_has() {
        let scope = json!({
            "status": "completed",
            "output": {"approved": true, "n": 2.0, "tags": ["a", {"b": 1}], "text": "grün 42"},
            "variables": {"limit": null},
        });
        for (kind, left, right, holds) in [
            ("equals", "status", json!("completed"), true),
            ("equals", "output.approved", json!(true), true),
            ("equals", "output.n", json!(2), true),
            ("equals", "output.missing", json!(null), true),
            ("equals", "outputs.a.b.c", json!(null), true),
            ("equals", "variables.limit", json!(0), false),
            ("equals", "output.tags[1]", json!({"b": 1}), true),
            ("notEquals", "status", json!("failed"), true),
            ("notEquals", "output.n", json!(2), false),
            ("contains", "output.tags", json!("a"), true),
            ("contains", "output.tags", json!("b"), false),
            ("contains", "output.text", json!("ün"), true),
            ("contains", "output", json!("tags"), true),
            ("contains", "output.n", json!(2), false),
            ("contains", "output.missing", json!(""), false),
            ("regex", "output.text", json!(r"^\w+ \d{2}$"), true),
            ("regex", "output.text", json!("^4"), false),
            ("regex", "output.n", json!("2"), false),
            ("regex", "output.missing", json!(""), false),
        ] {
            let condition = condition(kind, left, right.clone());
            assert_eq!(condition.holds(&scope), holds, "{kind} {left} {right}");
        }
        let expression =
            json!({"type": "expression", "expression": "output.n > 1 and status != ''"});
        assert!(Condition::compile(&expression).expect("a condition").holds(&scope));
    }

    #[test]
    fn nothing_fails_in_any_scope() {
        for scope in [json!(null), json!([]), json!("x"), json!({"output": [[]], "status": {}})] {
            assert!(!condition("equals", "output.a", json!(1)).holds(&scope));
            assert!(condition("notEquals", "output.a", json!(1)).holds(&scope));
            assert!(!condition("contains", "status.x", json!(1)).holds(&scope));
            assert!(!condition("regex", "status", json!(".")).holds(&scope));
        }
    }

    #[test]
    fn what_is_no_condition_is_told() {
        for (declared, path, what) in [
            (json!([]), "", "must be an object"),
            (json!({"left": "status"}), "", "no `type`"),
            (json!({"type": "equal"}), "/type", "did you mean `equals`?"),
            (json!({"type": "equals", "right": 1}), "", "no `left`"),
            (json!({"type": "equals", "left": "status"}), "", "no `right`"),
            (
                json!({"type": "equals", "left": "state", "right": 1}),
                "/left",
                "begins with `state`",
            ),
            (json!({"type": "equals", "left": 1, "right": 1}), "/left", "must be a string"),
            (json!({"type": "regex", "left": "status", "right": 1}), "/right", "a pattern must be"),
            (
                json!({"type": "regex", "left": "status", "right": "a{1000}{1000}"}),
                "/right",
                "too large a program",
            ),
            (json!({"type": "regex", "left": "status", "right": "(?=a)"}), "/right", "look-around"),
            (
                json!({"type": "regex", "left": "status", "right": "x".repeat(1_025)}),
                "/right",
                "1025 bytes, and 1024 are allowed",
            ),
            (json!({"type": "expression"}), "", "no `expression`"),
            (json!({"type": "expression", "expression": "1 +"}), "/expression", "no meaning"),
            (json!({"type": "equals", "left": "status", "right": 1, "x": 1}), "/x", "unknown key"),
        ] {
            match Condition::compile(&declared) {
                Err(problems) => {
                    let found =
                        problems.iter().find(|one| one.path == path && one.what.contains(what));
                    assert!(found.is_some(), "{declared}: {problems:?}");
                }
                Ok(condition) => panic!("{declared}: {condition:?}"),
            }
        }
    }

    /// Most of these take a backtracking engine longer than the universe has been there, and
    /// the last ones need a state for each of the many ways that the text may be read.
    #[test]
    fn hostile_patterns_end() {
        let same = "a".repeat(REGEX_TEXT_MAX_BYTES);
        let mut seed = 1_u32;
        let mut either = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if seed >> 31 == 0 { 'a' } else { 'b' }
        };
        let mixed: String = (0..REGEX_TEXT_MAX_BYTES).map(|_| either()).collect();
        for (pattern, text) in [
            ("(a*)*[^a]", &same),
            ("(a|aa)+[^a]$", &same),
            ("^(a|a?)+[^a]$", &same),
            ("(a{0,20}){0,20}[^a]", &same),
            ("(.*)(.*)(.*)(.*)(.*)[^ab]$", &mixed),
            (r"(\w|\p{Lu})+[^\w]$", &mixed),
            ("a[ab]{500}[^ab]", &mixed),
            ("(a|b)*a(a|b){300}[^ab]", &mixed),
        ] {
            let condition = condition("regex", "output", json!(pattern));
            assert!(!condition.holds(&json!({"output": text})), "{pattern}");
        }
        let everything = condition("regex", "output", json!("a"));
        assert!(everything.holds(&json!({"output": same})));
        let longer = json!({"output": "a".repeat(REGEX_TEXT_MAX_BYTES + 1)});
        assert!(!everything.holds(&longer), "it is too long to be searched");
    }
}
