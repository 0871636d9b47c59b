//! An entity as text, so that it need not be folded from its first record each time. It is not a
//! record: if it cannot be used, the records lead to the same entity.

use serde::{Deserialize, Serialize};

use super::Entity;

/// The version of the text. Other versions are not used: an entity may have had other fields, or
/// been folded differently.
pub const SNAPSHOT_VERSION: u32 = 4;
/// Largest snapshot, in bytes: the largest variables, and as much again for fields and all else.
pub const SNAPSHOT_MAX_BYTES: usize = 2 << 20;

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    entity: &'a Entity,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Deserialize)]
struct Read {
    entity: Entity,
}

/// Why a snapshot cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// Another version of Sandglass wrote it.
    #[error("it has version {0}, and this one knows {SNAPSHOT_VERSION}")]
    Version(u32),
    /// It is not a snapshot.
    #[error("it can't be read: {0}")]
    Unreadable(String),
}

impl Entity {
    /// The entity as text; `None` while it is not at rest, and if it exceeds
    /// [`SNAPSHOT_MAX_BYTES`].
    #[must_use]
    pub fn to_snapshot(&self) -> Option<String> {
        let written = Written { version: SNAPSHOT_VERSION, entity: self };
        let text = self.is_at_rest().then(|| serde_json::to_string(&written).ok()).flatten();
        text.filter(|text| text.len() <= SNAPSHOT_MAX_BYTES)
    }

    /// Reads what [`Entity::to_snapshot`] wrote.
    ///
    /// # Errors
    /// It is not a snapshot, or of another version.
    pub fn of_snapshot(text: &str) -> Result<Self, Unusable> {
        let unreadable = |error: serde_json::Error| Unusable::Unreadable(error.to_string());
        match serde_json::from_str(text).map_err(unreadable)? {
            Version { version: SNAPSHOT_VERSION } => {}
            Version { version } => return Err(Unusable::Version(version)),
        }
        let Read { entity } = serde_json::from_str(text).map_err(unreadable)?;
        Ok(entity)
    }
}
