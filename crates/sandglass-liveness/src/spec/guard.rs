//! Conditions: guards of actions, and what invariants assert. Their types are checked when they are
//! read, so that none fails later.

mod other;
mod parser;
mod reduced;
mod table;
mod unmet;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use sandglass_model::{Object, Observed};
use serde_json::{Number, Value};

use super::{Name, Variable};
use crate::entity::{Fields, ID, STATUS};
pub use other::{OtherEntities, READS_MAX};
pub(super) use table::{
    bounded, check_own, check_states, fields, of_trigger, predicate, read, text,
};

/// Deepest nesting of a guard: deeper than anyone reads, and shallow enough for the stack of a
/// thread.
pub const GUARD_DEPTH_MAX: usize = 32;
/// Most guards in a list, and most parts of a table that joins several.
pub const GUARDS_MAX: usize = 64;

/// Most [terms](Guard::terms) of one condition: more than anyone reads.
pub const TERMS_MAX: usize = 1_024;
/// Most [terms](Guard::terms) of all the conditions that one decision evaluates: the guards of an action
/// and of the integrations that it starts, and the invariants.
pub const DECISION_TERMS_MAX: usize = 8_192;
/// How many terms a search counts as: it compares all items of a list, which may have hundreds of
/// thousands.
const SEARCH_TERMS: usize = 64;

/// A condition on an entity.
#[derive(Clone, Debug, PartialEq)]
pub enum Guard {
    /// It always holds, or never.
    Constant(bool),
    /// A comparison of two values.
    Compare {
        /// The left value.
        left: Operand,
        /// The operator.
        operator: Operator,
        /// The right value.
        right: Operand,
    },
    /// A value is one of several.
    In {
        /// The value.
        value: Operand,
        /// The values that it may have.
        among: Among,
    },
    /// A value is not among several. It is used for states of other entities only: if there are several, the
    /// negation of [`Guard::In`] would hold if one of them is not among these.
    NotIn {
        /// The value.
        value: Operand,
        /// The values that it may not have.
        among: Among,
    },
    /// A name has no value, or the empty text or list.
    Empty(String),
    /// A name has the value true.
    Is(String),
    /// The condition does not hold.
    Not(Box<Guard>),
    /// All conditions hold.
    All(Vec<Guard>),
    /// At least one condition holds.
    Any(Vec<Guard>),
}

/// A value that a condition reads.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// The name of the entity's state.
    State,
    /// The state of another entity. If there are several, the condition has to hold for each.
    StateOf(OtherEntities),
    /// The variable of this name, or else the field.
    Named(String),
    /// The length of the list of this name.
    Length(String),
    /// A literal.
    Literal(Value),
}

/// The values that a value is searched among.
#[derive(Clone, Debug, PartialEq)]
pub enum Among {
    /// These literals.
    Literals(Vec<Value>),
    /// The items of the list of this name.
    Named(String),
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

/// What a condition reads.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// The entity's id; `None` if it is not known.
    pub id: Option<&'a str>,
    /// Its state.
    pub state: &'a str,
    /// Its variables.
    pub variables: &'a Object,
    /// Its fields. A variable hides the field of its name.
    pub fields: &'a Fields,
    /// The states of other entities. Any that is not among them counts as one that does not exist.
    pub observed: &'a [Observed],
}

/// What is wrong with a condition, and where in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mistake {
    pub(super) at: Range<usize>,
    pub(super) message: String,
    pub(super) help: String,
}

impl Guard {
    /// Whether it holds. A name without a value is null, which equals only null and has no order. Each
    /// declared variable has a value.
    #[must_use]
    pub fn holds(&self, scope: Scope<'_>) -> bool {
        match self {
            Self::Constant(holds) => *holds,
            Self::Compare { left, operator, right } => match (left, right) {
                (Operand::StateOf(_), _) | (_, Operand::StateOf(_)) => left
                    .is_each(scope, |left| {
                        right.is_each(scope, |right| operator.holds(left, right))
                    }),
                (other, Operand::Literal(Value::Null)) | (Operand::Literal(Value::Null), other) => {
                    other.is_absent(scope) == (*operator == Operator::Equal) && !operator.orders()
                }
                _ => operator.holds(&left.read(scope), &right.read(scope)),
            },
            Self::In { value, among } => value.is_each(scope, |value| among.contains(value, scope)),
            Self::NotIn { value, among } => {
                value.is_each(scope, |value| !among.contains(value, scope))
            }
            Self::Empty(name) => is_empty(&scope.get(name)),
            Self::Is(name) => *scope.get(name) == Value::Bool(true),
            Self::Not(inner) => !inner.holds(scope),
            Self::All(inner) => inner.iter().all(|one| one.holds(scope)),
            Self::Any(inner) => inner.iter().any(|one| one.holds(scope)),
        }
    }

