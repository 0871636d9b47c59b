//! Runs WASM integrations in Wasmtime, each inside its deadline.
//!
//! The host knows nothing of what an entity's states are; it is given a module,
//! a dispatch and a [`DispatchDeadline`], and answers an [`Outcome`] with a
//! [`RunReport`]. It can be used alone inside any actor runtime:
//!
//! ```
//! use std::time::Duration;
//! use sandglass_host::{Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, Settings};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::builder().settings(Settings { max_runs: 8, ..Settings::default() }).build()?;
//! let spins = host.load(
//!     br#"(module (memory (export "memory") 1)
//!          (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#,
//!     Manifest::named("spins"),
//! )?;
//! let dispatch = Dispatch::new("Session/1".parse()?, "Begin", Context::default())
//!     .deadline(DispatchDeadline::after(Duration::from_millis(20)));
//! match host.dispatch(&spins, dispatch).await? {
//!     Outcome::TimedOut(exceeded) => assert_eq!(exceeded.dying_span, "guest"),
//!     other => panic!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where things are: `boundary` is the one place where guests enter and leave the
//! host; `ticker` wakes what must look at the clock; `execution` is the life of
//! one run and `ending` what its end means; `capability` is what guests can ask for,
//! and `abi` how they ask; `recording` is what is kept of a run, and [`replay`] has it
//! again.

/// The version of Wasmtime that guests run in.
pub const ENGINE_VERSION: &str = "48.0.8";

mod abi;
mod boundary;
mod compiled_folder;
mod compiling;
mod detection;
mod ending;
mod error;
mod execution;
mod host;
mod host_function;
mod in_place;
pub mod inspection;
mod integration;
mod limiter;
mod mappings;
mod measured;
mod module;
mod pack;
pub mod replay;
mod sandbox;
mod store;
mod structure;
mod symbols;

pub use compiling::{CompileHelper, CompileLimits, compile_helper};
pub use detection::abi_of;
pub use error::{BuildError, Error};
pub use host::{Builder, Host};
pub use host_function::{
    HostCall, HostError, HostFunction, Json, Signature, Type as ValueType, Value as HostValue,
};
pub use integration::Integration;

pub use sandglass_model::{Allocation, Answered, Ask, AskError, Outcome, RunReport};
pub use sandglass_supervisor::admission::{Reservation, ReserveFor};
pub use sandglass_supervisor::capability::ask::Asks;
pub use sandglass_supervisor::capability::http::{
    DEADLINE_HEADER, Destination, Destinations, HttpClient, HttpError, InvalidDestination, Limits,
    Opened, Pieces, Request, Response, Scheme,
};
pub use sandglass_supervisor::capability::log::Level as LogLevel;
pub use sandglass_supervisor::capability::named_streams::Streams;
pub use sandglass_supervisor::capability::signal::{Signal, Signals};
pub use sandglass_supervisor::deadline::DispatchDeadline;
pub use sandglass_supervisor::dispatch::{CallLimits, Context, Dispatch};
pub use sandglass_supervisor::kernel::KernelFeatures;
pub use sandglass_supervisor::live::{LiveRuns, RunNow};
pub use sandglass_supervisor::manifest::{Abi, AskTarget, InvalidAskTarget, Manifest};
pub use sandglass_supervisor::node::{
    DESCRIBE_BUDGET, NodeAccess, NodeCall, NodeStatus, PACK_NAME_MAX_BYTES, PACK_NODES_MAX,
    PackDescription,
};
pub use sandglass_supervisor::present::Doing;
pub use sandglass_supervisor::recording::{KeepArguments, RecordingLimits};
pub use sandglass_supervisor::run::StopHandle;
pub use sandglass_supervisor::secret::{Answer, FixedSecrets, Secret, Secrets};
pub use sandglass_supervisor::settings::{MAX_FRAMES, Settings};
pub use sandglass_supervisor::ticker::TickerHealth;
pub use sandglass_supervisor::{file, manifest};
pub use structure::{Bound, structural_figures};
pub use symbols::frames_at;

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_that_is_told_is_the_one_that_runs() {
        let wanted = format!("wasmtime = {{ version = \"={}\"", super::ENGINE_VERSION);
        assert!(include_str!("../../../Cargo.toml").contains(&wanted), "{wanted}");
    }
}
