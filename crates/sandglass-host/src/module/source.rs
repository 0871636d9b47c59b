//! Where compiled code comes from: an engine that made it and can't run it, the folder that
//! keeps it, or the compiler.

use sandglass_model::{Clock, ModuleHash};
use sandglass_telemetry::Metrics;
use wasmtime::component::Component;
use wasmtime::{Engine, Error, Module, Result};

use crate::compiled_folder::{CompiledFolder, Entry, Fresh, Genuine, Kind};

/// The bytes of one module, and where its code may be already.
pub(super) struct Source<'a> {
    pub(super) engine: &'a Engine,
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
    code: Found,
}

enum Found {
    Kept(Genuine),
    Fresh(Fresh),
}

/// Why bytes are no module or component of an engine.
pub(super) enum NotMade {
    /// The compiler doesn't take them.
    NotCompiled(Error),
    /// They are too large for the engine's pool. An engine without one may take the code.
    TooLarge(Error, MadeElsewhere),
}

/// What code is, once it is compiled.
pub(super) trait Compiled: Sized {
    const KIND: Kind;

    fn compile(engine: &Engine, binary: &[u8]) -> Result<Fresh>;
    fn of_fresh(code: &Fresh, engine: &Engine) -> Result<Self>;
    fn of_kept(code: &Genuine, engine: &Engine) -> Result<Self>;
}

impl Source<'_> {
    /// What the bytes are. They are compiled once, whatever pool they are too large for.
    ///
    /// # Errors
    /// They are none that the engine takes.
    pub(super) fn compiled<T: Compiled>(&self) -> Result<T, NotMade> {
        let entry = Entry::of(self.engine, self.hash, T::KIND);
        let of = |code: &Found| match code {
            Found::Kept(code) => T::of_kept(code, self.engine),
            Found::Fresh(code) => T::of_fresh(code, self.engine),
        };
        if let Some(made) = self.made.filter(|made| made.entry == entry)
            && let Ok(here) = of(&made.code)
        {
            return Ok(here);
        }
        let kept = self.folder.and_then(|folder| folder.find(&entry));
        let code = match kept {
            Some(code) => Found::Kept(code),
            None => Found::Fresh(self.compile::<T>(&entry).map_err(NotMade::NotCompiled)?),
        };
        // Code that is sound and of this engine's settings is refused for its size alone.
        of(&code).map_err(|error| NotMade::TooLarge(error, MadeElsewhere { entry, code }))
    }

    fn compile<T: Compiled>(&self, entry: &Entry) -> Result<Fresh> {
        let began = self.clock.now();
        let code = T::compile(self.engine, self.binary)?;
        self.metrics.module_compiled(self.clock.now().since(began));
        if let Some(folder) = self.folder {
            folder.keep(entry, &code);
        }
        Ok(code)
    }
}

impl Compiled for Module {
    const KIND: Kind = Kind::Module;

    fn compile(engine: &Engine, binary: &[u8]) -> Result<Fresh> {
        Fresh::module_of(engine, binary)
    }

    fn of_fresh(code: &Fresh, engine: &Engine) -> Result<Self> {
        code.module(engine)
    }

    fn of_kept(code: &Genuine, engine: &Engine) -> Result<Self> {
        code.module(engine)
    }
}

impl Compiled for Component {
    const KIND: Kind = Kind::Component;

    fn compile(engine: &Engine, binary: &[u8]) -> Result<Fresh> {
        Fresh::component_of(engine, binary)
    }

    fn of_fresh(code: &Fresh, engine: &Engine) -> Result<Self> {
        code.component(engine)
    }

    fn of_kept(code: &Genuine, engine: &Engine) -> Result<Self> {
        code.component(engine)
    }
}
