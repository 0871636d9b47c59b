//! Workflow definitions: nodes, edges, variables and channels, read from the protocol's JSON
//! and checked, so that a run of one needs no check of its form.

mod channel;
mod edge;
mod graph;
mod node;
mod reading;
mod settings;
mod variable;

use std::collections::BTreeMap;
use std::fmt;

use sandglass_model::Object;
use serde_json::Value;

pub use channel::{Access, Channel, Reducer};
pub use edge::{Edge, TriggerRule};
pub use graph::Graph;
pub(crate) use node::is_type_id;
pub use node::{Node, Port};
pub use settings::{ComplianceClass, OnCrash, Settings};
pub use variable::{Variable, VariableType};

use crate::problem::Problem;

/// Largest definition, in bytes: it is in memory as long as the host runs, and a run's journal
/// holds it once.
pub const DEFINITION_MAX_BYTES: usize = 1 << 20;
/// Most nodes of a definition: ten times what a run may execute by default.
pub const NODES_MAX: usize = 1_000;
/// Most edges of a definition: ten for each node.
pub const EDGES_MAX: usize = 10_000;
/// Most variables of a definition.
pub const VARIABLES_MAX: usize = 1_000;
/// Most channels of a definition.
pub const CHANNELS_MAX: usize = 1_000;
/// Most triggers, and most groups, of a definition.
pub const LISTED_MAX: usize = 1_000;
/// Most ports of a node: each is a value that its handler is given.
pub const PORTS_MAX: usize = 100;
/// Most expressions in a definition's ports and conditions. They may all be evaluated at one
/// end of a node.
pub const EXPRESSIONS_MAX: usize = 1_000;
/// Most `regex` conditions in a definition, for the same reason.
pub const REGEXES_MAX: usize = 100;
/// Longest id or name of a node, edge, variable, channel or port, and longest node type, in
/// bytes: short enough for events, spans and messages.
pub const ID_MAX_BYTES: usize = 256;
/// Longest id of a definition, in bytes; the protocol's.
pub const DEFINITION_ID_MAX_BYTES: usize = 128;
/// Longest name of a definition, in characters; the protocol's.
pub const DEFINITION_NAME_MAX_CHARS: usize = 256;
/// Longest text for people, such as a description, in bytes.
pub const PROSE_MAX_BYTES: usize = 64 << 10;

/// A workflow definition that has been read and checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Definition {
    /// Its id.
    pub id: String,
    /// What people call it.
    pub name: String,
    /// Its version, as its author counts.
    pub version: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// Its edges, in the order of the file.
    pub edges: Vec<Edge>,
    /// Its variables, in the order of the file.
    pub variables: Vec<Variable>,
    /// Its channels, by name.
    pub channels: BTreeMap<String, Channel>,
    /// How its runs are bounded.
    pub settings: Settings,
    /// What is said of it, as it was written.
    pub metadata: Object,
    /// How sensitive its runs are, by its metadata.
    pub compliance: ComplianceClass,
    /// A JSON Schema (2020-12) of what a run's `configurable` may hold, as it was written; it
    /// has not been checked.
    pub configurable_schema: Option<Value>,
    /// How its nodes hang together.
    pub graph: Graph,
    /// SHA-256 of the text that it was read from.
    pub digest: Digest,
    /// The same JSON without spaces and with the keys of each object in the order of their
    /// bytes. It reads as this definition, but for the digest.
    pub canonical: String,
}

/// A SHA-256, shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Definition {
    /// Reads a definition from its JSON.
    ///
    /// That nobody provides a node's type is no problem here.
    ///
    /// # Errors
    /// What is wrong with it, at least one problem and at most
    /// [`PROBLEMS_MAX`](crate::PROBLEMS_MAX), each with its place in the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        reading::definition(text)
    }

    /// The index of the node with this id.
    #[must_use]
    pub fn node(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }
}

impl Digest {
    /// That of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests;
