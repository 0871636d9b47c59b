//! The host functions, with one backend for each kind of target. All backends have the same functions
//! with the same signatures, so the rest of the crate does not depend on the target.

#[cfg(all(
    target_family = "wasm",
    any(target_env = "p2", feature = "component", feature = "async")
))]
mod component;
#[cfg(all(target_family = "wasm", feature = "async"))]
pub use component::block_on;
#[cfg(all(
    target_family = "wasm",
    any(target_env = "p2", feature = "component", feature = "async")
))]
pub(crate) use component::*;
#[cfg(all(
    target_family = "wasm",
    any(target_env = "p2", feature = "component", feature = "async")
))]
pub use component::{bindings, run};

#[cfg(all(
    target_family = "wasm",
    not(any(target_env = "p2", feature = "component", feature = "async"))
))]
mod core_module;
#[cfg(all(
    target_family = "wasm",
    not(any(target_env = "p2", feature = "component", feature = "async"))
))]
pub use core_module::run;
#[cfg(all(
    target_family = "wasm",
    not(any(target_env = "p2", feature = "component", feature = "async"))
))]
pub(crate) use core_module::*;

#[cfg(not(target_family = "wasm"))]
mod native;
#[cfg(not(target_family = "wasm"))]
pub(crate) use native::*;

/// Where calls of host functions return when they have their result, the guest's thread sleeps.
#[cfg(all(target_os = "wasi", not(feature = "async")))]
#[allow(clippy::disallowed_methods, reason = "sleeping is its purpose")]
pub(crate) async fn sleep(duration: std::time::Duration) {
    std::thread::sleep(duration);
}
