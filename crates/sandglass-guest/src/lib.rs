//! The Rust SDK for guests of Sandglass.
//!
//! A guest is a `cdylib` with one handler:
//!
//! ```
//! use std::time::Duration;
//!
//! use sandglass_guest::{Context, Failure, deadline, handler, http, log};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize)]
//! struct Input {
//!     city: String,
//! }
//!
//! #[derive(Deserialize, Serialize)]
//! struct Forecast {
//!     rain_mm: f64,
//! }
//!
//! #[handler(action = "Finish")]
//! fn forecast(input: Input, context: &Context) -> Result<Forecast, Failure> {
//!     if deadline::remaining() < Duration::from_secs(1) {
//!         return Err(Failure::typed("budget", "too_little_left").retryable());
//!     }
//!     let service = context.required_config("service")?;
//!     log::info!("asking {service} for {}", input.city);
//!     let response = http::Request::get(format!("{service}/{}", input.city))
//!         .header("accept", "application/json")
//!         .send()?;
//!     Ok(response.error_for_status()?.json()?)
//! }
//! ```
//!
//! # Targets
//! | target | result |
//! |---|---|
//! | `wasm32-unknown-unknown`, `wasm32-wasip1` | a core module with the ABI in `docs/guest-abi.md` |
//! | `wasm32-wasip2` | a component with the WIT package in `wit/` |
//! | `wasm32-wasip2` with the feature `async` | an asynchronous component with the WIT package in `wit-0.2/` |
//! | the first two, with the feature `component` or `async` | a module that `wasm-tools component new` converts into a component |
//! | any other | nothing that a host can run: for unit tests, with `testing` in place of the host |
//!
//! The API is the same on each, and a handler may be an `async fn`: with the feature `async`, it can have
//! several calls in flight, and without it they are made one after another. The documentation of an item states what a core module cannot
//! see: the headers of a response, and the kind of an HTTP error.
//!
//! # The deadline
//! A handler has a time budget, which starts before its guest is instantiated. When the budget is
//! used up, the host kills the handler, wherever it is: in its own code, at the start or the end of a function
//! of this crate, or waiting in one. None of its code runs afterwards, not even a destructor, and its entity
//! takes the action that the integration declares as `on_timeout`. So no function of this crate
//! returns an error for the deadline. The host warns of it by the *soft* deadline: see
//! [`deadline::should_stop`].
//!
//! # Panics
//! A panic ends the handler with a trap, after its message and location are logged as an error.
//! Functions of this crate panic only if their documentation says so.

mod backend;
mod completion;
mod context;
mod failure;
mod glue;
mod host_error;

pub mod ask;
pub mod clock;
pub mod deadline;
pub mod http;
pub mod log;
pub mod metrics;
pub mod progress;
pub mod scratch;
pub mod secrets;
pub mod signal;
pub mod spans;
#[cfg(not(target_family = "wasm"))]
pub mod testing;
#[cfg(any(not(target_family = "wasm"), feature = "async", target_os = "wasi"))]
pub mod timer;

pub use completion::{Completion, HandlerResult, IntoCompletion};
pub use context::Context;
pub use failure::Failure;
pub use host_error::HostError;
pub use sandglass_guest_macros::handler;
pub use serde_json::{Value, json};

#[cfg(all(
    target_family = "wasm",
    any(target_env = "p2", feature = "component", feature = "async")
))]
pub use backend::bindings;

/// Compiles and runs the snippets of the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guests/rust.md")]
mod guide {}

/// For the code that the macros generate; not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::glue::*;
    pub use serde;
}
