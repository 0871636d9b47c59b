//! Which states guards have read of other entities.

use std::collections::BTreeMap;

use sandglass_liveness::Entity;
use sandglass_model::{DEFAULT_TENANT, EntityRef, Event, Observed};

use super::Finding;
use crate::invariant::Invariant;

/// How long a decision may take from its first read until its record is durable, in milliseconds: a disk may
/// be slow, or fail for a while.
const DECIDING_MAX_MS: i64 = 60_000;

#[derive(Debug)]
struct Life {
    tenant: String,
    created_ms: i64,
    /// When it was last in each state; `None` if it is now.
    left_ms: BTreeMap<String, Option<i64>>,
}

/// The states that each entity has had.
#[derive(Debug, Default)]
pub(super) struct Reads(BTreeMap<EntityRef, Life>);

impl Reads {
    /// Checks the next record of `name`, which is `reader` before it.
    pub(super) fn record(
        &mut self,
        name: &EntityRef,
        reader: Option<&Entity>,
        event: &Event,
        now_ms: i64,
    ) -> Finding {
        let tenant = reader.map_or(DEFAULT_TENANT, |reader| &*reader.tenant);
        let mut observed = event.observed().iter();
        let is_false = |one: &&Observed| !self.is_true(one, tenant, now_ms);
        let found = observed.find(is_false).map(|one| format!("{name} has read: {one}"));
        match event {
            Event::Created { state, tenant, .. } => {
                let tenant = tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.to_owned());
                let left_ms = BTreeMap::from([(state.clone(), None)]);
                self.0.insert(name.clone(), Life { tenant, created_ms: now_ms, left_ms });
            }
            Event::Transition { from, to, .. } => {
                if let Some(life) = self.0.get_mut(name) {
                    life.left_ms.insert(from.clone(), Some(now_ms));
                    life.left_ms.insert(to.clone(), None);
                }
            }
            _ => {}
        }
        found.map(|what| (Invariant::TrueReads, what))
    }

    fn is_true(&self, observed: &Observed, tenant: &str, now_ms: i64) -> bool {
        let life = self.0.get(&observed.entity).filter(|life| life.tenant == tenant);
        let is_recent = |at_ms: i64| now_ms.saturating_sub(at_ms) <= DECIDING_MAX_MS;
        match (life, &observed.state) {
            (Some(life), Some(state)) => {
                life.left_ms.get(state).is_some_and(|left| left.is_none_or(is_recent))
            }
            (Some(life), None) => is_recent(life.created_ms),
            (None, state) => state.is_none(),
        }
    }
}
