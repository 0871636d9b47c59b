//! Where compiled code comes from: an engine that compiled it and cannot run it, the folder that
//! keeps it, or the compiler.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use sandglass_model::{Clock, Rejection, RejectionKind};
use sandglass_supervisor::rejection::{in_a_line, rejection};
use sandglass_telemetry::Metrics;
use wasmtime::component::Component;
use wasmtime::{Engine, Error, Module, Result};

use super::{Kind, NotCompiled, needs_too_much};
use crate::compiled_folder::{Code, CompiledFolder, Entry, Fresh};
use crate::compiling::{Compiler, Job};
use crate::sandbox::Target;

/// Where code may be already, what compiles it otherwise, and where the compiler's time is counted.
#[derive(Clone, Copy)]
pub(crate) struct Compiling<'a> {
    pub(crate) compiler: &'a Compiler,
    /// Set when the host shuts down.
    pub(crate) closed: &'a AtomicBool,
    /// What was compiled of the same bytes for an engine that cannot run it.
    pub(crate) compiled_before: Option<&'a CompiledBefore>,
    pub(crate) folder: Option<&'a CompiledFolder>,
    pub(crate) metrics: &'a Metrics,
    pub(crate) clock: &'a dyn Clock,
}

/// The bytes of one module, and how to get their code.
pub(super) struct Source<'a> {
    pub(super) engine: &'a Engine,
    /// What that engine executes.
    pub(super) target: Target,
    pub(super) entry: Entry,
    pub(super) binary: &'a [u8],
    /// Their code, if they were compiled before.
    pub(super) kept: Option<Arc<Code>>,
    pub(super) compiling: Compiling<'a>,
}

/// Valid code, for an instance of which its engine's pool has no room.
pub(crate) struct CompiledBefore {
    entry: Entry,
    code: Arc<Code>,
}

impl Compiling<'_> {
    /// The code of `entry`, if it was compiled before.
    pub(super) fn find(&self, entry: &Entry) -> Option<Arc<Code>> {
        let before = self.compiled_before.filter(|before| before.entry == *entry);
        before
            .map(|before| Arc::clone(&before.code))
            .or_else(|| self.folder?.find(entry).map(Arc::new))
    }
}

/// What Wasmtime makes of code.
pub(super) trait Loaded: Sized {
    const KIND: Kind;

    fn load(code: &Code, engine: &Engine) -> Result<Self>;
}

impl Source<'_> {
    /// Loads the code of the bytes. They are compiled once, even if they are too large for the pool
    /// of this engine.
    ///
    /// # Errors
    /// The engine does not run them.
    pub(super) fn load<T: Loaded>(&self) -> Result<T, NotCompiled> {
        let code = match &self.kept {
            Some(code) => Arc::clone(code),
            None => Arc::new(self.compile(T::KIND)?),
        };
        // Valid code with this engine's settings is refused for no reason but its size.
        T::load(&code, self.engine).map_err(|error| {
            let rejection = needs_too_much(T::KIND, &error);
            NotCompiled::TooLargeForSlot(rejection, CompiledBefore { entry: self.entry, code })
        })
    }

    fn compile(&self, kind: Kind) -> Result<Code, Rejection> {
        let Self { engine, target, binary, compiling, .. } = *self;
        let began = compiling.clock.now();
        let job = Job { engine, target, kind, binary, closed: compiling.closed };
        let code = compiling.compiler.compile(&job)?;
        compiling.metrics.module_compiled(compiling.clock.now().since(began));
        if let Some(folder) = compiling.folder {
            folder.keep(&self.entry, &code);
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
    Fresh::compile(engine, kind, binary).map_err(|error| not_compiled(engine, kind, binary, error))
}

/// Distinguishes a module that is not valid from one that uses a feature that is off here, and from
/// one that is too large for the compiler.
fn not_compiled(engine: &Engine, kind: Kind, binary: &[u8], error: Error) -> Rejection {
    let is_valid_elsewhere = is_valid_with_all_features(binary);
    let (is_invalid, error) = match kind {
        Kind::CoreModule => match Module::validate(engine, binary) {
            Err(invalid) => (true, invalid),
            Ok(()) => (false, error),
        },
        Kind::Component => {
            (!is_valid_elsewhere || error.is::<wasmparser::BinaryReaderError>(), error)
        }
    };
    let (rejected_as, what) = match (is_invalid, is_valid_elsewhere) {
        (false, _) => return needs_too_much(kind, &error),
        (true, true) => {
            let what = "uses a WebAssembly feature that is off in this host";
            (RejectionKind::UnsupportedModule, what)
        }
        (true, false) => (RejectionKind::InvalidModule, "is not valid"),
    };
    rejection(rejected_as, format!("{kind} {what}: {}", in_a_line(&format!("{error:#}"))))
}

fn is_valid_with_all_features(binary: &[u8]) -> bool {
    wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all())
        .validate_all(binary)
        .is_ok()
}

impl Loaded for Module {
    const KIND: Kind = Kind::CoreModule;

    fn load(code: &Code, engine: &Engine) -> Result<Self> {
        code.module(engine)
    }
}

impl Loaded for Component {
    const KIND: Kind = Kind::Component;

    fn load(code: &Code, engine: &Engine) -> Result<Self> {
        code.component(engine)
    }
}
