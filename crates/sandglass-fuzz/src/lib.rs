//! Fuzz targets: each gives any bytes to something that reads what others write, and
//! panics where a promise about that is broken. It is no part of the binary.
//!
//! A promise holds for every input: nothing panics, what was refused is told with its
//! place and without control characters, and what was accepted reads as itself again.

mod promise;
mod target;

/// Something that reads what others write.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of the folder of its corpus.
    pub name: &'static str,
    run: fn(&[u8]),
}

impl Target {
    /// Has it read `input`.
    ///
    /// # Panics
    /// It broke a promise.
    pub fn run(&self, input: &[u8]) {
        (self.run)(input);
    }

    /// The target of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
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
