//! The tokens of expressions.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::Mistake;
use super::compare::{contains, order, same};
use super::path::{Path, is_word};
use crate::problem::quoted;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Path(Path),
    Literal(Value),
    Comparison(Comparison),
    Spot(Spot),
}

/// A token that joins or groups others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    And,
    Or,
    Not,
    Open,
    Close,
}

/// A comparison of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Contains,
    In,
}

impl Comparison {
    pub(crate) fn holds(self, left: &Value, right: &Value) -> bool {
        let ordered = |holds: fn(Ordering) -> bool| order(left, right).is_some_and(holds);
        match self {
            Self::Equal => same(left, right),
            Self::NotEqual => !same(left, right),
            Self::Less => ordered(Ordering::is_lt),
            Self::LessOrEqual => ordered(Ordering::is_le),
            Self::Greater => ordered(Ordering::is_gt),
            Self::GreaterOrEqual => ordered(Ordering::is_ge),
            Self::Contains => contains(left, right),
            Self::In => contains(right, left),
        }
    }
}

/// The tokens of signs, the longer ones first.
const SIGNS: &[(&str, Token)] = &[
    ("==", Token::Comparison(Comparison::Equal)),
    ("!=", Token::Comparison(Comparison::NotEqual)),
    ("<=", Token::Comparison(Comparison::LessOrEqual)),
    (">=", Token::Comparison(Comparison::GreaterOrEqual)),
    ("&&", Token::Spot(Spot::And)),
    ("||", Token::Spot(Spot::Or)),
    ("<", Token::Comparison(Comparison::Less)),
    (">", Token::Comparison(Comparison::Greater)),
    ("!", Token::Spot(Spot::Not)),
    ("(", Token::Spot(Spot::Open)),
    (")", Token::Spot(Spot::Close)),
];

/// The tokens of words that begin no path.
const WORDS: &[(&str, Token)] = &[
    ("and", Token::Spot(Spot::And)),
    ("or", Token::Spot(Spot::Or)),
    ("not", Token::Spot(Spot::Not)),
    ("contains", Token::Comparison(Comparison::Contains)),
    ("in", Token::Comparison(Comparison::In)),
    ("true", Token::Literal(Value::Bool(true))),
    ("false", Token::Literal(Value::Bool(false))),
    ("null", Token::Literal(Value::Null)),
];

/// The tokens of `text`, with their positions.
pub(super) fn tokens(text: &str) -> Result<Vec<(Token, usize)>, Mistake> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let (token, length) = token(rest, c).map_err(|what| (at, what))?;
        tokens.push((token, at));
        at += length;
    }
    Ok(tokens)
}

/// The token that `rest` begins with, and its length.
fn token(rest: &str, first: char) -> Result<(Token, usize), String> {
    if matches!(first, '"' | '\'') {
        return match rest[1..].find(first) {
            Some(end) => Ok((Token::Literal(Value::from(&rest[1..=end])), end + 2)),
            None => Err(format!("the text isn't closed; add a `{first}`")),
        };
    }
    if let Some((sign, token)) = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
        return Ok((token.clone(), sign.len()));
    }
    if first.is_ascii_digit() || first == '-' {
        return number(rest);
    }
    if !is_word(first) {
        let help = "compare by == != < <= > >= contains in, and join by and, or, not";
        return Err(format!("{} has no meaning here; {help}", quoted(&first.to_string())));
    }
    let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
    if let Some((word, token)) = WORDS.iter().find(|(word, _)| *word == &rest[..end]) {
        return Ok((token.clone(), word.len()));
    }
    let (path, end) = Path::parse(rest)?;
    Ok((Token::Path(path), end))
}

fn number(rest: &str) -> Result<(Token, usize), String> {
    let bytes = rest.as_bytes();
    let goes_on = |at: usize| {
        let byte = bytes[at];
        byte.is_ascii_alphanumeric()
            || byte == b'.'
            || (matches!(byte, b'+' | b'-') && (at == 0 || matches!(bytes[at - 1], b'e' | b'E')))
    };
    let end = (0..bytes.len()).find(|at| !goes_on(*at)).unwrap_or(bytes.len());
    let text = &rest[..end];
    match text.parse::<Number>() {
        Ok(number) => Ok((Token::Literal(Value::Number(number)), end)),
        Err(_) => Err(format!("{} is no number", quoted(text))),
    }
}
