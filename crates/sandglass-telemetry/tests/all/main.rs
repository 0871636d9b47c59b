//! The crate's public face.
