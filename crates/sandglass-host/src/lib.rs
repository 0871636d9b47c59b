//! Executes WebAssembly integrations in Wasmtime, each within a deadline.
//!
//! A [`Host`] loads modules as integrations and executes dispatches of them. Every dispatch gets a new
//! instance of its module, a time budget, and only what the [`Manifest`] of its integration grants. It
//! ends on time, even if the guest spins, waits in a host call or is being instantiated; and its
//! [`RunReport`] states what the guest was doing, where its time went, and which host calls it made.
//! The host knows nothing of the states of entities, so it can be used alone in any actor runtime.
//!
//! ```no_run
//! use std::time::Duration;
//! use sandglass_host::{Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::builder().build()?;
//! let module = std::fs::read("charge_card.wasm")?;
//! let integration = host.load(&module, Manifest::named("charge-card"))?;
//!
//! let dispatch = Dispatch::new("Order/7".parse()?, "Charge", Context::default())
//!     .deadline(DispatchDeadline::after(Duration::from_secs(30)));
//! match host.dispatch(&integration, dispatch).await? {
//!     Outcome::Completed(completion) => println!("result: {}", completion.result),
//!     Outcome::TimedOut(exceeded) => println!("killed in `{}`", exceeded.dying_span),
//!     Outcome::Failed(failure) => println!("the guest failed: {}", failure.message),
//!     other => println!("{other:?}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What a guest does, including a trap or an overrun, is an [`Outcome`]. An [`Error`] means that the
//! host could not do its work. [`HostFunction`] adds functions of your own, and [`replay`] executes a
//! recorded handler again.
//!
//! # Modules
//! | module | what it owns |
//! |---|---|
//! | `host` | the [`Host`]: building, loading, admission of dispatches, shutdown |
//! | `execution`, `ending` | the life of one handler run, and the outcome of its end |
//! | `boundary` | the one place where guests enter and leave the host |
//! | `abi` | the host functions of each ABI (`env`, WASI, the WIT world, packs of nodes), and the calls of handlers |
//! | `host_function`, `evaluation` | the embedder's own functions, and what decides specs that guests pass |
//! | `store`, `limiter`, `measured` | the state of one handler run, its memory limit, and the measure of its host memory |
//! | `module`, `detection`, `structure` | what a module is, whether it fits its ABI, and bounds on its structure |
//! | `compiling`, `compiled_folder` | compiling in a child process, and keeping code on disk |
//! | `sandbox`, `mappings` | the configuration of Wasmtime, and the memory mappings that it takes |
//! | `symbols` | names, files and lines of backtraces |
//! | [`inspection`], [`replay`] | describing a module without compiling it, and replaying a recording |
//!
//! What needs no Wasmtime (deadlines, the ticker, capabilities, manifests, recordings) is in
//! `sandglass-supervisor`; this crate exports what embedders need of it.

/// The version of Wasmtime that executes guests.
pub const ENGINE_VERSION: &str = "48.0.8";

mod abi;
mod boundary;
mod compiled_folder;
mod compiling;
mod detection;
mod ending;
mod error;
mod evaluation;
mod execution;
mod host;
mod host_function;
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
pub use evaluation::{SpecEvaluator, SpecQuery};
pub use host::{Builder, Host};
pub use host_function::{
    HostCall, HostError, HostFunction, Json, Signature, Type as ValueType, Value as HostValue,
};
pub use integration::Integration;

pub use sandglass_model::{
    Allocation, Answered, Ask, AskError, EntitySignal, Failure, FailureKind, Outcome, RunReport,
    SignalError, TypedFailure,
};
pub use sandglass_supervisor::admission::{Reservation, ReserveFor};
pub use sandglass_supervisor::capability::ask::Asks;
pub use sandglass_supervisor::capability::http::{
    DEADLINE_HEADER, Destination, Destinations, HttpCall, HttpClient, HttpError,
    InvalidDestination, Limits, Opened, Pieces, Request, Response, Scheme,
};
pub use sandglass_supervisor::capability::log::Level as LogLevel;
pub use sandglass_supervisor::capability::named_streams::Streams;
pub use sandglass_supervisor::capability::signal::{Signal, Signals};
pub use sandglass_supervisor::deadline::DispatchDeadline;
pub use sandglass_supervisor::dispatch::{
    CONTEXT_KEYS, CallLimits, Context, Dispatch, DispatchLimits,
};
pub use sandglass_supervisor::kernel::KernelFeatures;
pub use sandglass_supervisor::lease::Lease;
pub use sandglass_supervisor::live::{LiveRuns, RunNow};
pub use sandglass_supervisor::manifest::{Abi, AskTarget, InvalidAskTarget, Manifest, OnDenied};
pub use sandglass_supervisor::node::{
    DESCRIBE_BUDGET, NodeAccess, NodeCall, NodeStatus, PACK_NAME_MAX_BYTES, PACK_NODES_MAX,
    PackDescription,
};
pub use sandglass_supervisor::origin::CallOrigin;
pub use sandglass_supervisor::present::Doing;
pub use sandglass_supervisor::recording::{KeepArguments, RecordingLimits};
pub use sandglass_supervisor::run::StopHandle;
pub use sandglass_supervisor::secret::{Answer, FixedSecrets, GrantedSecrets, Secret, Secrets};
pub use sandglass_supervisor::settings::{MAX_FRAMES, Settings};
pub use sandglass_supervisor::template::{TemplateKind, replace_fields, templates};
pub use sandglass_supervisor::ticker::TickerHealth;
pub use sandglass_supervisor::{file, manifest};
pub use structure::{Bound, structural_figures};
pub use symbols::frames_at;

#[cfg(test)]
mod tests {
    #[test]
    fn the_engine_version_is_that_of_the_dependency() {
        let wanted = format!("wasmtime = {{ version = \"={}\"", super::ENGINE_VERSION);
        assert!(include_str!("../../../Cargo.toml").contains(&wanted), "{wanted}");
    }
}
