//! How the files are read that people write for the binary alone, for who tests that
//! with any text. It opens no file.

use std::path::Path;

use sandglass_source::{Diagnostic, Diagnostics};

use crate::{scenario, up};

/// All that is wrong in a scenario file.
#[must_use]
pub fn scenario(source: &str) -> Vec<Diagnostic> {
    let mut out = Diagnostics::new(source);
    scenario::written(source, Path::new(""), &mut out);
    out.finish()
}

/// All that is wrong in a configuration of the daemon.
#[must_use]
pub fn configuration(source: &str) -> Vec<Diagnostic> {
    up::configuration(source)
}
