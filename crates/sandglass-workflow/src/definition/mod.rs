//! Workflow definitions: nodes, edges, variables and channels. They are checked when they are read from
//! the protocol's JSON, so that runs need not check them.

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
pub(crate) use node::TYPE_ID;
pub use node::{Node, Port};
pub use settings::{ComplianceClass, OnCrash, Settings};
pub use variable::{Variable, VariableType};

use crate::document;
use crate::problem::Problem;

/// Largest definition, in bytes: it stays in memory while the host runs, and the journal of a run
/// contains it once.
pub const DEFINITION_MAX_BYTES: usize = 1 << 20;
/// Most nodes of a definition: ten times as many as a run may execute by default.
pub const NODES_MAX: usize = 1_000;
/// Most edges of a definition: ten for each node.
pub const EDGES_MAX: usize = 10_000;
/// Most variables of a definition.
pub const VARIABLES_MAX: usize = 1_000;
/// Most channels of a definition.
pub const CHANNELS_MAX: usize = 1_000;
/// Most triggers, and most groups, of a definition.
pub const LISTED_MAX: usize = 1_000;
/// Most ports of a node: each is a value that its handler receives.
pub const PORTS_MAX: usize = 100;
/// Most expressions in a definition's ports and conditions. All of them may have to be evaluated when
/// one node ends.
pub const EXPRESSIONS_MAX: usize = 1_000;
/// Most `regex` conditions in a definition, for the same reason.
pub const REGEXES_MAX: usize = 100;
/// Longest id or name of a node, edge, variable, channel or port, and longest node type, in
/// bytes: short enough for events, spans and messages.
pub const ID_MAX_BYTES: usize = 256;
/// Longest id of a definition, in bytes; the protocol's limit.
pub const DEFINITION_ID_MAX_BYTES: usize = 128;
/// Longest name of a definition, in characters; the protocol's limit.
pub const DEFINITION_NAME_MAX_CHARS: usize = 256;
/// Longest text for people, such as a description, in bytes.
pub const PROSE_MAX_BYTES: usize = 64 << 10;

/// A workflow definition that has been read and checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Definition {
    /// Its id.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// Its version, in the numbering of its author.
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
    /// The limits of its runs.
    pub settings: Settings,
    /// Its metadata, as written.
    pub metadata: Object,
    /// How sensitive the data of its runs is, by its metadata.
    pub compliance: ComplianceClass,
    /// A JSON Schema (2020-12) of `configurable` of its runs, as written; it was not checked.
    pub configurable_schema: Option<Value>,
    /// Its edges as a graph.
    pub graph: Graph,
    /// The SHA-256 of the text that it was read from.
    pub digest: Digest,
    /// The JSON without spaces and with the keys of each object in byte order. Reading it returns this
    /// definition, but for the digest.
    pub canonical: String,
}

/// A SHA-256, shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Definition {
    /// Reads a definition from its JSON.
    ///
    /// Whether a pack provides the types of its nodes is not checked here.
    ///
    /// # Errors
    /// The definition is invalid: at least one problem and at most
    /// [`PROBLEMS_MAX`](crate::PROBLEMS_MAX), each with its place in the text.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        document::parse(text, DEFINITION_MAX_BYTES, "the definition", |fields, value| {
            reading::definition(fields, value, text)
        })
    }

    /// The index of the node with this id.
    #[must_use]
    pub fn node(&self, id: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.id == id)
    }
}

impl Digest {
    /// The digest of `bytes`.
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
pub(crate) mod tests;
