//! Conditions of edges. They are compiled when a definition is read, so that they cannot fail later.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::expression::{Comparison, Expression, Path};
use crate::fields::{Fields, kind};
use crate::problem::{Problem, Problems, quoted};

/// Longest pattern of a `regex` condition, in bytes.
pub const PATTERN_MAX_BYTES: usize = 1_024;

/// Largest program that a pattern may compile to, in bytes. This suffices for some classes of all
/// letters (Unicode has many) and one or two counted repetitions.
pub const REGEX_MAX_BYTES: usize = 256 << 10;

/// Longest text that a `regex` condition searches, in bytes; it does not hold for longer texts. The time
/// of a search is at most proportional to the product of text and program: at these limits, some tenths
/// of a second for the worst pattern.
pub const REGEX_TEXT_MAX_BYTES: usize = 16 << 10;

/// When an edge is taken, depending on the end of its source.
#[derive(Clone, Debug)]
pub struct Condition {
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Compare(Path, Comparison, Value),
    Regex(Path, Box<Regex>),
    Expression(Expression),
}

#[derive(Clone, Copy)]
enum Kind {
    Compare(Comparison),
    Regex,
    Expression,
}

const KINDS: &[(&str, Kind)] = &[
    ("equals", Kind::Compare(Comparison::Equal)),
    ("notEquals", Kind::Compare(Comparison::NotEqual)),
    ("contains", Kind::Compare(Comparison::Contains)),
    ("regex", Kind::Regex),
    ("expression", Kind::Expression),
];

impl Condition {
    /// Reads an `EdgeCondition` of the protocol's workflow definitions.
    ///
    /// # Errors
    /// The condition is invalid: all problems, with paths relative to the condition.
    pub fn compile(declared: &Value) -> Result<Self, Vec<Problem>> {
        let out = Problems::default();
        let condition = Self::read(declared, "", &out);
        out.check(condition)
    }

    /// Reads a condition, and adds problems to `out`: at least one if the result is `None`. If there
    /// are any, the result must not be used.
    pub(crate) fn read(declared: &Value, path: &str, out: &Problems) -> Option<Self> {
        let fields = Fields::of(declared, path, "the condition", out)?;
        fields.only(&["type", "left", "right", "expression"]);
        let test = match fields.required_word("type", KINDS)? {
            Kind::Expression => Test::Expression(Expression::read(&fields, "expression")?),
            kind => {
                let left = left(&fields);
                let right = fields.required("right")?;
                match kind {
                    Kind::Compare(comparison) => Test::Compare(left?, comparison, right.clone()),
                    _ => {
                        let regex = pattern(&fields, right);
                        Test::Regex(left?, Box::new(regex?))
                    }
                }
            }
        };
        Some(Self { test })
    }

    /// Whether it searches with a pattern, which is the most expensive test.
    pub(crate) const fn is_regex(&self) -> bool {
        matches!(self.test, Test::Regex(..))
    }

    pub(crate) const fn is_expression(&self) -> bool {
        matches!(self.test, Test::Expression(_))
    }

    /// Whether it holds in `scope`, an object with `status`, `output`, `outputs`, `variables` and
    /// `inputs`. A path that finds nothing is null. Values that cannot be compared do not satisfy a
    /// condition. It takes time in proportion to the size of the scope, and searches texts of at most
    /// [`REGEX_TEXT_MAX_BYTES`].
    #[must_use]
    pub fn holds(&self, scope: &Value) -> bool {
        match &self.test {
            Test::Compare(path, comparison, right) => comparison.holds(path.value(scope), right),
            Test::Regex(path, regex) => path
                .value(scope)
                .as_str()
                .is_some_and(|text| text.len() <= REGEX_TEXT_MAX_BYTES && regex.is_match(text)),
            Test::Expression(expression) => expression.holds(scope),
        }
    }
}

fn left(fields: &Fields<'_>) -> Option<Path> {
    let text = fields.required_text("left")?;
    Path::whole(text).map_err(|what| fields.report("left", what)).ok()
}

fn pattern(fields: &Fields<'_>, right: &Value) -> Option<Regex> {
    let regex = match right.as_str() {
        None => Err(format!("a pattern must be a string, and this is {}", kind(right))),
        Some(pattern) if pattern.len() > PATTERN_MAX_BYTES => Err(format!(
            "the pattern has {} bytes, and {PATTERN_MAX_BYTES} are allowed; shorten it",
            pattern.len()
        )),
        Some(pattern) => {
            compile_regex(pattern).map_err(|why| format!("the pattern {} {why}", quoted(pattern)))
        }
    };
    regex.map_err(|what| fields.report("right", what)).ok()
}

fn compile_regex(pattern: &str) -> Result<Regex, String> {
    let mut builder = RegexBuilder::new(pattern);
    let compiled = builder.size_limit(REGEX_MAX_BYTES).dfa_size_limit(REGEX_MAX_BYTES).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            "becomes too large a program; use fewer or smaller repetitions and classes".to_owned()
        }
        error => {
            // The parser draws the place in several lines; the last one describes the error.
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            format!("is no regular expression: {}", last.trim_start_matches("error: "))
        }
    })
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
    fn conditions_hold_depending_on_the_scope() {
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
    fn conditions_do_not_fail_in_any_scope() {
        for scope in [json!(null), json!([]), json!("x"), json!({"output": [[]], "status": {}})] {
            assert!(!condition("equals", "output.a", json!(1)).holds(&scope));
            assert!(condition("notEquals", "output.a", json!(1)).holds(&scope));
            assert!(!condition("contains", "status.x", json!(1)).holds(&scope));
            assert!(!condition("regex", "status", json!(".")).holds(&scope));
        }
    }

    #[test]
    fn invalid_conditions_are_reported() {
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

    /// With most of these patterns a backtracking engine would practically never end. The last ones need
    /// a state for each of the many ways to match the text.
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
