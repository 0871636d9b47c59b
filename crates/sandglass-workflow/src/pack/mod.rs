//! Node packs: their manifests, and requirements that this host does not meet.

mod manifest;
mod requirement;

pub use manifest::{
    CANONICAL_NODE_PREFIX, Category, DEFAULT_ENTRY, MANIFEST_MAX_BYTES, MEMORY_PAGES_MAX, Manifest,
    PACK_NODES_MAX, PackNode, WasmLimits,
};
