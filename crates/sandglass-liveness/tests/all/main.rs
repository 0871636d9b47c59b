//! What the crate promises to its users: specs, decisions and replays.

mod decisions;
mod generated;
mod idle;
mod replays;
mod session;
mod specs;
