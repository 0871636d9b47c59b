//! What guests of Sandglass are written with: the WIT package in `wit/`, and its
//! Rust bindings.
