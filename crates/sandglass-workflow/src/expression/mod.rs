//! Expressions of conditions and ports: paths, literals, comparisons, `and`, `or`, `not`.
//!
//! ```text
//! any        = all { ("or" | "||") all }
//! all        = one { ("and" | "&&") one }
//! one        = ("not" | "!") one | operand [ comparison operand ]
//! operand    = "(" any ")" | path | literal
//! comparison = "==" | "!=" | "<" | "<=" | ">" | ">=" | "contains" | "in"
//! path       = name { "." name | "[" digits "]" | "[" quoted "]" }
//! literal    = quoted | number | "true" | "false" | "null"
//! ```
//!
//! There are no functions, no loops, and no operators that create larger values. So an evaluation visits
//! each value of its scope at most once for each comparison, and the number of comparisons is limited.

mod compare;
mod path;
mod token;

use std::borrow::Cow;

use serde_json::Value;

pub(crate) use path::Path;
pub use path::ROOTS;
pub(crate) use token::Comparison;
use token::{Spot, Token, tokens};

use crate::fields::Fields;

/// Longest expression, in bytes: several times as long as any on an edge.
pub const EXPRESSION_MAX_BYTES: usize = 4_096;

/// Deepest nesting of an expression: deeper than people can read, and far less than the stack of a
/// thread allows. Guards of spec files have the same limit.
pub const EXPRESSION_DEPTH_MAX: usize = 32;

/// Most comparisons of one expression. Each may visit the whole scope, so this limits the time of an
/// evaluation: about 64 times as long as parsing the JSON of the scope.
pub const COMPARISONS_MAX: usize = 64;

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    text: String,
    term: Term,
}

#[derive(Clone, Debug, PartialEq)]
enum Term {
    Path(Path),
    Literal(Value),
    Compare(Box<Term>, Comparison, Box<Term>),
    Not(Box<Term>),
    All(Vec<Term>),
    Any(Vec<Term>),
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// The expression is invalid: why, from which character on, and what to do.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > EXPRESSION_MAX_BYTES {
            let is = text.len();
            return Err(format!(
                "the expression has {is} bytes, and {EXPRESSION_MAX_BYTES} are allowed; shorten it"
            ));
        }
        let mistake = |(at, what): Mistake| {
            let before = text.get(..at).unwrap_or(text).chars().count();
            format!("{what} (character {} of the expression)", before + 1)
        };
        let tokens = tokens(text).map_err(mistake)?;
        let mut parser = Parser { tokens, next: 0, end: text.len(), comparisons: 0 };
        let term = parser.whole().map_err(mistake)?;
        Ok(Self { text: text.to_owned(), term })
    }

    /// Parses the required expression of a field, and reports what is wrong with it.
    pub(crate) fn read<'v>(fields: &Fields<'v>, key: &'v str) -> Option<Self> {
        let parsed = Self::parse(fields.required_text(key)?);
        parsed.map_err(|what| fields.report(key, what)).ok()
    }

    /// The expression as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The value in `scope`, an object with some of [`ROOTS`]: the value that the path finds, or else
    /// null; the literal; or true or false.
    #[must_use]
    pub fn value<'a>(&'a self, scope: &'a Value) -> Cow<'a, Value> {
        self.term.value(scope)
    }

    /// Whether the value is `true`; no other value holds.
    #[must_use]
    pub fn holds(&self, scope: &Value) -> bool {
        self.term.holds(scope)
    }
}

impl Term {
    /// Recurses at most [`EXPRESSION_DEPTH_MAX`] levels, with a few frames each.
    fn holds(&self, scope: &Value) -> bool {
        match self {
            Self::Path(_) | Self::Literal(_) => *self.value(scope) == Value::Bool(true),
            Self::Compare(left, comparison, right) => {
                comparison.holds(&left.value(scope), &right.value(scope))
            }
            Self::Not(inner) => !inner.holds(scope),
            Self::All(inner) => inner.iter().all(|one| one.holds(scope)),
            Self::Any(inner) => inner.iter().any(|one| one.holds(scope)),
        }
    }

