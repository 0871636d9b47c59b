//! The effects by which entities of a generated spec spawn others.

use crate::dice::Dice;

/// The effects that spawn entities.
#[derive(Clone, Debug)]
pub(super) struct Spawns {
    /// Those of the actions `Spawn0`, `Spawn1` and so on, which the entity takes only if requested, or as
    /// its first action.
    pub(super) requested: Vec<String>,
    /// Those of a success; may be empty, as the following ones.
    pub(super) on_success: String,
    /// Those of a failure.
    pub(super) on_failure: String,
    /// Those of timers.
    pub(super) on_timer: String,
}

impl Spawns {
    /// `multiplies` says whether an entity may spawn several with new ids by itself.
    pub(super) fn generate(types: usize, multiplies: bool, dice: &Dice) -> Self {
        let following = || Self::following(types, multiplies, dice);
        Self {
            requested: (0..2).map(|_| Self::requested(types, dice)).collect(),
            on_success: following(),
            on_failure: following(),
            on_timer: following(),
        }
    }

    /// What an entity spawns by itself: in three of ten cases nothing, in two of ten, if `multiplies`, two
    /// entities with new ids, and else one with an id of a short list. The two are alike: if only one of
    /// them spawned others, each could spawn the next one forever, and not be too many.
    fn following(types: usize, multiplies: bool, dice: &Dice) -> String {
        let action = *dice.pick(&["Touch", "Go0", "Start0", "Spawn0"]);
        let kind = dice.below(types);
        let one = |id: &str| format!("\"spawn('Kind{kind}', '{action}', note, '{id}')\"");
        match dice.below(10) {
            0..=2 => String::new(),
            3 | 4 if multiplies => [one("{uuid}"), one("{uuid}")].join(", "),
            _ => one(&format!("x{}", dice.below(6))),
        }
    }

    /// One or two entities, with new ids, ids that a request gives, or ids that others have.
    fn requested(types: usize, dice: &Dice) -> String {
        let one = |_| {
            let kind = dice.below(types);
            // A first action that spawns again leads to as many entities as it may.
            let again = dice.per_mille(60);
            let action = if again { "Spawn0" } else { *dice.pick(&["Touch", "Go1", "Start0"]) };
            let id = match dice.below(6) {
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
