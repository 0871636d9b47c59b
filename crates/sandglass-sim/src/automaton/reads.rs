//! The guards by which entities of a generated spec read others.

use std::fmt::Write as _;

use crate::dice::Dice;

/// What guards read: the state of one entity, which may not exist, be of another tenant, or read this one.
#[derive(Clone, Debug)]
pub(super) struct Reads {
    peer: String,
    guard: String,
    /// Whether successes depend on it, too.
    pub(super) guards_success: bool,
}

impl Reads {
    pub(super) fn generate(types: usize, dice: &Dice) -> Self {
        // Most hold for most states, because a refusal is no record of what was read.
        let condition =
            *dice.pick(&["in ['S0', 'S1']", "not in ['S1', 'T0']", "!= 'T1'", "!= 'T0'"]);
        Self {
            peer: format!("e{}", dice.below(4)),
            guard: format!("Kind{}[peer].status {condition}", dice.below(types)),
            guards_success: dice.per_mille(300),
        }
    }

    /// The variable with the id.
    pub(super) fn write_variable(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "[[state]]\nname = \"peer\"\ntype = \"string\"\ninitial = \"{}\"", self.peer)
    }

    /// The line of an action.
    pub(super) fn guard(&self) -> String {
        format!("guard = \"{}\"\n", self.guard)
    }
}
