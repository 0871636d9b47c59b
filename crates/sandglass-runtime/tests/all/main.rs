//! What the crate promises to its users, in virtual time and with scripted
//! handlers: days pass in milliseconds.

mod adopting;
mod asks;
mod context;
mod creations;
mod disk;
mod driven;
mod endings;
mod faults;
mod folder;
mod guests;
mod incident;
mod keys;
mod modules;
mod others;
mod partitions;
mod pruning;
mod quota;
mod reads;
mod real;
mod requests;
mod restarts;
mod retries;
mod sessions;
mod signals;
mod sleep;
mod slots;
mod snapshots;
mod spawns;
mod starts;
mod telemetry;
mod versions;
mod world;
