//! Runs untrusted work inside its deadline, whatever engine executes it.
//!
//! - [`admission`] decides when a handler may start, [`deadline`] how long it may run, and
//!   [`ticker`] wakes what must check the clock.
//! - [`boundary`] is what every host call passes: it ends the run when its deadline has passed, and
//!   counts, times, traces and records the call.
//! - [`capability`] is what guests may do, each capability written once, without an ABI.
//! - [`recording`] keeps the results of host calls, so that a run can be replayed.
//!
//! Nothing here knows Wasmtime, an ABI, or the states of an entity.

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
pub mod kernel;
pub mod live;
pub mod manifest;
pub mod measured;
pub mod node;
pub mod notice;
pub mod origin;
pub mod panics;
pub mod present;
pub mod race;
pub mod recording;
pub mod rejection;
pub mod run;
pub mod run_clock;
pub mod secret;
pub mod settings;
pub mod supervision;
pub mod text;
pub mod ticker;
