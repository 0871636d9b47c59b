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
    /// Their names, at most one more than may be read; `None` for an id that is not valid. Empty ids are
    /// skipped.
    pub(crate) fn names(&self, scope: Scope<'_>) -> Vec<Option<EntityRef>> {
        let ids = scope.get(&self.ids);
        let ids = match &*ids {
            one @ Value::String(_) => std::slice::from_ref(one),
            Value::Array(ids) => ids,
            _ => &[],
        };
        let ids = ids.iter().filter_map(Value::as_str).filter(|id| !id.is_empty());
        let names = ids.map(|id| EntityRef::new(self.entity_type.as_str(), id).ok());
        names.take(READS_MAX + 1).collect()
    }

    /// Their states, null for one that does not exist. Without an id there is one that does not exist.
    pub(super) fn states(&self, scope: Scope<'_>) -> Vec<Value> {
        let state_of = |name: &EntityRef| {
            let mut observed = scope.observed.iter();
            observed.find(|one| one.entity == *name).and_then(|one| one.state.as_deref())
        };
        let names = self.names(scope);
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
        let mut compare = |operand: &Operand, texts: &[Value]| {
            let Operand::StateOf(others) = operand else { return };
            see(others, None);
            texts.iter().for_each(|text| see(others, text.as_str()));
        };
        match self {
            Self::Compare { left, right, .. } => {
                for (one, other) in [(left, right), (right, left)] {
                    match other {
                        Operand::Literal(text) => compare(one, std::slice::from_ref(text)),
                        _ => compare(one, &[]),
                    }
                }
            }
            Self::In { value, among } | Self::NotIn { value, among } => match among {
                Among::Literals(texts) => compare(value, texts),
                Among::Named(_) => compare(value, &[]),
            },
            Self::Not(inner) => inner.compared_states(see),
            Self::All(inner) | Self::Any(inner) => {
                inner.iter().for_each(|one| one.compared_states(see));
            }
            Self::Constant(_) | Self::Empty(_) | Self::Is(_) => {}
        }
    }
}
