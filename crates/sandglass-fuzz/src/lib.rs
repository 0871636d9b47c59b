//! Fuzz targets: each passes arbitrary bytes to code that reads untrusted input, and panics if the
//! code breaks a promise. No target is part of the binary.
//!
//! A promise holds for every input: nothing panics; a refusal has a message with a location and
//! without control characters; accepted input reads as the same value again after it was written.

mod promise;
mod target;

/// Code that reads untrusted input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target, which is also that of the folder of its corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

impl Target {
    /// Passes `input` to the code.
    ///
    /// # Panics
    /// The code broke a promise.
    pub fn run(&self, input: &[u8]) {
        (self.run)(input);
    }

    /// The target with this name; `None` if no target has it.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "configuration", run: target::files::configuration },
    Target { name: "event", run: target::event::read },
    Target { name: "guard", run: target::spec::guard },
    Target { name: "guest", run: target::guest::run },
    Target { name: "inspection", run: target::inspection::read },
    Target { name: "journal", run: target::journal::read },
    Target { name: "json", run: target::json::read },
    Target { name: "literals", run: target::literals::read },
    Target { name: "manifest", run: target::files::manifest },
    Target { name: "mutant", run: target::mutant::run },
    Target { name: "pack", run: target::pack::run },
    Target { name: "scenario", run: target::files::scenario },
    Target { name: "smith", run: target::smith::run },
    Target { name: "spec", run: target::spec::read },
    Target { name: "symbols", run: target::symbols::resolve },
    Target { name: "workflow", run: target::workflow::read },
];
