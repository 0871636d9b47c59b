//! The readers of files that people write for the binary alone, for tests that feed them any text.
//! They open no file.

use std::path::Path;

use sandglass_source::{Diagnostic, Diagnostics};

use crate::{scenario, up};

/// The diagnostics of a scenario file.
#[must_use]
pub fn scenario(source: &str) -> Vec<Diagnostic> {
    let mut out = Diagnostics::new(source);
    scenario::written(source, Path::new(""), &mut out);
    out.finish()
}

/// The diagnostics of a configuration of the daemon.
#[must_use]
pub fn configuration(source: &str) -> Vec<Diagnostic> {
    up::configuration(source)
}
