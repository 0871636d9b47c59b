//! All figures of one run: as JSON for scripts, and as lines for people.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::figure::Figure;
use crate::key::Key;
use crate::machine::Machine;

/// What was measured, and where.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order in which they were measured.
    pub figures: Vec<(Key, Figure)>,
    /// On what.
    pub machine: Machine,
    /// Whether little was measured of each.
    pub quick: bool,
}

/// One object: each figure under its key, `machine`, and `quick`.
impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.figures.len() + 2))?;
        for (key, figure) in &self.figures {
            map.serialize_entry(key.name(), figure)?;
        }
        map.serialize_entry("machine", &self.machine)?;
        map.serialize_entry("quick", &self.quick)?;
        map.end()
    }
}
