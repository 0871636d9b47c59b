//! What guests of Sandglass are written with in Rust.
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
//! # What it is built for
//! | target | what comes out |
//! |---|---|
//! | `wasm32-unknown-unknown`, `wasm32-wasip1` | a core module, of the ABI in `docs/guest-abi.md` |
//! | `wasm32-wasip2` | a component, of the WIT package in `wit/` |
//! | the first two, with the feature `component` | what `wasm-tools component new` makes a component of |
//! | any other | nothing that a host could run: for unit tests, with `testing` in the host's place |
//!
//! The API is the same on each. What a core module can't know is said where it matters:
//! the headers of a response, and the kind of an HTTP error.
//!
//! # The deadline
//! A handler has a budget, which begins before it is instantiated. Once it has passed, the
//! run ends, wherever the handler is: in its own code, at the start or the end of a
//! function of this crate, or waiting in one. Nothing of it runs afterwards, no destructor
//! either, and its entity takes the action that the integration declares as `on_timeout`.
//! So no function of this crate has an error for the deadline. What the host warns of
//! beforehand is the *soft* deadline: see [`deadline::should_stop`].
//!
//! # Panics
//! A panic ends the run as a trap, after its message and place were logged as an error.
//! No function of this crate panics, unless its documentation says so.

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
pub mod spans;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

pub use completion::{Answer, Completion, IntoCompletion};
pub use context::Context;
pub use failure::Failure;
pub use host_error::HostError;
pub use sandglass_guest_macros::handler;
pub use serde_json::{Value, json};

#[cfg(all(target_family = "wasm", any(target_env = "p2", feature = "component")))]
pub use backend::bindings;

/// The snippets of the guide, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guests/rust.md")]
mod guide {}

/// For what the macros make; no part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use crate::glue::*;
    pub use serde;
}
