//! The invocation of an OpenWOP node, as a caller passes it to the host, and the description of a pack.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capability::log::Level;

/// How long a pack may take to describe itself, besides the wait for a permit: enough for the
/// initialization of a language runtime, and a few calls that return constants.
pub const DESCRIBE_BUDGET: Duration = Duration::from_secs(5);

/// Most nodes of a pack.
pub const PACK_NODES_MAX: u32 = 256;

/// Longest name of a pack, and of a node's type, in bytes.
pub const PACK_NAME_MAX_BYTES: u32 = 256;

/// One invocation of a node of a pack ([`Dispatch::node`](crate::dispatch::Dispatch::node)).
#[derive(Clone)]
pub struct NodeCall {
    /// The node of the pack, from 0, in the order of [`PackDescription::node_types`].
    pub index: u32,
    /// The request: JSON, which the node gets unchanged.
    pub request: Vec<u8>,
    /// What the node reads and writes outside of itself.
    pub access: Arc<dyn NodeAccess>,
    /// What the bytes of `openwop_random` are derived from: block `n` of 32 bytes, from 0, is
    /// the SHA-256 of the seed and of `n` as 8 bytes in little-endian. The same seed gives the
    /// same bytes.
    pub seed: [u8; 32],
}

impl fmt::Debug for NodeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCall")
            .field("index", &self.index)
            .field("request_bytes", &self.request.len())
            .field("access", &self.access)
            .finish_non_exhaustive()
    }
}

/// What a node can reach outside of itself: the channels and variables of its workflow run, and
/// interrupts. Threads that run guests call these functions, so they must not block. Replays do not
/// call them.
pub trait NodeAccess: Send + Sync + fmt::Debug {
    /// The value of the channel called `name` (at most 1,024 bytes); `None` if there is none, or the node
    /// may not read it.
    fn channel_read(&self, name: &str) -> Option<Value>;

    /// Writes `value` to the channel called `name`.
    fn channel_write(&self, name: &str, value: Value) -> NodeStatus;

    /// The variable called `key`; `None` if there is none.
    fn variable_get(&self, key: &str) -> Option<Value>;

    /// Sets the variable called `key`.
    fn variable_set(&self, key: &str, value: Value) -> NodeStatus;

    /// The value that has resolved the interrupt with this payload, an object. If it is `None`, the
    /// invocation ends as suspended.
    fn interrupt(&self, payload: &Value) -> Option<Value>;

    /// Takes a line of the node's log, of at most 8 KiB; called for its first 10,000 lines, which the
    /// host logs as well.
    fn log(&self, level: Level, message: &str);
}

/// What a write to a channel or a variable returns to the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// It is written.
    Ok = 0,
    /// The node may not write to that channel.
    ChannelAccessDenied = 1,
    /// The value is not valid.
    ValidationError = 10,
    /// There is nothing of that name.
    NotFound = 11,
    /// A bound is exceeded.
    CapabilityBreach = 20,
    /// The host failed.
    HostError = 99,
}

impl NodeStatus {
    /// The number in the ABI.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }
}

/// Access to nothing.
#[derive(Debug)]
pub struct NoAccess;

impl NodeAccess for NoAccess {
    fn channel_read(&self, _: &str) -> Option<Value> {
        None
    }

    fn channel_write(&self, _: &str, _: Value) -> NodeStatus {
        NodeStatus::ChannelAccessDenied
    }

    fn variable_get(&self, _: &str) -> Option<Value> {
        None
    }

    fn variable_set(&self, _: &str, _: Value) -> NodeStatus {
        NodeStatus::NotFound
    }

    fn interrupt(&self, _: &Value) -> Option<Value> {
        None
    }

    fn log(&self, _: Level, _: &str) {}
}

/// The description of a pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackDescription {
    /// The version of its ABI: 1.
    pub abi_version: u32,
    /// Its name.
    pub name: String,
    /// The types of its nodes, each once, by their index; at most [`PACK_NODES_MAX`].
    pub node_types: Vec<String>,
}

/// What the guest of a dispatch does.
#[derive(Debug, Default)]
pub enum Work {
    /// It runs its handler once.
    #[default]
    Handle,
    /// It invokes a node of the pack.
    Invoke(NodeCall),
    /// It describes the pack.
    Describe,
}
