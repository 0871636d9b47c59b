//! Which part of a condition does not hold, and the values that it reads, as a text for people.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write};

use sandglass_model::text::is_unprintable;
use serde_json::Value;

use super::{Among, Guard, Operand, Operator, Scope};

/// Most characters of a condition that are shown: it may have as many as its file.
const CONDITION_MAX_CHARS: usize = 200;
/// Most characters of a value that are shown, as in other messages.
const VALUE_MAX_CHARS: usize = 80;
/// Most values that are shown: few conditions read more.
const VALUES_MAX: usize = 8;

impl Guard {
    /// Describes the first part that does not hold, with the values that it reads: at most a few
    /// thousand bytes. `None` if the condition holds.
    pub(crate) fn describe_unmet(&self, scope: Scope<'_>) -> Option<String> {
        let part = self.unmet(scope)?;
        let mut text = format!("`{}` does not hold", cut(part, CONDITION_MAX_CHARS));
        let mut values: Vec<(String, Cow<'_, Value>)> = Vec::new();
        part.values(scope, &mut values);
        let more = if values.len() > VALUES_MAX { ", .." } else { "" };
        let values = values.iter().take(VALUES_MAX);
        let values =
            values.map(|(name, value)| format!("{name} is {}", cut(value, VALUE_MAX_CHARS)));
        let values: Vec<String> = values.collect();
        if !values.is_empty() {
            text += &format!(" ({}{more})", values.join(", "));
        }
        Some(text)
    }

    /// The first of the parts that all have to hold which does not.
    fn unmet(&self, scope: Scope<'_>) -> Option<&Self> {
        match self {
            Self::All(parts) => parts.iter().find_map(|part| part.unmet(scope)),
            one => (!one.holds(scope)).then_some(one),
        }
    }

    /// Adds the values that it reads to `values`, each name once, and at most one more than are shown.
    /// The state of the entity, and those of others, are not among them.
    fn values<'a>(&'a self, scope: Scope<'a>, values: &mut Vec<(String, Cow<'a, Value>)>) {
        let mut add = |name: String, value| {
            if values.len() <= VALUES_MAX && values.iter().all(|(known, _)| *known != name) {
                values.push((name, value));
            }
        };
        let mut operand = |operand: &'a Operand| match operand {
            Operand::Named(_) | Operand::Length(_) => add(operand.shown(), operand.read(scope)),
            Operand::StateOf(others) => add(others.ids.clone(), scope.get(&others.ids)),
            Operand::State | Operand::Literal(_) => {}
        };
        match self {
            Self::Constant(_) => {}
            Self::Compare { left, right, .. } => {
                operand(left);
                operand(right);
            }
            Self::In { value, among } | Self::NotIn { value, among } => {
                operand(value);
                if let Among::Named(list) = among {
                    add(list.clone(), scope.get(list));
                }
            }
            Self::Empty(name) | Self::Is(name) => add(name.clone(), scope.get(name)),
            Self::Not(inner) => inner.values(scope, values),
            Self::All(parts) | Self::Any(parts) => {
                parts.iter().for_each(|part| part.values(scope, values));
            }
        }
    }
}

/// As in a spec file.
impl Display for Guard {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(holds) => write!(f, "{holds}"),
            Self::Compare { left, operator, right } => {
                write!(f, "{} {} {}", left.shown(), operator.as_str(), right.shown())
            }
            Self::In { value, among } => write!(f, "{} in {among}", value.shown()),
            Self::NotIn { value, among } => write!(f, "{} not in {among}", value.shown()),
            Self::Empty(name) => write!(f, "empty({name})"),
            Self::Is(name) => f.write_str(name),
            Self::Not(inner) => {
                f.write_str("not ")?;
                inner.fmt_inner(f)
            }
            Self::All(parts) => fmt_joined(parts, " and ", "true", f),
            Self::Any(parts) => fmt_joined(parts, " or ", "false", f),
        }
    }
}

impl Guard {
    /// As a part of another condition.
    fn fmt_inner(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(_) | Self::Any(_) => write!(f, "({self})"),
            one => write!(f, "{one}"),
        }
    }
}

fn fmt_joined(parts: &[Guard], word: &str, none: &str, f: &mut Formatter<'_>) -> fmt::Result {
    if parts.is_empty() {
        return f.write_str(none);
    }
    for (nth, part) in parts.iter().enumerate() {
        f.write_str(if nth > 0 { word } else { "" })?;
        part.fmt_inner(f)?;
    }
    Ok(())
}

