//! The effects by which entities of a generated spec spawn others.

use crate::dice::Dice;

/// The effects that spawn entities.
#[derive(Clone, Debug)]
pub(super) struct Spawns {
    /// Those of the actions `Spawn0`, `Spawn1` and so on, which the entity takes only if requested, or as
    /// its first action.
    pub(super) requested: Vec<String>,
    /// That of a success; may be empty, as the following ones. Their ids come from a short list, so that
    /// an entity does not spawn others forever.
    pub(super) on_success: String,
    /// That of a failure.
    pub(super) on_failure: String,
    /// That of timers.
    pub(super) on_timer: String,
}

impl Spawns {
    pub(super) fn generate(types: usize, dice: &Dice) -> Self {
        Self {
            requested: (0..2).map(|_| Self::effects(types, dice)).collect(),
            on_success: Self::known(types, dice),
            on_failure: Self::known(types, dice),
            on_timer: Self::known(types, dice),
        }
    }

    /// One entity with an id of a short list; in three of ten cases none.
    fn known(types: usize, dice: &Dice) -> String {
        let action = *dice.pick(&["Touch", "Go0", "Start0"]);
        let id = dice.below(6);
        let spawn = format!("\"spawn('Kind{}', '{action}', note, 'x{id}')\"", dice.below(types));
        if dice.per_mille(300) { String::new() } else { spawn }
    }

    /// One or two entities, with new ids, ids that a request gives, or ids that others have.
    fn effects(types: usize, dice: &Dice) -> String {
        let one = |_| {
            let kind = dice.below(types);
            let id = dice.below(6);
            // Entities with new ids start no handlers, whose guests would ask for further ones, and spawn
            // no others: a world could have tens of thousands.
            let action = if id < 4 { "Touch" } else { *dice.pick(&["Touch", "Go1", "Start0"]) };
            let id = match id {
                0 | 1 => "{uuid}".to_owned(),
                2 | 3 => "text".to_owned(),
                4 => {
                    return format!(
                        "\"spawn('Kind{kind}', '{action}', note, 'e{}')\"",
                        dice.below(8)
                    );
                }
                _ => {
                    return format!(
                        "\"spawn('Kind{kind}', '{action}', note, 'x{}')\"",
                        dice.below(6)
                    );
                }
            };
            let action = format!(", initial_action = \"{action}\", copy_fields = \"note\"");
            let action = if dice.per_mille(800) { action } else { String::new() };
            format!(
                "{{ type = \"spawn\", entity_type = \"Kind{kind}\", entity_id_source = \"{id}\", \
                 store_id_in = \"note\"{action} }}"
            )
        };
        let spawns: Vec<String> = (0..1 + dice.below(2)).map(one).collect();
        format!("\"emit Spawns\", {}", spawns.join(", "))
    }
}