    fn value<'a>(&'a self, scope: &'a Value) -> Cow<'a, Value> {
        match self {
            Self::Path(path) => Cow::Borrowed(path.value(scope)),
            Self::Literal(literal) => Cow::Borrowed(literal),
            term => Cow::Owned(Value::Bool(term.holds(scope))),
        }
    }
}

/// A position in the text, in bytes, and what is wrong there.
type Mistake = (usize, String);

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    end: usize,
    comparisons: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(token, _)| token)
    }

    /// The position of the next token, or else the end.
    fn here(&self) -> usize {
        self.tokens.get(self.next).map_or(self.end, |(_, at)| *at)
    }

    fn take(&mut self, wanted: &Spot) -> bool {
        let found = matches!(self.peek(), Some(Token::Spot(spot)) if spot == wanted);
        self.next += usize::from(found);
        found
    }

    fn whole(&mut self) -> Result<Term, Mistake> {
        let term = self.any(0)?;
        if self.peek().is_some() {
            let what = "nothing is expected here; join what belongs together by `and` or `or`";
            return Err((self.here(), what.to_owned()));
        }
        Ok(term)
    }

    fn any(&mut self, depth: usize) -> Result<Term, Mistake> {
        self.joined(depth, &Spot::Or, Self::all, Term::Any)
    }

    fn all(&mut self, depth: usize) -> Result<Term, Mistake> {
        self.joined(depth, &Spot::And, Self::one, Term::All)
    }

    fn joined(
        &mut self,
        depth: usize,
        join: &Spot,
        part: fn(&mut Self, usize) -> Result<Term, Mistake>,
        term: fn(Vec<Term>) -> Term,
    ) -> Result<Term, Mistake> {
        let mut parts = vec![part(self, depth)?];
        while self.take(join) {
            parts.push(part(self, depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { term(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Term, Mistake> {
        if depth >= EXPRESSION_DEPTH_MAX {
            let what = format!("it is nested more than {EXPRESSION_DEPTH_MAX} deep; flatten it");
            return Err((self.here(), what));
        }
        if self.take(&Spot::Not) {
            return Ok(Term::Not(Box::new(self.one(depth + 1)?)));
        }
        let left = self.operand(depth)?;
        let Some(Token::Comparison(comparison)) = self.peek() else { return Ok(left) };
        let comparison = *comparison;
        if self.comparisons == COMPARISONS_MAX {
            let what = format!("it has more than {COMPARISONS_MAX} comparisons; use fewer");
            return Err((self.here(), what));
        }
        self.comparisons += 1;
        self.next += 1;
        let right = self.operand(depth)?;
        Ok(Term::Compare(Box::new(left), comparison, Box::new(right)))
    }

    fn operand(&mut self, depth: usize) -> Result<Term, Mistake> {
        let at = self.here();
        if self.take(&Spot::Open) {
            let inner = self.any(depth + 1)?;
            if self.take(&Spot::Close) {
                return Ok(inner);
            }
            return Err((at, "the parenthesis isn't closed; add a `)`".to_owned()));
        }
        let term = match self.peek() {
            Some(Token::Path(path)) => Term::Path(path.clone()),
            Some(Token::Literal(literal)) => Term::Literal(literal.clone()),
            _ => {
                let what = "a path such as `output.approved`, a literal or a `(` is missing here";
                return Err((at, what.to_owned()));
            }
        };
        self.next += 1;
        Ok(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn scope() -> Value {
        json!({
            "status": "completed",
            "output": {"approved": true, "n": 3, "tags": ["a", "b"], "note": "it's fine"},
            "outputs": {"node-1": {"x": 1.0}},
            "variables": {"limit": 3},
            "inputs": {},
        })
    }

    #[test]
    fn expressions_hold_if_their_value_is_true() {
        for text in [
            "output.approved",
            "output.approved == true",
            "status == 'completed' and output.n >= variables.limit",
            "status == \"failed\" || output.n == 3 && !(output.n > 3)",
            "not output.missing",
            "output.missing == null",
            "outputs.node-1.x == 1",
            "outputs['node-1'].x < output.n",
            "output.tags contains 'b' and 'a' in output.tags",
            "output.note contains \"it's\"",
            "'approved' in output",
            "(output.n > 1) == output.approved",
            "output.n != -1.5e3",
            "true and not false",
            "not not true",
        ] {
            assert!(Expression::parse(text).expect(text).holds(&scope()), "{text}");
        }
        for text in [
            "output.n",
            "output.missing",
            "output.missing < 3",
            "output.note < 3",
            "status",
            "null",
            "false or output.n == 4",
            "status == 'completed' and not output.approved",
        ] {
            assert!(!Expression::parse(text).expect(text).holds(&scope()), "{text}");
        }
    }

    #[test]
    fn an_expression_has_a_value() {
        for (text, value) in [
            ("output.tags", json!(["a", "b"])),
            ("output.missing", json!(null)),
            ("'text'", json!("text")),
            ("-2.5", json!(-2.5)),
            ("output.n > 2", json!(true)),
            ("(output.n)", json!(3)),
        ] {
            assert_eq!(*Expression::parse(text).expect(text).value(&scope()), value, "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_position() {
        let many = format!("{}true", "1==1 and ".repeat(COMPARISONS_MAX + 1));
        let deep = "(".repeat(1_000);
        let negated = format!("{}true", "not ".repeat(EXPRESSION_DEPTH_MAX));
        for (text, what) in [
            ("", "is missing here (character 1 "),
            ("output.n >", "is missing here (character 11 "),
            ("é", "no path begins with `é`"),
            ("outputt.n", "did you mean `output`?"),
            ("output.n = 3", "(character 10 "),
            ("output.n 3", "join what belongs together by `and` or `or` (character 10 "),
            ("output.n == 'x", "isn't closed"),
            ("(output.n", "add a `)` (character 1 "),
            ("output.n == 1 == 1", "(character 15 "),
            ("output.n + 1", "`+` has no meaning"),
            ("size(output)", "no path begins with `size`"),
            ("1.2.3 == 1", "`1.2.3` is no number"),
            ("a & b", "no path begins with `a`"),
            ("output.a & output.b", "(character 10 "),
            (&many, "more than 64 comparisons"),
            (&deep, "nested more than 32 deep"),
            (&negated, "nested more than 32 deep"),
            (&" ".repeat(EXPRESSION_MAX_BYTES + 1), "bytes, and 4096 are allowed"),
        ] {
            let error = Expression::parse(text).expect_err(text);
            assert!(error.contains(what), "{text}: {error}");
        }
    }

    /// The work of an evaluation is limited by its comparisons and its scope. The test does not measure
    /// time: it ends.
    #[test]
    fn the_worst_expression_over_a_large_scope_ends() {
        let list: Vec<_> = (0..60_000).map(|n| json!([n, "xxxxxxxx"])).collect();
        let mut other = list.clone();
        other.push(json!("the only difference, at the end"));
        let scope = json!({"output": list, "variables": list, "inputs": other});
        assert!(serde_json::to_vec(&scope).expect("JSON").len() > 2 << 20);
        let each = "output==variables and ";
        let text = format!("{}true", each.repeat(COMPARISONS_MAX));
        assert!(Expression::parse(&text).expect("it is allowed").holds(&scope));
        let each = "output in inputs or ";
        let text = format!("{}false", each.repeat(COMPARISONS_MAX));
        assert!(!Expression::parse(&text).expect("it is allowed").holds(&scope));
        let one_more = format!("{} or output in inputs", text);
        assert!(Expression::parse(&one_more).is_err());
    }
}
