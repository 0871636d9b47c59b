//! Where compiled code comes from: the folder that keeps it, or the compiler.

use sandglass_model::ModuleHash;
use wasmtime::component::Component;
use wasmtime::{Engine, Module, Result};

use crate::compiled_folder::{CompiledFolder, Entry, Fresh, Genuine, Kind};

/// The bytes of one module, and where its code may be already.
pub(super) struct Source<'a> {
    pub(super) engine: &'a Engine,
    pub(super) folder: Option<&'a CompiledFolder>,
    pub(super) hash: ModuleHash,
    pub(super) binary: &'a [u8],
}

/// What code is, once it is compiled.
pub(super) trait Compiled: Sized {
    const KIND: Kind;

    fn compile(engine: &Engine, binary: &[u8]) -> Result<Self>;
    fn revive(code: &Genuine, engine: &Engine) -> Result<Self>;
    fn fresh(&self) -> Result<Fresh>;
}

impl Source<'_> {
    /// What the bytes are.
    ///
    /// # Errors
    /// They are none that the engine takes.
    pub(super) fn compiled<T: Compiled>(&self) -> Result<T> {
        let Some(folder) = self.folder else { return T::compile(self.engine, self.binary) };
        let entry = Entry::of(self.engine, self.hash, T::KIND);
        let revive = |code: Genuine| T::revive(&code, self.engine).ok();
        // Code that is sound and can't be revived is too large for this engine's pool, which
        // the compiler says better.
        if let Some(revived) = folder.find(&entry).and_then(revive) {
            return Ok(revived);
        }
        let made = T::compile(self.engine, self.binary)?;
        match made.fresh() {
            Ok(code) => folder.keep(&entry, &code),
            Err(error) => tracing::warn!("compiled code can't be had as bytes: {error:#}"),
        }
        Ok(made)
    }
}

impl Compiled for Module {
    const KIND: Kind = Kind::Module;

    fn compile(engine: &Engine, binary: &[u8]) -> Result<Self> {
        Self::new(engine, binary)
    }

    fn revive(code: &Genuine, engine: &Engine) -> Result<Self> {
        code.module(engine)
    }

    fn fresh(&self) -> Result<Fresh> {
        Fresh::of_module(self)
    }
}

impl Compiled for Component {
    const KIND: Kind = Kind::Component;

    fn compile(engine: &Engine, binary: &[u8]) -> Result<Self> {
        Self::from_binary(engine, binary)
    }

    fn revive(code: &Genuine, engine: &Engine) -> Result<Self> {
        code.component(engine)
    }

    fn fresh(&self) -> Result<Fresh> {
        Fresh::of_component(self)
    }
}
