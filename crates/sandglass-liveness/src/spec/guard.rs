//! Guards: comparisons of a variable with a literal, joined by `and`, `or` and
//! `not`. Their types are checked when they are read, so that none fails later.

use std::collections::BTreeMap;
use std::ops::Range;

use sandglass_model::Object;
use serde_json::Value;

use sandglass_source::did_you_mean;

use super::{Variable, VariableKind};

/// Deepest nesting of a guard: deeper than anyone reads, and shallow enough for the stack of a
/// thread.
pub const GUARD_DEPTH_MAX: usize = 32;

/// The condition of an action.
#[derive(Clone, Debug, PartialEq)]
pub enum Guard {
    /// A comparison of a variable with a literal of its type.
    Compare {
        /// The variable.
        variable: String,
        /// The operator.
        operator: Operator,
        /// The literal.
        literal: Value,
    },
    /// The condition does not hold.
    Not(Box<Guard>),
    /// All conditions hold.
    All(Vec<Guard>),
    /// At least one condition holds.
    Any(Vec<Guard>),
}

/// A comparison operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
}

/// What is wrong with a guard, and where in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) at: Range<usize>,
    pub(super) message: String,
    pub(super) help: String,
}

impl Guard {
    /// Whether it holds for these variables. A variable that is missing, or has another type than
    /// declared, compares as unequal and unordered.
    #[must_use]
    pub fn holds(&self, variables: &Object) -> bool {
        match self {
            Self::Compare { variable, operator, literal } => {
                variables.get(variable).is_some_and(|value| operator.holds(value, literal))
            }
            Self::Not(inner) => !inner.holds(variables),
            Self::All(inner) => inner.iter().all(|one| one.holds(variables)),
            Self::Any(inner) => inner.iter().any(|one| one.holds(variables)),
        }
    }

    pub(super) fn parse(
        text: &str,
        variables: &BTreeMap<String, Variable>,
    ) -> Result<Self, Mistake> {
        let mut parser = Parser { tokens: tokens(text)?, next: 0, variables, end: text.len() };
        let guard = parser.any(0)?;
        match parser.peek() {
            None => Ok(guard),
            Some((token, at)) => Err(mistake(
                at,
                format!("{} is not expected here", token.shown()),
                "join comparisons with `and` or `or`",
            )),
        }
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = match (left, right) {
            (Value::Number(left), Value::Number(right)) => {
                left.as_i64().zip(right.as_i64()).map(|(left, right)| left.cmp(&right))
            }
            (Value::String(left), Value::String(right)) => Some(left.cmp(right)),
            (Value::Bool(left), Value::Bool(right)) => Some(left.cmp(right)),
            _ => None,
        };
        match self {
            Self::Equal => order.is_some_and(std::cmp::Ordering::is_eq),
            Self::NotEqual => !order.is_some_and(std::cmp::Ordering::is_eq),
            Self::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Self::LessOrEqual => order.is_some_and(std::cmp::Ordering::is_le),
            Self::Greater => order.is_some_and(std::cmp::Ordering::is_gt),
            Self::GreaterOrEqual => order.is_some_and(std::cmp::Ordering::is_ge),
        }
    }

    const fn orders(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Literal(Value),
    Operator(Operator),
    Open,
    Close,
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Word(word) => format!("`{word}`"),
            Self::Literal(value) => format!("`{value}`"),
            Self::Operator(_) => "this comparison".to_owned(),
            Self::Open => "`(`".to_owned(),
            Self::Close => "`)`".to_owned(),
        }
    }
}

fn mistake(at: Range<usize>, message: impl Into<String>, help: impl Into<String>) -> Mistake {
    Mistake { at, message: message.into(), help: help.into() }
}