    /// What its evaluation costs, in comparisons of small values.
    #[must_use]
    pub fn terms(&self) -> usize {
        match self {
            Self::Constant(_) | Self::Empty(_) | Self::Is(_) => 1,
            // Both may be lists.
            Self::Compare { left: Operand::Named(_), right: Operand::Named(_), .. }
            | Self::Compare { left: Operand::StateOf(_), .. }
            | Self::Compare { right: Operand::StateOf(_), .. } => SEARCH_TERMS,
            Self::Compare { .. } => 1,
            Self::In { value, among } | Self::NotIn { value, among } => match (value, among) {
                (Operand::StateOf(_), Among::Literals(states)) => {
                    SEARCH_TERMS.max(READS_MAX * states.len())
                }
                (_, Among::Literals(items)) => items.len().max(1),
                (_, Among::Named(_)) => SEARCH_TERMS,
            },
            Self::Not(inner) => inner.terms(),
            Self::All(inner) | Self::Any(inner) => inner.iter().map(Self::terms).sum(),
        }
    }

    /// Reads a condition, and also returns the names in it that are no variables, with their places in
    /// `text`.
    pub(super) fn parse(
        text: &str,
        variables: &BTreeMap<String, Variable>,
    ) -> Result<(Self, Vec<Name>), Mistake> {
        parser::parse(text, variables)
    }

    /// The condition that all of `guards` hold.
    pub(super) fn all(mut guards: Vec<Self>) -> Self {
        if guards.len() == 1 { guards.remove(0) } else { Self::All(guards) }
    }

    /// The condition that `conclusion` holds if `premise` does.
    pub(super) fn implies(premise: Self, conclusion: Self) -> Self {
        Self::Any(vec![Self::Not(Box::new(premise)), conclusion])
    }

    /// The condition that the entity is in one of these states.
    pub(super) fn state_in(states: impl Iterator<Item = Value>) -> Self {
        Self::In { value: Operand::State, among: Among::Literals(states.collect()) }
    }
}

impl<'a> Scope<'a> {
    /// The value of a variable or field; null if it has none.
    pub(crate) fn get(self, name: &str) -> Cow<'a, Value> {
        let found = self.variables.get(name).or_else(|| self.fields.get(name));
        match found {
            Some(value) => Cow::Borrowed(value),
            None if name == STATUS => Cow::Owned(Value::from(self.state)),
            None if name == ID => Cow::Owned(self.id.into()),
            None => Cow::Owned(Value::Null),
        }
    }
}

impl Among {
    fn contains(&self, value: &Value, scope: Scope<'_>) -> bool {
        match self {
            Self::Literals(items) => items.iter().any(|item| are_equal(value, item)),
            Self::Named(name) => match &*scope.get(name) {
                Value::Array(items) => items.iter().any(|item| are_equal(value, item)),
                _ => false,
            },
        }
    }
}

impl Operand {
    /// Whether `test` holds for its value, or for each of several.
    fn is_each(&self, scope: Scope<'_>, test: impl Fn(&Value) -> bool) -> bool {
        match self {
            Self::StateOf(others) => others.states(scope).iter().all(test),
            _ => test(&self.read(scope)),
        }
    }

    /// Whether it has no value. A text variable that was never set is empty; a field is only there
    /// once it was given, and then also if it is empty.
    fn is_absent(&self, scope: Scope<'_>) -> bool {
        let is_variable =
            matches!(self, Self::Named(name) if scope.variables.contains_key(name.as_str()));
        match &*self.read(scope) {
            Value::Null => true,
            Value::String(text) => is_variable && text.is_empty(),
            _ => false,
        }
    }

    fn read<'a>(&'a self, scope: Scope<'a>) -> Cow<'a, Value> {
        match self {
            Self::State => Cow::Owned(Value::from(scope.state)),
            Self::Named(name) => scope.get(name),
            Self::Length(name) => {
                let length = scope.get(name).as_array().map(Vec::len);
                Cow::Owned(length.map_or(Value::Null, Value::from))
            }
            Self::Literal(value) => Cow::Borrowed(value),
            // It may have several: `is_each` reads them.
            Self::StateOf(_) => Cow::Owned(Value::Null),
        }
    }
}

