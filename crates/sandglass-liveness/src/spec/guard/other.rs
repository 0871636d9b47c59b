//! The states of other entities that a condition reads.

use sandglass_model::EntityRef;
use serde_json::Value;

use super::{Among, Guard, Operand, Scope};

/// Most entities whose states one guard reads: what it reads is part of a record, and each of them may have
/// to be read from the journal.
pub const READS_MAX: usize = 16;

/// Entities whose states a condition reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherEntities {
    /// Their type.
    pub entity_type: String,
    /// The variable or field that has the id of one, or a list of ids.
    pub ids: String,
}

impl OtherEntities {
    /// Their names, with `None` in place of an id that is not valid. Empty ids are skipped. `None` if there
    /// are more than [`READS_MAX`] ids.
    pub(crate) fn names(&self, scope: Scope<'_>) -> Option<Vec<Option<EntityRef>>> {
        let ids = scope.get(&self.ids);
        let ids = match &*ids {
            one @ Value::String(_) => std::slice::from_ref(one),
            Value::Array(ids) if ids.len() > READS_MAX => return None,
            Value::Array(ids) => ids,
            _ => &[],
        };
        let ids = ids.iter().filter_map(Value::as_str).filter(|id| !id.is_empty());
        Some(ids.map(|id| EntityRef::new(self.entity_type.as_str(), id).ok()).collect())
    }

    /// Their states, null for one that does not exist. Without an id there is one that does not exist.
    pub(super) fn states(&self, scope: Scope<'_>) -> Vec<Value> {
        let state_of = |name: &EntityRef| {
            let mut observed = scope.observed.iter();
            observed.find(|one| one.entity == *name).and_then(|one| one.state.as_deref())
        };
        // Too many were refused before.
        let names = self.names(scope).unwrap_or_default();
        let states = names.iter().map(|name| name.as_ref().and_then(state_of).into());
        if names.is_empty() { vec![Value::Null] } else { states.collect() }
    }
}

impl Guard {
    /// The other entities whose states it reads, each once.
    pub(in crate::spec) fn others(&self) -> Vec<OtherEntities> {
        let mut others: Vec<OtherEntities> = Vec::new();
        self.compared_states(&mut |other, _| {
            if !others.contains(other) {
                others.push(other.clone());
            }
        });
        others
    }

    /// Calls `see` with the other entities whose states it reads, and with each text that these are compared
    /// with, or none.
    pub fn compared_states(&self, see: &mut dyn FnMut(&OtherEntities, Option<&str>)) {
        self.compared(&mut |operand, texts| {
            let Operand::StateOf(others) = operand else { return };
            see(others, None);
            texts.iter().for_each(|text| see(others, text.as_str()));
        });
    }

    /// Calls `see` with each value that it compares, and the literals that this is compared with.
    pub(super) fn compared<'g>(&'g self, see: &mut dyn FnMut(&'g Operand, &'g [Value])) {
        match self {
            Self::Compare { left, right, .. } => {
                for (one, other) in [(left, right), (right, left)] {
                    match other {
                        Operand::Literal(value) => see(one, std::slice::from_ref(value)),
                        _ => see(one, &[]),
                    }
                }
            }
            Self::In { value, among } | Self::NotIn { value, among } => match among {
                Among::Literals(values) => see(value, values),
                Among::Named(_) => see(value, &[]),
            },
            Self::Not(inner) => inner.compared(see),
            Self::All(inner) | Self::Any(inner) => inner.iter().for_each(|one| one.compared(see)),
            Self::Constant(_) | Self::Empty(_) | Self::Is(_) => {}
        }
    }
}
