//! What the last ended session of each conversation leaves for the next one, of the same type and
//! tenant: it is in the journal, and here in memory, so that no search is needed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_liveness::session::{conversation, left_for_conversation};
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{Position, Recovery};

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
    last: BTreeMap<Key, (Position, Arc<Recovery>)>,
    by_position: BTreeMap<Position, Key>,
}

impl Conversations {
    /// Notes that `entity`, whose last record is at `position`, has ended, if it is a session that
    /// belongs to a conversation.
    pub(crate) fn note(&self, spec: &Spec, entity: &Entity, position: Position) {
        let Some((value, recovery)) = left_for_conversation(spec, entity) else { return };
        let key = key(entity, value);
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = &mut *ended;
        // At a start, entities are read in the order of their names.
        if let Some((before, _)) = ended.last.get(&key) {
            if *before >= position {
                return;
            }
            ended.by_position.remove(before);
        }
        ended.by_position.insert(position, key.clone());
        ended.last.insert(key, (position, Arc::new(recovery)));
        if ended.last.len() > CONVERSATIONS_MAX
            && let Some((_, first)) = ended.by_position.pop_first()
        {
            ended.last.remove(&first);
        }
    }

    /// What the last ended session of the conversation of `entity` has left; `None` if there is
    /// none.
    pub(crate) fn find(&self, spec: &Spec, entity: &Entity) -> Option<Arc<Recovery>> {
        let key = key(entity, conversation(spec, entity)?);
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.last.get(&key).map(|(_, recovery)| Arc::clone(recovery))
    }
}

fn key(entity: &Entity, value: String) -> Key {
    (entity.entity.entity_type().to_owned(), entity.tenant.clone(), value)
}
