//! Definitions and manifests of packs, as authors write them.

mod definitions;
mod events;
mod pointers;
