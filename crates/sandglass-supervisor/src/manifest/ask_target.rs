//! The actions of other entities that an integration may ask for.

use std::fmt;
use std::str::FromStr;

use sandglass_model::id::{InvalidId, NAME_MAX_BYTES, check_name};

/// The wildcard for every action of a type.
const ANY: &str = "*";

/// An action of one type of entity that may be asked for, written `TYPE.ACTION`,
/// or every action of that type, written `TYPE.*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AskTarget {
    entity_type: String,
    /// None: every action.
    action: Option<String>,
}

/// The text does not name an action to ask for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAskTarget {
    /// It is not two names.
    #[error(
        "`{0}` names no action of an entity type: write TYPE.ACTION, or TYPE.* for all of them"
    )]
    NotTwoNames(String),
    /// One of the two is not a valid name.
    #[error(transparent)]
    InvalidName(#[from] InvalidId),
}

impl AskTarget {
    /// Whether `action` of an entity of type `entity_type` may be asked for.
    #[must_use]
    pub fn allows(&self, entity_type: &str, action: &str) -> bool {
        self.entity_type == entity_type
            && self.action.as_deref().is_none_or(|allowed| allowed == action)
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
        // Types of entities contain no dot in practice; actions may.
        let (entity_type, action) = text.split_once('.').ok_or_else(not_two)?;
        if entity_type.contains(['*', '/']) || (action.contains('*') && action != ANY) {
            return Err(not_two());
        }
        check_name("entity type", entity_type, NAME_MAX_BYTES)?;
        check_name("action", action, NAME_MAX_BYTES)?;
        let action = (action != ANY).then(|| action.to_owned());
        Ok(Self { entity_type: entity_type.to_owned(), action })
    }
}

impl fmt::Display for AskTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.entity_type, self.action.as_deref().unwrap_or(ANY))
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