fn tokens(text: &str) -> Result<Vec<(Token, Range<usize>)>, Mistake> {
    let mut tokens = Vec::new();
    let mut rest = text.char_indices().peekable();
    while let Some((start, c)) = rest.next() {
        let token = match c {
            c if c.is_whitespace() => continue,
            '(' => Token::Open,
            ')' => Token::Close,
            '"' | '\'' => quoted(text, start, c, &mut rest)?,
            '=' | '!' | '<' | '>' => {
                let or_equal = rest.next_if(|(_, next)| *next == '=').is_some();
                operator(c, or_equal).ok_or_else(|| {
                    let help = "comparisons are == != < <= > >=; a negation is `not`";
                    mistake(start..start + 1, format!("`{c}` is no comparison"), help)
                })?
            }
            c if c.is_alphanumeric() || matches!(c, '_' | '-') => {
                while rest.next_if(|(_, next)| is_word(*next)).is_some() {}
                let end = rest.peek().map_or(text.len(), |(at, _)| *at);
                word(&text[start..end], start..end)?
            }
            c => {
                let help = "a guard is `variable == literal`, joined by `and`, `or`, `not`";
                let at = start..start + c.len_utf8();
                return Err(mistake(at, format!("`{c}` has no meaning in a guard"), help));
            }
        };
        let end = rest.peek().map_or(text.len(), |(at, _)| *at);
        tokens.push((token, start..end));
    }
    Ok(tokens)
}

type Chars<'t> = std::iter::Peekable<std::str::CharIndices<'t>>;

fn quoted(text: &str, start: usize, quote: char, rest: &mut Chars<'_>) -> Result<Token, Mistake> {
    match rest.find(|(_, c)| *c == quote) {
        Some((end, _)) => Ok(Token::Literal(Value::from(&text[start + 1..end]))),
        None => {
            Err(mistake(start..text.len(), "the text is not closed", format!("add a `{quote}`")))
        }
    }
}

fn operator(first: char, or_equal: bool) -> Option<Token> {
    Some(Token::Operator(match (first, or_equal) {
        ('=', true) => Operator::Equal,
        ('!', true) => Operator::NotEqual,
        ('<', false) => Operator::Less,
        ('<', true) => Operator::LessOrEqual,
        ('>', false) => Operator::Greater,
        ('>', true) => Operator::GreaterOrEqual,
        _ => return None,
    }))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.')
}

fn word(text: &str, at: Range<usize>) -> Result<Token, Mistake> {
    Ok(match text {
        "true" => Token::Literal(Value::Bool(true)),
        "false" => Token::Literal(Value::Bool(false)),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            let number: i64 = text.parse().map_err(|_| {
                mistake(at, format!("`{text}` is no whole number"), "counters hold whole numbers")
            })?;
            Token::Literal(Value::from(number))
        }
        _ => Token::Word(text.to_owned()),
    })
}

