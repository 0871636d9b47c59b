//! What the crate promises to its users: specs, decisions and replays.

mod asks;
mod bounds;
mod decisions;
mod effects;
mod generated;
mod handlers;
mod hostile;
mod idle;
mod instants;
mod keys;
mod others;
mod replays;
mod retention;
mod retries;
mod session;
mod sessions;
mod spawns;
mod specs;
mod versions;
