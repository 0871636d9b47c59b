//! What is left of a condition if only some of what it reads is known.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Among, Guard, Operand, Scope};

impl Guard {
    /// The condition without the parts that are decided by the state and by the variables and fields in
    /// `known`; constant if nothing is left.
    #[must_use]
    pub(in crate::spec) fn reduced(&self, known: Scope<'_>) -> Self {
        let is_unknown =
            |name: &str| !known.variables.contains_key(name) && known.fields.get(name).is_none();
        match self {
            Self::Not(inner) => match inner.reduced(known) {
                Self::Constant(holds) => Self::Constant(!holds),
                left => Self::Not(Box::new(left)),
            },
            Self::All(parts) => join(parts, true, known),
            Self::Any(parts) => join(parts, false, known),
            Self::Compare { .. } | Self::In { .. } | Self::Empty(_) | Self::Is(_)
                if !self.reads(&is_unknown) =>
            {
                Self::Constant(self.holds(known))
            }
            _ => self.clone(),
        }
    }

    /// Whether it reads a variable or field for which `is_one` returns true.
    pub(in crate::spec) fn reads(&self, is_one: &dyn Fn(&str) -> bool) -> bool {
        let is_read = |operand: &Operand| match operand {
            Operand::Named(name) | Operand::Length(name) => is_one(name),
            _ => false,
        };
        match self {
            Self::Not(inner) => inner.reads(is_one),
            Self::All(parts) | Self::Any(parts) => parts.iter().any(|part| part.reads(is_one)),
            Self::Compare { left, right, .. } => is_read(left) || is_read(right),
            Self::In { value, among } => {
                is_read(value) || matches!(among, Among::Named(name) if is_one(name))
            }
            Self::Empty(name) | Self::Is(name) => is_one(name),
            _ => false,
        }
    }

    /// Adds the names that it compares as numbers to `names`.
    pub(in crate::spec) fn numbers<'g>(&'g self, names: &mut BTreeSet<&'g str>) {
        let is_number = |operand: &Operand| {
            matches!(operand, Operand::Length(_) | Operand::Literal(Value::Number(_)))
        };
        let mut add = |operand: &'g Operand| {
            if let Operand::Named(name) = operand {
                names.insert(name);
            }
        };
        match self {
            // Only numbers have an order.
            Self::Compare { left, operator, right }
                if operator.orders() || is_number(left) || is_number(right) =>
            {
                add(left);
                add(right);
            }
            Self::In { value, among: Among::Literals(items) }
                if items.iter().any(Value::is_number) =>
            {
                add(value);
            }
            Self::Not(inner) => inner.numbers(names),
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|one| one.numbers(names)),
            _ => {}
        }
    }

    /// The conditions that all have to hold for this one to hold.
    pub(in crate::spec) fn parts(&self) -> &[Self] {
        match self {
            Self::All(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }
}

/// What is left of all (or any, if not `is_all`) of `parts`.
fn join(parts: &[Guard], is_all: bool, known: Scope<'_>) -> Guard {
    let mut left = Vec::new();
    for part in parts {
        match part.reduced(known) {
            Guard::Constant(holds) if holds == is_all => {}
            Guard::Constant(opposite) => return Guard::Constant(opposite),
            part => left.push(part),
        }
    }
    match left.len() {
        0 => Guard::Constant(is_all),
        1 => left.remove(0),
        _ if is_all => Guard::All(left),
        _ => Guard::Any(left),
    }
}
