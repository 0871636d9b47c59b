//! The host as an embedder sees it.

mod admitting;
mod asking;
mod batches;
mod bounds;
mod compiling;
mod dispatching;
mod embedder;
mod embedder_component;
mod end_points;
mod fixtures;
mod http;
mod in_place;
mod inspecting;
mod kernel;
mod live;
mod loading;
mod manifest;
mod packs;
mod replaying;
mod secrets;
mod server;
mod simulated;
mod streams;
mod structure;
mod telemetry;
mod time;
