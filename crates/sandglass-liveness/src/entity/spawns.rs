//! What an entity knows of spawns: those of its own that have not ended, and the one that created it.

use std::sync::Arc;

use sandglass_model::{EntityRef, Sequence, Spawn, SpawnedBy};
use serde_json::{Value, json};

use super::Entity;

impl Entity {
    /// Adds an entity that it spawns, whose id is stored in a field unless it has such a variable.
    pub(super) fn apply_spawning(&mut self, spawn: &Spawn) {
        if spawn.stored_in.as_ref().is_some_and(|name| !self.variables.contains_key(name)) {
            self.fields = self.fields.after_spawn(spawn);
        }
        self.spawning.insert((self.sequence, spawn.index), Arc::new(spawn.clone()));
    }

    /// The entities that it spawns and that are not known to exist yet, with the sequence of the
    /// transition that spawns each, in the order of their records.
    pub fn spawning(&self) -> impl ExactSizeIterator<Item = (Sequence, &Arc<Spawn>)> {
        self.spawning.iter().map(|((sequence, _), spawn)| (*sequence, spawn))
    }

    /// The spawn with this number of the transition to `spawned_at`, until it has ended.
    #[must_use]
    pub fn spawn(&self, spawned_at: Sequence, index: u32) -> Option<&Arc<Spawn>> {
        self.spawning.get(&(spawned_at, index))
    }

    /// Whether no handler is queued or in flight, and no entity that it spawns is still to be created.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.is_settled() && self.spawning.is_empty()
    }

    /// The transition of another entity that created it, if one did.
    #[must_use]
    pub fn spawned_by(&self) -> Option<&SpawnedBy> {
        self.spawned_by.as_deref()
    }

    /// How the entity that `spawn`, of its transition to `spawned_at`, creates names that spawn.
    #[must_use]
    pub fn origin_of(&self, spawned_at: Sequence, spawn: &Spawn) -> SpawnedBy {
        SpawnedBy {
            parent: self.entity.clone(),
            incarnation: self.incarnation,
            sequence: spawned_at,
            index: spawn.index,
            action_refused: None,
        }
    }
}

/// The fields by which an entity that `parent` spawns knows its parent.
pub(crate) fn parent_fields(parent: &EntityRef) -> [(String, Value); 3] {
    let own_key = format!("{}_id", snake_case(parent.entity_type()));
    [
        ("parent_type".to_owned(), json!(parent.entity_type())),
        ("parent_id".to_owned(), json!(parent.id())),
        (own_key, json!(parent.id())),
    ]
}

/// `name` in snake case: each capital letter but the first character begins a word.
fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 8);
    for (index, letter) in name.char_indices() {
        match letter {
            'A'..='Z' if index > 0 => snake.extend(['_', letter.to_ascii_lowercase()]),
            '-' | ' ' => snake.push('_'),
            _ => snake.push(letter.to_ascii_lowercase()),
        }
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_type_of_a_parent_is_a_key_in_snake_case() {
        for (name, snake) in
            [("Order", "order"), ("OrderLine", "order_line"), ("my-Job x", "my__job_x"), ("Ä", "Ä")]
        {
            assert_eq!(snake_case(name), snake);
        }
    }
}
