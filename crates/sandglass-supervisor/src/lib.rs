//! Runs untrusted work inside its deadline, whatever engine executes it.
//!
//! The modules in the order of one handler run:
//!
//! | step | modules |
//! |---|---|
//! | a caller describes the run and what its guest is granted | [`dispatch`], [`node`], [`manifest`], [`settings`], [`identities`], [`mod@file`] |
//! | it waits for a permit, and starts on a thread for guests | [`admission`], [`executor`] |
//! | its budget begins, and the ticker watches the deadline | [`deadline`], [`run`], [`run_clock`], [`ticker`], [`kernel`], [`live`], [`origin`] |
//! | the templates of its configuration are replaced | [`template`] |
//! | its guest calls host functions, which all pass the boundary | [`supervision`], [`boundary`], [`functions`], [`argument`] |
//! | a call with effects outside waits for the host's lease | [`lease`], [`parking`] |
//! | a call that waits is raced with the deadline | [`race`], [`panics`] |
//! | a guest with tasks goes on while its calls wait | [`in_flight`], [`suspended`] |
//! | a call does its work | [`capability`], [`secret`], [`text`] |
//! | what it keeps in memory is charged | [`host_memory`], [`mod@measured`] |
//! | it is counted, timed, traced and recorded | [`accounting`], [`present`], [`call_spans`], [`recording`] |
//! | people learn that the run takes long, and how it ended | [`notice`], [`cpu_time`], [`attribution`], [`rejection`] |
//!
//! Start with [`supervision`], the state of one run, and continue with [`boundary`], which decides at
//! every host call whether the run goes on.
//!
//! This crate never mentions Wasmtime, an ABI, or the states of an entity. Nothing here ends a guest
//! before its deadline has passed on the monotonic clock, and no built-in capability blocks a thread.

#![cfg_attr(
    not(feature = "network"),
    allow(dead_code, reason = "only the client of `network` sends requests, and it uses the rest")
)]

pub mod accounting;
pub mod admission;
pub mod argument;
pub mod attribution;
pub mod boundary;
pub mod call_spans;
pub mod capability;
pub mod cpu_time;
pub mod deadline;
pub mod dispatch;
pub mod executor;
pub mod file;
pub mod functions;
pub mod host_memory;
pub mod identities;
pub mod in_flight;
pub mod kernel;
pub mod lease;
pub mod live;
pub mod manifest;
pub mod measured;
pub mod node;
pub mod notice;
mod opaque;
pub mod origin;
pub mod panics;
pub mod parking;
pub mod present;
pub mod race;
pub mod recording;
pub mod rejection;
pub mod run;
pub mod run_clock;
pub mod secret;
pub mod settings;
pub mod supervision;
pub mod suspended;
mod sync;
pub mod template;
#[cfg(test)]
mod testing;
pub mod text;
pub mod ticker;
