//! The actions of other entities that an integration may ask for, and the signals that it may send
//! to them.

use std::fmt;
use std::str::FromStr;

use sandglass_model::id::{InvalidId, NAME_MAX_BYTES, check_name};

/// The wildcard for every action, or every signal, of a type.
const ANY: &str = "*";

/// An action that one type of entity may be asked for, or a signal that may be sent to it, written
/// `TYPE.NAME`; or all of them, written `TYPE.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskTarget {
    entity_type: String,
    /// `None`: all.
    name: Option<String>,
}

/// The text names neither an action nor a signal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAskTarget {
    /// It is not two names.
    #[error(
        "`{0}` names no action or signal of an entity type: write TYPE.NAME, or TYPE.* for all of them"
    )]
    NotTwoNames(String),
    /// One of the two is not a valid name.
    #[error(transparent)]
    InvalidName(#[from] InvalidId),
}

impl AskTarget {
    /// Whether `name` is an action or signal of entities of type `entity_type` that this allows.
    #[must_use]
    pub fn allows(&self, entity_type: &str, name: &str) -> bool {
        self.entity_type == entity_type
            && self.name.as_deref().is_none_or(|allowed| allowed == name)
    }
}

impl FromStr for AskTarget {
    type Err = InvalidAskTarget;

    fn from_str(text: &str) -> Result<Self, InvalidAskTarget> {
        let not_two = || {
            InvalidAskTarget::NotTwoNames(
                text.chars().take(40).flat_map(char::escape_debug).collect(),
            )
        };
        // Types of entities contain no dot in practice; names of actions and signals may.
        let (entity_type, name) = text.split_once('.').ok_or_else(not_two)?;
        if entity_type.contains(['*', '/']) || (name.contains('*') && name != ANY) {
            return Err(not_two());
        }
        check_name("entity type", entity_type, NAME_MAX_BYTES)?;
        check_name("action or signal", name, NAME_MAX_BYTES)?;
        let name = (name != ANY).then(|| name.to_owned());
        Ok(Self { entity_type: entity_type.to_owned(), name })
    }
}

impl fmt::Display for AskTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.entity_type, self.name.as_deref().unwrap_or(ANY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_allows_one_action_of_a_type_or_all() {
        let one: AskTarget = "Ledger.Reserve".parse().expect("a target");
        assert!(one.allows("Ledger", "Reserve"));
        assert!(!one.allows("Ledger", "Close") && !one.allows("ledger", "Reserve"));
        let all: AskTarget = "Ledger.*".parse().expect("a target");
        assert!(all.allows("Ledger", "Reserve") && all.allows("Ledger", "Close"));
        assert!(!all.allows("Session", "Reserve"));
        assert_eq!([one.to_string(), all.to_string()], ["Ledger.Reserve", "Ledger.*"]);
    }

    #[test]
    fn texts_that_name_no_action_of_a_type_are_rejected() {
        for bad in [
            "",
            "Ledger",
            ".Reserve",
            "Ledger.",
            "*.Reserve",
            "*",
            "Ledger.Re*",
            "a/b.C",
            "A.\u{1b}",
        ] {
            let error = bad.parse::<AskTarget>().expect_err(bad);
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
    }
}
