//! Definitions and manifests as authors write them, and events as records contain them.

mod definitions;
mod events;
mod pointers;
