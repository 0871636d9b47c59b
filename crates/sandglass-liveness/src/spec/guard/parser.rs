//! Reads the text of a condition.

use std::collections::BTreeMap;
use std::ops::Range;

use sandglass_source::Name;
use serde_json::Value;

use super::{Among, GUARD_DEPTH_MAX, Guard, Mistake, Operand, Operator, OtherEntities};
use crate::entity::{ID, STATUS};
use crate::spec::{Variable, VariableKind};

/// Words that join or begin conditions, and are no names in them.
const KEYWORDS: [&str; 4] = ["and", "or", "not", "in"];

pub(super) fn parse(
    text: &str,
    variables: &BTreeMap<String, Variable>,
) -> Result<(Guard, Vec<Name>), Mistake> {
    let mut parser =
        Parser { text, tokens: tokens(text)?, next: 0, variables, unknown: Vec::new() };
    let guard = parser.implied(0)?;
    match parser.peek() {
        None => Ok((guard, parser.unknown)),
        Some((token, at)) => Err(mistake(
            at,
            format!("{} is not expected here", token.shown()),
            "join conditions with `and` or `or`",
        )),
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Literal(Value),
    Operator(Operator),
    Not,
    And,
    Or,
    Implies,
    Comma,
    Open,
    Close,
    OpenList,
    CloseList,
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Word(word) => format!("`{word}`"),
            Self::Literal(value) => format!("`{value}`"),
            Self::Operator(_) => "this comparison".to_owned(),
            Self::Not => "`!`".to_owned(),
            Self::And => "`&&`".to_owned(),
            Self::Or => "`||`".to_owned(),
            Self::Implies => "`=>`".to_owned(),
            Self::Comma => "`,`".to_owned(),
            Self::Open => "`(`".to_owned(),
            Self::Close => "`)`".to_owned(),
            Self::OpenList => "`[`".to_owned(),
            Self::CloseList => "`]`".to_owned(),
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
            '[' => Token::OpenList,
            ']' => Token::CloseList,
            ',' => Token::Comma,
            '"' | '\'' => quoted(text, start, c, &mut rest)?,
            '=' | '!' | '<' | '>' | '&' | '|' => {
                let second = rest.next_if(|(_, next)| follows(c, *next)).map(|(_, next)| next);
                operator(c, second).ok_or_else(|| {
                    let help = "comparisons are == != < <= > >=; conditions are joined by `and`, \
                                `or` (also && and ||) and =>";
                    mistake(start..start + 1, format!("`{c}` is no comparison"), help)
                })?
            }
            c if c.is_alphanumeric() || matches!(c, '_' | '-' | '.') => {
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

/// Whether `second` is a part of the operator that `first` begins.
const fn follows(first: char, second: char) -> bool {
    matches!((first, second), ('=' | '!' | '<' | '>', '=') | ('=', '>') | ('&', '&') | ('|', '|'))
}

fn operator(first: char, second: Option<char>) -> Option<Token> {
    Some(Token::Operator(match (first, second) {
        ('=', Some('=')) => Operator::Equal,
        ('!', Some(_)) => Operator::NotEqual,
        ('<', None) => Operator::Less,
        ('<', Some(_)) => Operator::LessOrEqual,
        ('>', None) => Operator::Greater,
        ('>', Some(_)) => Operator::GreaterOrEqual,
        ('!', None) => return Some(Token::Not),
        ('=', Some(_)) => return Some(Token::Implies),
        ('&', Some(_)) => return Some(Token::And),
        ('|', Some(_)) => return Some(Token::Or),
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
        "null" => Token::Literal(Value::Null),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            let number: i64 = text.parse().map_err(|_| {
                mistake(at, format!("`{text}` is no whole number"), "counters hold whole numbers")
            })?;
            Token::Literal(Value::from(number))
        }
        _ => Token::Word(text.to_owned()),
    })
}

/// The type of a value. That of a field is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Number,
    Flag,
    List,
    Unknown,
}

impl Type {
    fn of_variable(kind: VariableKind) -> Self {
        match kind {
            VariableKind::String => Self::Text,
            VariableKind::Counter | VariableKind::Number => Self::Number,
            VariableKind::Bool => Self::Flag,
            VariableKind::List => Self::List,
        }
    }

    fn of_literal(value: &Value) -> Self {
        match value {
            Value::String(_) => Self::Text,
            Value::Number(_) => Self::Number,
            Value::Bool(_) => Self::Flag,
            _ => Self::Unknown,
        }
    }

    fn fits(self, other: Self) -> bool {
        self == other || self == Self::Unknown || other == Self::Unknown
    }

    const fn compared_with(self) -> &'static str {
        match self {
            Self::Text => "a string is compared with a quoted text",
            Self::Number => "a counter is compared with a whole number",
            Self::Flag => "a bool is compared with true or false",
            Self::List => "a list is searched: `'text' in list`, or counted: `len(list)`",
            Self::Unknown => "compare it with a literal",
        }
    }
}

impl Operand {
    pub(super) fn shown(&self) -> String {
        match self {
            Self::State => "status".to_owned(),
            Self::StateOf(OtherEntities { entity_type, ids }) => {
                format!("{entity_type}[{ids}].status")
            }
            Self::Named(name) => name.clone(),
            Self::Length(name) => format!("len({name})"),
            Self::Literal(value) => value.to_string(),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    tokens: Vec<(Token, Range<usize>)>,
    next: usize,
    variables: &'a BTreeMap<String, Variable>,
    /// The names that are no variables.
    unknown: Vec<Name>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<(Token, Range<usize>)> {
        self.tokens.get(self.next).cloned()
    }

    fn is_at(&self, ahead: usize, token: &Token) -> bool {
        self.tokens.get(self.next + ahead).is_some_and(|(is, _)| is == token)
    }

    fn is_at_word(&self, ahead: usize, word: &str) -> bool {
        matches!(self.tokens.get(self.next + ahead), Some((Token::Word(is), _)) if is == word)
    }

    /// Takes `token`, or `word` if that is another spelling of it.
    fn take(&mut self, token: &Token, word: &str) -> bool {
        let found = self.is_at(0, token) || self.is_at_word(0, word);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, token: &Token, opened_at: &Range<usize>) -> Result<(), Mistake> {
        if self.is_at(0, token) {
            self.next += 1;
            return Ok(());
        }
        let what = if *token == Token::Close { "parenthesis" } else { "list" };
        let help = format!("add a {}", token.shown());
        Err(mistake(opened_at.clone(), format!("the {what} is not closed"), help))
    }

    fn implied(&mut self, depth: usize) -> Result<Guard, Mistake> {
        let left = self.any(depth)?;
        if !self.take(&Token::Implies, "=>") {
            return Ok(left);
        }
        Ok(Guard::implies(left, self.implied(depth + 1)?))
    }

    fn any(&mut self, depth: usize) -> Result<Guard, Mistake> {
        self.joined((&Token::Or, "or"), Guard::Any, |parser| parser.all(depth))
    }

    fn all(&mut self, depth: usize) -> Result<Guard, Mistake> {
        self.joined((&Token::And, "and"), Guard::All, |parser| parser.one(depth))
    }

    /// One part, or several that are joined by one of two spellings.
    fn joined(
        &mut self,
        (token, word): (&Token, &str),
        join: fn(Vec<Guard>) -> Guard,
        part: impl Fn(&mut Self) -> Result<Guard, Mistake>,
    ) -> Result<Guard, Mistake> {
        let mut parts = vec![part(self)?];
        while self.take(token, word) {
            parts.push(part(self)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { join(parts) })
    }

    fn one(&mut self, depth: usize) -> Result<Guard, Mistake> {
        let Some((token, at)) = self.peek() else {
            let end = self.text.len()..self.text.len();
            return Err(mistake(end, "the guard ends too early", "a comparison is missing here"));
        };
        if depth >= GUARD_DEPTH_MAX {
            let help = "split the action into several";
            return Err(mistake(at, "the guard is nested too deeply", help));
        }
        if self.take(&Token::Not, "not") {
            return Ok(Guard::Not(Box::new(self.one(depth + 1)?)));
        }
        if self.take(&Token::Open, "(") {
            let inner = self.implied(depth + 1)?;
            self.expect(&Token::Close, &at)?;
            return Ok(inner);
        }
        if let Token::Word(word) = &token {
            if word == "empty" && self.is_at(1, &Token::Open) {
                return Ok(Guard::Empty(self.argument()?));
            }
            if matches!(self.tokens.get(self.next + 1), Some((Token::Word(word), _))
                if !KEYWORDS.contains(&word.as_str()))
                && let Some(guard) = self.prefixed(word)?
            {
                return Ok(guard);
            }
            // Files never name a field by these verbs; a variable of the name is a variable.
            if matches!(word.as_str(), "is_true" | "is_false")
                && !self.variables.contains_key(word.as_str())
            {
                let message = format!("a variable is missing after `{word}`");
                return Err(mistake(at, message, format!("write `{word} VARIABLE`")));
            }
        }
        self.term()
    }

    /// The argument of a function: a name in parentheses.
    fn argument(&mut self) -> Result<String, Mistake> {
        self.next += 2;
        let opened_at = self.tokens[self.next - 1].1.clone();
        let Some((Token::Word(name), at)) = self.peek() else {
            return Err(mistake(opened_at, "a name is missing here", "write `len(list)`"));
        };
        self.next += 1;
        self.type_of(&name, &at);
        self.expect(&Token::Close, &opened_at)?;
        Ok(name)
    }

    /// A condition that a verb begins, such as `is_true paid`; `None` if `verb` is no such verb.
    fn prefixed(&mut self, verb: &str) -> Result<Option<Guard>, Mistake> {
        const VERBS: [&str; 6] =
            ["is_true", "is_false", "min", "max", "list_length_min", "list_contains"];
        if !VERBS.contains(&verb) {
            return Ok(None);
        }
        let verb_at = self.tokens[self.next].1.clone();
        self.next += 1;
        let Some((Token::Word(name), at)) = self.peek() else { return Ok(None) };
        self.next += 1;
        let kind = self.type_of(&name, &at);
        let (wanted, called) = match verb {
            "is_true" | "is_false" => (Type::Flag, "bool"),
            "min" | "max" => (Type::Number, "counter"),
            _ => (Type::List, "list"),
        };
        if !kind.fits(wanted) {
            let help = format!("`{verb}` is for a {called}");
            return Err(mistake(at, format!("`{name}` is no {called}"), help));
        }
        Ok(Some(match verb {
            "is_true" => Guard::Is(name),
            "is_false" => Guard::Not(Box::new(Guard::Is(name))),
            "list_contains" => {
                let value = Operand::Literal(Value::from(self.rest_of_words(&verb_at)?));
                Guard::In { value, among: Among::Named(name) }
            }
            _ => {
                let Some((Token::Literal(number @ Value::Number(_)), _)) = self.peek() else {
                    let help = format!("write `{verb} {name} 1`");
                    return Err(mistake(verb_at, "a whole number is missing here", help));
                };
                self.next += 1;
                let operator =
                    if verb == "max" { Operator::Less } else { Operator::GreaterOrEqual };
                let is_list = verb == "list_length_min";
                let left = if is_list { Operand::Length(name) } else { Operand::Named(name) };
                Guard::Compare { left, operator, right: Operand::Literal(number) }
            }
        }))
    }

    /// The words up to the next `and`, `or` or `)`, as they are written; or one quoted text.
    fn rest_of_words(&mut self, verb_at: &Range<usize>) -> Result<String, Mistake> {
        if let Some((Token::Literal(Value::String(text)), _)) = self.peek() {
            self.next += 1;
            return Ok(text);
        }
        let first = self.next;
        while let Some((Token::Word(_) | Token::Literal(_), _)) = self.peek()
            && !self.is_at_word(0, "and")
            && !self.is_at_word(0, "or")
        {
            self.next += 1;
        }
        match self.tokens.get(first..self.next) {
            Some([start, .., end]) => Ok(self.text[start.1.start..end.1.end].to_owned()),
            Some([one]) => Ok(self.text[one.1.clone()].to_owned()),
            _ => {
                let help = "write `list_contains list value`";
                Err(mistake(verb_at.clone(), "a value is missing here", help))
            }
        }
    }

    /// A comparison, a search, or one bool.
    fn term(&mut self) -> Result<Guard, Mistake> {
        let Some((token, at)) = self.peek() else {
            let end = self.text.len()..self.text.len();
            return Err(mistake(end, "the guard ends too early", "a comparison is missing here"));
        };
        let Some((left, of_left)) = self.operand()? else {
            let help = "a comparison starts with a variable";
            return Err(mistake(at, format!("{} cannot stand here", token.shown()), help));
        };
        match self.peek() {
            Some((Token::Operator(operator), operator_at)) => {
                self.next += 1;
                self.comparison((left, of_left), operator, &operator_at)
            }
            Some((Token::Word(word), _)) if word == "in" => {
                self.next += 1;
                self.search(left, of_left)
            }
            Some((Token::Word(word), _)) if word == "not" && self.is_at_word(1, "in") => {
                self.next += 2;
                Ok(match self.search(left, of_left)? {
                    Guard::In { value: value @ Operand::StateOf(_), among } => {
                        Guard::NotIn { value, among }
                    }
                    found => Guard::Not(Box::new(found)),
                })
            }
            _ => match left {
                Operand::Literal(Value::Bool(flag)) => Ok(Guard::Constant(flag)),
                Operand::Named(name) if of_left.fits(Type::Flag) => Ok(Guard::Is(name)),
                other => {
                    let help = "compare it with a literal; only a bool variable stands alone";
                    Err(mistake(at, format!("`{}` is no bool", other.shown()), help))
                }
            },
        }
    }

    /// The next value and its type; `None` if none begins here.
    fn operand(&mut self) -> Result<Option<(Operand, Type)>, Mistake> {
        let Some((token, at)) = self.peek() else { return Ok(None) };
        let name = match token {
            Token::Literal(value) => {
                self.next += 1;
                let of = Type::of_literal(&value);
                return Ok(Some((Operand::Literal(value), of)));
            }
            Token::Word(name) if !KEYWORDS.contains(&name.as_str()) => name,
            _ => return Ok(None),
        };
        if name == "len" && self.is_at(1, &Token::Open) {
            return Ok(Some((Operand::Length(self.argument()?), Type::Number)));
        }
        if self.is_at(1, &Token::OpenList) {
            return Ok(Some((self.state_of(name, at)?, Type::Text)));
        }
        self.next += 1;
        if name == "status" && !self.variables.contains_key("status") {
            return Ok(Some((Operand::State, Type::Text)));
        }
        let of = self.type_of(&name, &at);
        Ok(Some((Operand::Named(name), of)))
    }

    /// The state of another entity: `Type[id].status`. The next token is the type.
    fn state_of(&mut self, entity_type: String, at: Range<usize>) -> Result<Operand, Mistake> {
        let of = self.tokens.get(self.next + 2).cloned();
        let is_closed = self.is_at(3, &Token::CloseList) && self.is_at_word(4, ".status");
        let (Some((Token::Word(ids), ids_at)), true) = (of, is_closed) else {
            let message = "a guard can read only the state of another entity";
            let help =
                "write `Type[id].status`, where `id` is the variable or field that has its id";
            return Err(mistake(at, message, help));
        };
        let kind = self.type_of(&ids, &ids_at);
        if !kind.fits(Type::Text) && !kind.fits(Type::List) {
            let message = format!("`{ids}` cannot hold the id of an entity");
            return Err(mistake(ids_at, message, "an id is in a string, several are in a list"));
        }
        self.next += 5;
        Ok(Operand::StateOf(OtherEntities { entity_type, ids }))
    }

    /// The type of a name. A name that is no variable is kept as doubtful.
    fn type_of(&mut self, name: &str, at: &Range<usize>) -> Type {
        if let Some(variable) = self.variables.get(name) {
            return Type::of_variable(variable.kind);
        }
        if ![ID, STATUS].contains(&name) {
            self.unknown.push(Name::new(name, at.clone()));
        }
        Type::Unknown
    }

    fn comparison(
        &mut self,
        (left, of_left): (Operand, Type),
        operator: Operator,
        operator_at: &Range<usize>,
    ) -> Result<Guard, Mistake> {
        if operator.orders() && !of_left.fits(Type::Number) {
            let help = "only counters have an order; use == or !=";
            let message = format!("`{}` is no counter", left.shown());
            return Err(mistake(operator_at.clone(), message, help));
        }
        let at = self.peek().map(|(_, at)| at);
        let Some((right, of_right)) = self.operand()? else {
            let after = operator_at.end..operator_at.end;
            return Err(mistake(after, "a literal is missing here", of_left.compared_with()));
        };
        let is_ordered = !operator.orders() || of_right.fits(Type::Number);
        if !of_left.fits(of_right) || !is_ordered {
            let message = format!("`{}` is of another type than `{}`", right.shown(), left.shown());
            let at = at.unwrap_or_else(|| operator_at.clone());
            return Err(mistake(at, message, of_left.compared_with()));
        }
        Ok(Guard::Compare { left, operator, right })
    }

    /// What follows `in`: a list of literals, or the name of a list.
    fn search(&mut self, value: Operand, of_value: Type) -> Result<Guard, Mistake> {
        let (Some((_, at)), false) = (self.peek(), self.is_at(0, &Token::Close)) else {
            let end = self.text.len()..self.text.len();
            return Err(mistake(end, "a list is missing here", "write `status in ['A', 'B']`"));
        };
        if !self.is_at(0, &Token::OpenList) {
            return match self.operand()? {
                Some((Operand::Named(name), of)) if of.fits(Type::List) => {
                    Ok(Guard::In { value, among: Among::Named(name) })
                }
                _ => Err(mistake(at, "this is no list", "write `'text' in list`")),
            };
        }
        self.next += 1;
        let mut items = Vec::new();
        while !self.is_at(0, &Token::CloseList) {
            match self.peek() {
                Some((Token::Literal(item), item_at)) => {
                    if !Type::of_literal(&item).fits(of_value) {
                        let shown = value.shown();
                        let message = format!("`{item}` is of another type than `{shown}`");
                        return Err(mistake(item_at, message, of_value.compared_with()));
                    }
                    items.push(item);
                    self.next += 1;
                }
                Some((token, at)) => {
                    let message = format!("{} is no literal", token.shown());
                    return Err(mistake(at, message, "a text in a list is quoted"));
                }
                None => break,
            }
            if !self.take(&Token::Comma, ",") {
                break;
            }
        }
        self.expect(&Token::CloseList, &at)?;
        Ok(Guard::In { value, among: Among::Literals(items) })
    }
}
