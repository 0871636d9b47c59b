//! What guests of Sandglass are written with: the WIT package in `wit/`, and its
//! Rust bindings.
//!
//! A handler is a type that implements [`Guest`]:
//!
//! ```
//! use sandglass_guest::{Completion, DispatchContext, Failure, Guest, clock, log};
//!
//! struct Echo;
//!
//! impl Guest for Echo {
//!     fn handle(context: DispatchContext) -> Result<Completion, Failure> {
//!         log::write(log::Level::Info, &format!("{} ms left", clock::deadline_remaining_ms()));
//!         Ok(Completion { action: Some("Finish".into()), params: context.trigger_params })
//!     }
//! }
//!
//! sandglass_guest::export!(Echo);
//! ```
//!
//! Built as a `cdylib` for `wasm32-wasip2`, it is a component that Sandglass runs.

#[allow(
    missing_docs,
    unsafe_code,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::undocumented_unsafe_blocks,
    reason = "generated: every function of the host is foreign, and described in wit/"
)]
#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        world: "integration",
        path: "wit",
        pub_export_macro: true,
        default_bindings_module: "sandglass_guest::bindings",
    });
}

pub use bindings::sandglass::integration::{
    ask, clock, context, fail, http, log, metrics, progress, scratch, secrets, spans, types,
};
pub use bindings::{Completion, DispatchContext, Failure, Guest, export};
pub use types::TypedFailure;