impl Display for Among {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(list) => f.write_str(list),
            Self::Literals(items) => {
                f.write_str("[")?;
                for (nth, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if nth > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}

impl Operator {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// The first characters of what is displayed, without those that are not printable.
fn cut(shown: impl Display, max_chars: usize) -> String {
    let mut start = Start { text: String::new(), left: max_chars };
    // It fails only if there is more.
    if write!(start, "{shown}").is_err() {
        start.text.push_str("..");
    }
    start.text
}

/// Errors as soon as it has all characters that it may have, so that a large value takes no longer.
struct Start {
    text: String,
    left: usize,
}

impl Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars().filter(|c| !is_unprintable(*c)) {
            self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
            self.text.push(c);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sandglass_model::{Object, Observed};
    use serde_json::json;

    use super::*;

    fn describe(text: &str) -> Option<String> {
        let guard = Guard::parse(text, &BTreeMap::new()).expect(text).0;
        let variables = Object::from([
            ("items".to_owned(), json!(0)),
            ("paid".to_owned(), json!(false)),
            ("note".to_owned(), json!(format!("\u{1b}\n\u{202e}{}", "é".repeat(1_000)))),
            ("tags".to_owned(), json!(["a", "b"])),
            ("parcel".to_owned(), json!("p1")),
        ]);
        let observed = [Observed { entity: "Parcel/p1".parse().expect("a name"), state: None }];
        let (fields, state) = (Object::new().into(), "Open");
        let variables = &variables;
        let fields = &fields;
        let scope = Scope { id: Some("o-1"), state, variables, fields, observed: &observed };
        guard.describe_unmet(scope)
    }

    #[test]
    fn the_first_part_that_does_not_hold_is_described_with_its_values() {
        for (text, described) in [
            ("items > 0", "`items > 0` does not hold (items is 0)"),
            ("len(tags) == 2 and paid and items > 0", "`paid` does not hold (paid is false)"),
            ("not (items <= 0)", "`not items <= 0` does not hold (items is 0)"),
            (
                "items >= 0 && (paid || !(items != 0) && items < items)",
                "`paid or (not items != 0 and items < items)` does not hold (paid is false, items is 0)",
            ),
            ("len(tags) > 2", "`len(tags) > 2` does not hold (len(tags) is 2)"),
            ("'x' in tags", "`\"x\" in tags` does not hold (tags is [\"a\",\"b\"])"),
            ("items in [1, 2]", "`items in [1, 2]` does not hold (items is 0)"),
            ("not empty(gone)", "`not empty(gone)` does not hold (gone is null)"),
            ("status == 'Paid'", "`status == \"Paid\"` does not hold"),
            ("items == 0 => false", "`not items == 0 or false` does not hold (items is 0)"),
            (
                "Parcel[parcel].status != null",
                "`Parcel[parcel].status != null` does not hold (parcel is \"p1\")",
            ),
        ] {
            assert_eq!(describe(text).as_deref(), Some(described), "{text}");
        }
        assert_eq!(describe("items == 0 and not paid"), None);
        assert_eq!(Guard::All(Vec::new()).to_string(), "true");
        assert_eq!(Guard::Any(Vec::new()).to_string(), "false");
    }

    #[test]
    fn what_is_shown_of_a_condition_and_of_values_is_bounded_and_printable() {
        let note = describe("note == ''").expect("does not hold");
        let shown = format!("\"\\u001b\\n{}..", "é".repeat(VALUE_MAX_CHARS - 9));
        assert_eq!(note, format!("`note == \"\"` does not hold (note is {shown})"));
        let literal = format!("items == 1 or note == '{}\u{7f}'", "x".repeat(100_000));
        let long = describe(&literal).expect("does not hold");
        let start = format!("`items == 1 or note == \"{}..`", "x".repeat(CONDITION_MAX_CHARS - 23));
        assert!(long.starts_with(&start), "{long}");
        let names: Vec<String> = (0..100).map(|nth| format!("n{nth} == 1")).collect();
        let many = describe(&names.join(" or ")).expect("does not hold");
        assert!(many.ends_with("n7 is null, ..)"), "{many}");
    }
}
