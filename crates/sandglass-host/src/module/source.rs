//! Where compiled code comes from: an engine that made it and can't run it, the folder that
//! keeps it, or the compiler.

use std::sync::atomic::AtomicBool;

use sandglass_model::{Clock, ModuleHash, Rejection};
use sandglass_telemetry::Metrics;
use wasmtime::component::Component;
use wasmtime::{Engine, Error, Module, Result};

use super::{component, core_module};
use crate::compiled_folder::{Code, CompiledFolder, Entry, Fresh, Kind};
use crate::compiling::{Compiler, Job};
use crate::sandbox::Metering;

/// The bytes of one module, and where its code may be already.
pub(super) struct Source<'a> {
    pub(super) engine: &'a Engine,
    /// Whether that engine counts fuel.
    pub(super) metering: Metering,
    pub(super) compiler: &'a Compiler,
    /// Set when the host shuts down.
    pub(super) closed: &'a AtomicBool,
    /// What another engine has made of them.
    pub(super) made: Option<&'a MadeElsewhere>,
    pub(super) folder: Option<&'a CompiledFolder>,
    pub(super) hash: ModuleHash,
    pub(super) binary: &'a [u8],
    /// What the compiler's time is told to.
    pub(super) metrics: &'a Metrics,
    pub(super) clock: &'a dyn Clock,
}

/// Code that is sound, of which its engine's pool has no room for an instance.
pub(crate) struct MadeElsewhere {
    entry: Entry,
    code: Code,
}

/// Why bytes are no module or component of an engine.
pub(super) enum NotMade {
    /// The compiler doesn't take them.
    NotCompiled(Rejection),
    /// They are too large for the engine's pool. An engine without one may take the code.
    TooLarge(Error, MadeElsewhere),
}

/// What code is, once it is compiled.
pub(super) trait Compiled: Sized {
    const KIND: Kind;

    fn of(code: &Code, engine: &Engine) -> Result<Self>;
}

impl Source<'_> {
    /// What the bytes are. They are compiled once, whatever pool they are too large for.
    ///
    /// # Errors
    /// They are none that the engine takes.
    pub(super) fn compiled<T: Compiled>(&self) -> Result<T, NotMade> {
        let entry = Entry::of(self.engine, self.hash, T::KIND);
        if let Some(made) = self.made.filter(|made| made.entry == entry)
            && let Ok(here) = T::of(&made.code, self.engine)
        {
            return Ok(here);
        }
        let kept = self.folder.and_then(|folder| folder.find(&entry));
        let code = match kept {
            Some(code) => code,
            None => self.compile::<T>(&entry).map_err(NotMade::NotCompiled)?,
        };
        // Code that is sound and of this engine's settings is refused for its size alone.
        T::of(&code, self.engine)
            .map_err(|error| NotMade::TooLarge(error, MadeElsewhere { entry, code }))
    }

    fn compile<T: Compiled>(&self, entry: &Entry) -> Result<Code, Rejection> {
        let Self { engine, metering, binary, closed, .. } = *self;
        let began = self.clock.now();
        let job = Job { engine, metering, kind: T::KIND, binary, closed };
        let code = self.compiler.compile(&job)?;
        self.metrics.module_compiled(self.clock.now().since(began));
        if let Some(folder) = self.folder {
            folder.keep(entry, &code);
        }
        Ok(code)
    }
}

/// Validates and compiles `binary` in this process, for as long and with as much memory as that
/// takes.
///
/// # Errors
/// It is not valid, uses what is off in this host, or is too large for the compiler.
pub(crate) fn compile_here(engine: &Engine, kind: Kind, binary: &[u8]) -> Result<Fresh, Rejection> {
    match kind {
        Kind::Module => Fresh::module_of(engine, binary)
            .map_err(|error| core_module::not_compiled(engine, binary, &error)),
        Kind::Component => Fresh::component_of(engine, binary)
            .map_err(|error| component::not_compiled(binary, &error)),
    }
}

impl Compiled for Module {
    const KIND: Kind = Kind::Module;

    fn of(code: &Code, engine: &Engine) -> Result<Self> {
        code.module(engine)
    }
}

impl Compiled for Component {
    const KIND: Kind = Kind::Component;

    fn of(code: &Code, engine: &Engine) -> Result<Self> {
        code.component(engine)
    }
}