impl Operator {
    fn holds(self, left: &Value, right: &Value) -> bool {
        let order = || order(left, right);
        match self {
            Self::Equal => are_equal(left, right),
            Self::NotEqual => !are_equal(left, right),
            Self::Less => order().is_some_and(Ordering::is_lt),
            Self::LessOrEqual => order().is_some_and(Ordering::is_le),
            Self::Greater => order().is_some_and(Ordering::is_gt),
            Self::GreaterOrEqual => order().is_some_and(Ordering::is_ge),
        }
    }

    const fn orders(self) -> bool {
        !matches!(self, Self::Equal | Self::NotEqual)
    }
}

/// Only numbers have an order.
fn order(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => order_numbers(left, right),
        _ => None,
    }
}

fn order_numbers(left: &Number, right: &Number) -> Option<Ordering> {
    match left.as_i64().zip(right.as_i64()) {
        Some((left, right)) => Some(left.cmp(&right)),
        None => left.as_f64()?.partial_cmp(&right.as_f64()?),
    }
}

fn are_equal(left: &Value, right: &Value) -> bool {
    left == right || order(left, right).is_some_and(Ordering::is_eq)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{Name, VariableKind};
    use serde_json::json;

    fn variables() -> BTreeMap<String, Variable> {
        [
            ("items", VariableKind::Counter, json!(0)),
            ("paid", VariableKind::Bool, json!(false)),
            ("note", VariableKind::String, json!("")),
            ("score", VariableKind::Number, json!(0)),
            ("tags", VariableKind::List, json!([])),
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
            ("score".to_owned(), json!(-0.5)),
            ("tags".to_owned(), json!(["a", "b c"])),
        ]);
        let fields = Object::from([("Carrier".to_owned(), json!("ups"))]).into();
        let (guard, _) = Guard::parse(text, &variables()).expect(text);
        guard.holds(Scope {
            id: Some("o-1"),
            state: "Open",
            variables: &values,
            fields: &fields,
            observed: &[],
        })
    }

    #[test]
    fn conditions_are_joined_as_people_expect() {
        for text in [
            "items > 0",
            "items >= 3 and items <= 3",
            "paid",
            "not paid or items == 3",
            "not (paid and items < 3)",
            "note == 'x and y'",
            "note != \"\"",
            "items == 1 or items == 2 or paid == true and items != 0",
            "paid && items > 2 || note == ''",
            "!(paid && items < 3)",
            "paid => items == 3",
            "!paid => items == 9",
            "items == 9 => paid => items == 9",
            "3 > items || 3 <= items",
            "score < 0 and items > score",
            "true and not false",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in [
            "items < 3",
            "not paid",
            "note == ''",
            "items > 3 or (paid and items == -1)",
            "paid => items == 9",
            "paid => (items == 3 => false)",
        ] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn states_lists_and_fields_are_read() {
        for text in [
            "status in ['Open', 'Closed']",
            "status not in ['Closed']",
            "status == 'Open' => len(tags) == 2",
            "Status == 'Open' and Id == 'o-1'",
            "'a' in tags and !('x' in tags)",
            "items in [1, 2, 3]",
            "not empty(tags) and empty(nothing)",
            "Carrier == 'ups' and Carrier != null",
            "other == null and !other and empty(other) and other == Missing",
            "other != 0 and other != false and other != '' and len(other) != 0 and 1 != other",
            "other not in ['', 'a'] and other not in [0] and other not in tags",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in [
            "status in []",
            "Carrier in tags",
            "note == null",
            "paid == null",
            "other == 0 or other == false or other == '' or false == other",
            "other < 5 or other <= 0 or other >= 0 or other > -1 or other < items",
            "other in [''] or other in [0] or 'a' in other",
            "len(other) == 0 or len(other) < 1 or len(Carrier) >= 0",
        ] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn what_is_known_is_left_out() {
        let values = Object::from([("items".to_owned(), json!(3))]);
        let fields = Object::from([("Carrier".to_owned(), json!("ups"))]).into();
        let known = Scope {
            id: Some("o-1"),
            state: "Open",
            variables: &values,
            fields: &fields,
            observed: &[],
        };
        for (text, left) in [
            ("status in ['Open', 'Paid'] and paid", "paid"),
            ("status in ['Paid'] and paid", "false"),
            ("status in ['Paid'] => paid", "true"),
            ("status == 'Open' => paid and note == ''", "paid and note == ''"),
            ("not (status != 'Open')", "true"),
            ("paid or true", "true"),
            ("items > 2 and note == '' and score < 1", "note == '' and score < 1"),
            ("items > 3 or not paid or Carrier == 'dhl'", "not paid"),
            ("items > score", "items > score"),
            (
                "len(tags) > 1 or 'a' in tags or empty(note)",
                "len(tags) > 1 or 'a' in tags or empty(note)",
            ),
        ] {
            let read = |text: &str| Guard::parse(text, &variables()).expect(text).0;
            assert_eq!(read(text).reduced(known), read(left), "{text}");
        }
    }

    #[test]
    fn verbs_come_before_their_names() {
        for text in [
            "is_true paid",
            "min items 3",
            "max items 4",
            "is_true paid and min items 3 and not is_false paid",
            "list_contains tags b c",
            "list_contains tags b c and paid",
            "list_contains tags 'b c' or false",
            "list_length_min tags 2",
        ] {
            assert!(holds(text), "{text}");
        }
        for text in ["is_false paid", "max items 3", "list_contains tags c", "!paid"] {
            assert!(!holds(text), "{text}");
        }
    }

    #[test]
    fn unknown_names_are_doubtful() {
        let (_, unknown) = Guard::parse("itms > 0 and Status == 'x'", &variables()).expect("read");
        let [doubt] = &unknown[..] else { panic!("{unknown:?}") };
        assert_eq!((doubt.span().clone(), doubt.as_str()), (0..4, "itms"));
    }

    #[test]
    fn an_empty_field_is_there_and_an_empty_text_variable_is_not() {
        let values = Object::from([("note".to_owned(), json!(""))]);
        let fields =
            Object::from([("Carrier".to_owned(), json!("")), ("Gone".to_owned(), json!(null))]);
        let fields = fields.into();
        for (text, expected) in [
            ("note == null", true),
            ("note != null", false),
            ("Carrier == null", false),
            ("Carrier != null and empty(Carrier)", true),
            ("null == Carrier", false),
            ("Gone == null and Missing == null", true),
        ] {
            let (guard, _) = Guard::parse(text, &variables()).expect(text);
            let scope = Scope {
                id: Some("o-1"),
                state: "Open",
                variables: &values,
                fields: &fields,
                observed: &[],
            };
            assert_eq!(guard.holds(scope), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_with_their_place() {
        for (text, at, message) in [
            ("", 0, "the guard ends too early"),
            ("items", 0, "`items` is no bool"),
            ("items > ", 7, "a literal is missing here"),
            ("items > 'x'", 8, "is of another type"),
            ("note < 'x'", 5, "`note` is no counter"),
            ("paid & paid", 5, "`&` is no comparison"),
            ("items = 1", 6, "`=` is no comparison"),
            ("(paid", 0, "is not closed"),
            ("paid paid", 5, "not expected here"),
            ("note == 'x", 8, "is not closed"),
            ("items > 99999999999999999999", 8, "is no whole number"),
            ("3", 0, "`3` is no bool"),
            ("> 3", 0, "cannot stand here"),
            ("status in ['Open'", 10, "the list is not closed"),
            ("status in [Open]", 11, "`Open` is no literal"),
            ("items in ['x']", 10, "is of another type"),
            ("'x' in note", 7, "is no list"),
            ("status in", 9, "a list is missing here"),
            ("len(tags", 3, "the parenthesis is not closed"),
            ("is_true items", 8, "`items` is no bool"),
            ("is_true", 0, "a variable is missing after `is_true`"),
            ("paid and !is_false", 10, "a variable is missing after `is_false`"),
            ("is_true and paid", 0, "a variable is missing after `is_true`"),
            ("min items", 0, "a whole number is missing here"),
            ("list_contains tags", 0, "a value is missing here"),
            ("Order[note].id == 'Paid'", 0, "can read only the state of another entity"),
            ("Order[note] == 'Paid'", 0, "can read only the state of another entity"),
            ("Order['note'].status == 'Paid'", 0, "can read only the state of another entity"),
            ("Order[note].status", 0, "is no bool"),
            ("Order[note].status > 3", 19, "is no counter"),
            ("Order[note].status == 3", 22, "is of another type"),
            ("Order[items].status == 'Paid'", 6, "`items` cannot hold the id of an entity"),
        ] {
            let mistake = Guard::parse(text, &variables()).expect_err(text);
            assert_eq!(mistake.at.start, at, "{text}: {mistake:?}");
            assert!(mistake.message.contains(message), "{text}: {mistake:?}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_and_not_a_stack_overflow() {
        for deep in [
            "(".repeat(100_000),
            "not ".repeat(100_000),
            "!".repeat(100_000),
            "paid=>".repeat(100_000),
        ] {
            let mistake = Guard::parse(&deep, &variables()).expect_err("too deep");
            assert!(mistake.message.contains("too deeply"), "{mistake:?}");
        }
    }
}