struct Parser<'a> {
    tokens: Vec<(Token, Range<usize>)>,
    next: usize,
    variables: &'a BTreeMap<String, Variable>,
    end: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<(Token, Range<usize>)> {
        self.tokens.get(self.next).cloned()
    }

    fn take_word(&mut self, word: &str) -> bool {
        let found = matches!(self.tokens.get(self.next), Some((Token::Word(is), _)) if is == word);
        self.next += usize::from(found);
        found
    }

    fn any(&mut self, depth: usize) -> Result<Guard, Mistake> {
        self.joined("or", Guard::Any, |parser| parser.all(depth))
    }

    fn all(&mut self, depth: usize) -> Result<Guard, Mistake> {
        self.joined("and", Guard::All, |parser| parser.one(depth))
    }

    /// One part, or several that are joined by `word`.
    fn joined(
        &mut self,
        word: &str,
        join: fn(Vec<Guard>) -> Guard,
        part: impl Fn(&mut Self) -> Result<Guard, Mistake>,
    ) -> Result<Guard, Mistake> {
        let mut parts = vec![part(self)?];
        while self.take_word(word) {
            parts.push(part(self)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { join(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Guard, Mistake> {
        let Some((token, at)) = self.peek() else {
            let end = self.end..self.end;
            return Err(mistake(end, "the guard ends too early", "a comparison is missing here"));
        };
        if depth >= GUARD_DEPTH_MAX {
            let help = "split the action into several";
            return Err(mistake(at, "the guard is nested too deeply", help));
        }
        self.next += 1;
        match token {
            Token::Word(word) if word == "not" => Ok(Guard::Not(Box::new(self.one(depth + 1)?))),
            Token::Word(word) => self.comparison(&word, at),
            Token::Open => {
                let inner = self.any(depth + 1)?;
                match self.peek() {
                    Some((Token::Close, _)) => self.next += 1,
                    _ => return Err(mistake(at, "the parenthesis is not closed", "add a `)`")),
                }
                Ok(inner)
            }
            other => {
                let help = "a comparison starts with a variable";
                Err(mistake(at, format!("{} cannot stand here", other.shown()), help))
            }
        }
    }

    fn comparison(&mut self, name: &str, at: Range<usize>) -> Result<Guard, Mistake> {
        let Some(variable) = self.variables.get(name) else {
            let help = did_you_mean(name, self.variables.keys().map(String::as_str));
            return Err(mistake(at, format!("no variable is named `{name}`"), help));
        };
        let Some((Token::Operator(operator), operator_at)) = self.peek() else {
            if variable.kind == VariableKind::Bool {
                return Ok(compare(name, Operator::Equal, Value::Bool(true)));
            }
            let help = "compare it with a literal; only a bool variable stands alone";
            return Err(mistake(at, format!("`{name}` is no bool"), help));
        };
        self.next += 1;
        if operator.orders() && variable.kind != VariableKind::Counter {
            let help = "only counters have an order; use == or !=";
            return Err(mistake(operator_at, format!("`{name}` is no counter"), help));
        }
        let Some((Token::Literal(literal), literal_at)) = self.peek() else {
            let after = operator_at.end..operator_at.end;
            return Err(mistake(after, "a literal is missing here", expected(variable.kind)));
        };
        self.next += 1;
        let fits = matches!(
            (variable.kind, &literal),
            (VariableKind::String, Value::String(_))
                | (VariableKind::Counter, Value::Number(_))
                | (VariableKind::Bool, Value::Bool(_))
        );
        if !fits {
            let message = format!("`{literal}` is of another type than `{name}`");
            return Err(mistake(literal_at, message, expected(variable.kind)));
        }
        Ok(compare(name, operator, literal))
    }
}

fn compare(variable: &str, operator: Operator, literal: Value) -> Guard {
    Guard::Compare { variable: variable.to_owned(), operator, literal }
}

const fn expected(kind: VariableKind) -> &'static str {
    match kind {
        VariableKind::String => "a string is compared with a quoted text",
        VariableKind::Counter => "a counter is compared with a whole number",
        VariableKind::Bool => "a bool is compared with true or false",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Name;
    use serde_json::json;

    fn variables() -> BTreeMap<String, Variable> {
        [
            ("items", VariableKind::Counter, json!(0)),
            ("paid", VariableKind::Bool, json!(false)),
            ("note", VariableKind::String, json!("")),
        ]
        .into_iter()
        .map(|(name, kind, initial)| {
            (name.to_owned(), Variable { name: Name::new(name, 0..0), kind, initial })
        })
        .collect()
    }

    fn holds(text: &str) -> bool {
        let values = Object::from([
            ("items".to_owned(), json!(3)),
            ("paid".to_owned(), json!(true)),
            ("note".to_owned(), json!("x and y")),
        ]);
        Guard::parse(text, &variables()).expect(text).holds(&values)
    }

    #[test]
    fn comparisons_are_joined_as_people_expect() {
        for text in [
            "items > 0",
            "items >= 3 and items <= 3",
            "paid",
            "not paid or items == 3",
            "not (paid and items < 3)",
            "note == 'x and y'",
            "note != \"\"",
            "items == 1 or items == 2 or paid == true and items != 0",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["items < 3", "not paid", "note == ''", "items > 3 or (paid and items == -1)"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_place() {
        for (text, at, message) in [
            ("", 0, "the guard ends too early"),
            ("itms > 0", 0, "no variable is named `itms`"),
            ("items", 0, "`items` is no bool"),
            ("items > ", 7, "a literal is missing here"),
            ("items > 'x'", 8, "is of another type"),
            ("note < 'x'", 5, "`note` is no counter"),
            ("paid && paid", 5, "`&` has no meaning"),
            ("items = 1", 6, "`=` is no comparison"),
            ("(paid", 0, "is not closed"),
            ("paid paid", 5, "not expected here"),
            ("note == 'x", 8, "is not closed"),
            ("items > 99999999999999999999", 8, "is no whole number"),
            ("3 > items", 0, "cannot stand here"),
        ] {
            let mistake = Guard::parse(text, &variables()).expect_err(text);
            assert_eq!(mistake.at.start, at, "{text}: {mistake:?}");
            assert!(mistake.message.contains(message), "{text}: {mistake:?}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_and_not_a_stack_overflow() {
        for deep in ["(".repeat(100_000), "not ".repeat(100_000)] {
            let mistake = Guard::parse(&deep, &variables()).expect_err("too deep");
            assert!(mistake.message.contains("too deeply"), "{mistake:?}");
        }
    }
}
