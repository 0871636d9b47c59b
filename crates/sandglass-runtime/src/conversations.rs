//! What the last ended session of each conversation leaves for the next one, of the same type and
//! tenant: it is in the journal, and here in memory, so that no search is needed. The journal lists
//! these sessions, so that a start reads them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_liveness::session::{conversation, left_for_conversation};
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{EntityRef, Position, Recovery, WallTime};

/// Conversations that are remembered; beyond them, the one whose session ended first is forgotten.
/// Each takes about 1 KB.
pub(crate) const CONVERSATIONS_MAX: usize = 10_000;

/// Type, tenant and value of the variable that holds the conversation.
type Key = (String, String, String);

/// The ended sessions of conversations.
#[derive(Debug, Default)]
pub(crate) struct Conversations(Mutex<Ended>);

#[derive(Debug, Default)]
struct Ended {
    last: BTreeMap<Key, Left>,
    by_end: BTreeMap<End, Key>,
}

/// When a session ended, as far as an order needs it. Positions order the sessions of one journal;
/// those of different partitions are ordered by time, so their first part is not zero.
pub(crate) type End = (WallTime, Position, EntityRef);

/// What a session has left.
#[derive(Debug)]
struct Left {
    entity: EntityRef,
    ended: End,
    /// Its last record then.
    position: Position,
    recovery: Arc<Recovery>,
}

impl Conversations {
    /// Notes that `entity`, whose last record is at `position`, has ended at `at`, if it is a session
    /// that belongs to a conversation. Returns the session that is not kept any more because of that, and
    /// its last record.
    pub(crate) fn note(
        &self,
        spec: &Spec,
        entity: &Entity,
        at: WallTime,
        position: Position,
    ) -> Option<(EntityRef, Position)> {
        let (value, recovery) = left_for_conversation(spec, entity)?;
        let key = key(entity, value);
        let end = (at, position, entity.entity.clone());
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = &mut *ended;
        // At a start, entities are read in the order of their names.
        if let Some(before) = ended.last.get(&key) {
            if before.ended >= end {
                return None;
            }
            ended.by_end.remove(&before.ended);
        }
        ended.by_end.insert(end.clone(), key.clone());
        let (entity_name, recovery) = (entity.entity.clone(), Arc::new(recovery));
        let left = Left { entity: entity_name, ended: end, position, recovery };
        let mut replaced = ended.last.insert(key, left);
        if ended.last.len() > CONVERSATIONS_MAX
            && let Some((_, first)) = ended.by_end.pop_first()
        {
            replaced = ended.last.remove(&first);
        }
        let replaced = replaced.filter(|left| left.entity != entity.entity)?;
        Some((replaced.entity, replaced.position))
    }

    /// Forgets what the entities have left of which `is_gone` holds.
    pub(crate) fn forget(&self, is_gone: impl Fn(&EntityRef) -> bool) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = &mut *ended;
        ended.last.retain(|_, left| !is_gone(&left.entity));
        ended.by_end.retain(|(_, _, entity), _| !is_gone(entity));
    }

    /// Whether what `entity` has left is kept for its conversation.
    pub(crate) fn is_kept(&self, spec: &Spec, entity: &Entity) -> bool {
        let Some(value) = conversation(spec, entity) else { return false };
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.last.get(&key(entity, value)).is_some_and(|left| left.entity == entity.entity)
    }

    /// What the last ended session of the conversation of `entity` has left; `None` if there is
    /// none.
    pub(crate) fn find(&self, spec: &Spec, entity: &Entity) -> Option<Arc<Recovery>> {
        let key = key(entity, conversation(spec, entity)?);
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.last.get(&key).map(|left| Arc::clone(&left.recovery))
    }
}

fn key(entity: &Entity, value: String) -> Key {
    (entity.entity.entity_type().to_owned(), entity.tenant.clone(), value)
}
