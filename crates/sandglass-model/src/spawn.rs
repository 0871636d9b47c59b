//! Entities that a transition of another entity creates, and how a record names that transition.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Object;
use crate::id::{EntityRef, Incarnation, Sequence};
use crate::named::named;
use crate::trace::TraceContext;

/// An entity that a transition spawns. It is created once the transition is durable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    /// Its number within the transition, from 0.
    pub index: u32,
    /// The entity to create.
    pub entity: EntityRef,
    /// Its first action, if it takes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The parameters of that action.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub params: Object,
    /// The parent's field that its id is stored in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_in: Option<String>,
    /// The span of the parent's transition.
    pub trace: TraceContext,
}

/// The transition that spawned an entity, which identifies the spawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnedBy {
    /// The entity that took the transition.
    pub parent: EntityRef,
    /// Distinguishes this life of the parent from others of the same name.
    pub incarnation: Incarnation,
    /// The parent's sequence after the transition.
    pub sequence: Sequence,
    /// The number of the spawn within the transition.
    pub index: u32,
    /// Why the entity did not take its first action, if it refused that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_refused: Option<String>,
}

named! {
    /// Why an entity is not spawned.
    SpawnObstacle {
        /// An entity of this name exists already.
        Exists = "exists",
        /// There is no spec of its type.
        UnknownType = "unknown_type",
        /// Too many spawned entities of the tenant have something to do, or too many first actions in a
        /// row have spawned entities.
        TooMany = "too_many",
        /// The journal will never take its records.
        NotRecorded = "not_recorded",
    }
}

/// An entity that cannot be spawned, so that the action that would spawn it is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unspawnable {
    /// The entity.
    pub entity: EntityRef,
    /// Why.
    pub reason: SpawnObstacle,
}

/// How a spawn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpawnResult {
    /// The entity exists.
    Created {
        /// Why it did not take its first action, if it refused that.
        action_refused: Option<String>,
    },
    /// It was not created.
    Refused(SpawnObstacle),
}

impl SpawnedBy {
    /// Whether `other` names the same spawn.
    #[must_use]
    pub fn is_same_spawn(&self, other: &Self) -> bool {
        let key = |by: &Self| (by.incarnation, by.sequence, by.index);
        key(self) == key(other) && self.parent == other.parent
    }

    /// The incarnation of the entity, derived from that of its parent.
    #[must_use]
    pub fn derive_incarnation(&self) -> Incarnation {
        let digest = digest(b"incarnation", self.incarnation, self.sequence, self.index);
        Incarnation::derived(digest)
    }
}

/// A UUID (version 8) for the entity that is spawned as number `index` of the transition to `sequence`
/// of an entity's `incarnation`. A replay derives the same one.
#[must_use]
pub fn spawn_uuid(incarnation: Incarnation, sequence: Sequence, index: u32) -> String {
    let digest = digest(b"uuid", incarnation, sequence, index);
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

fn digest(what: &[u8], incarnation: Incarnation, sequence: Sequence, index: u32) -> [u8; 32] {
    let hash = Sha256::new().chain_update(b"spawn/").chain_update(what);
    let hash = hash.chain_update(incarnation.as_bytes());
    let hash = hash.chain_update(sequence.0.to_be_bytes()).chain_update(index.to_be_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_spawn_has_ids_of_its_own_that_are_derived_again() {
        let (one, two) = (Incarnation::from_bytes([1; 16]), Incarnation::from_bytes([2; 16]));
        let keys = [(one, 1, 0), (one, 1, 1), (one, 2, 0), (two, 1, 0)];
        let ids = keys.map(|(incarnation, sequence, index)| {
            let sequence = Sequence(sequence);
            let parent = "Parent/1".parse().expect("a name");
            let by = SpawnedBy { parent, incarnation, sequence, index, action_refused: None };
            assert_eq!(by.derive_incarnation(), by.derive_incarnation());
            (spawn_uuid(incarnation, sequence, index), by.derive_incarnation())
        });
        let uuids: BTreeSet<_> = ids.iter().map(|(uuid, _)| uuid).collect();
        let incarnations: BTreeSet<_> = ids.iter().map(|(_, incarnation)| incarnation).collect();
        assert_eq!((uuids.len(), incarnations.len()), (keys.len(), keys.len()));
        // Records have them, so they stay as they are.
        assert_eq!(ids[0].0, "b91958f6-ef7f-8dbb-88f8-6507eeb0f6c1");
        for uuid in uuids {
            let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(parts, [8, 4, 4, 4, 12], "{uuid}");
            assert!(
                uuid.as_bytes()[14] == b'8' && b"89ab".contains(&uuid.as_bytes()[19]),
                "{uuid}"
            );
        }
    }
}
