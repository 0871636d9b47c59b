//! Where modules are validated and compiled: in this process, or in a child process that is killed at
//! its limits. Compiling one module can take minutes and gigabytes, whatever its size, so hosts of
//! untrusted modules choose the child process.

mod child;
mod helper;
mod limits;
mod message;
mod turns;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sandglass_model::{Rejection, RejectionKind};
use serde::{Deserialize, Serialize};
use wasmtime::Engine;

use crate::compiled_folder::Code;
use crate::module::Kind;
use crate::sandbox::Target;
use sandglass_supervisor::rejection::rejection;

pub use helper::compile_helper;
pub(crate) use turns::{Turn, Turns};

/// Modules that are compiled at the same time. More would only take more memory, because the compiler
/// uses several cores for one module.
pub(crate) const AT_ONCE: usize = 4;

/// How many of these one tenant may have, so that slow modules of one leave turns for others.
const AT_ONCE_PER_TENANT: usize = 2;

/// Threads of one helper. Each compiles a function, which takes memory, so this keeps the necessary
/// memory limit independent of the machine's cores.
const THREADS_MAX: usize = 4;

/// Limits on compiling one module in a [`CompileHelper`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompileLimits {
    /// Longest time from the start of the process to its result. 60 s by default; a Python interpreter
    /// of 18 MB takes about 5 s.
    pub timeout: Duration,
    /// The most memory that the process may write to, in bytes. 2 GiB by default. Below
    /// [`CompileLimits::MEMORY_MIN_BYTES`] hardly any module compiles.
    pub memory_bytes: u64,
}

impl CompileLimits {
    /// Memory that compiling a small module takes, with some to spare, in bytes.
    pub const MEMORY_MIN_BYTES: u64 = 64 << 20;

    /// The longest timeout that makes sense: a day.
    pub const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
}

impl Default for CompileLimits {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(60), memory_bytes: 2 << 30 }
    }
}

/// A program that validates and compiles one module, in a process of its own. Its `main` calls
/// [`compile_helper`]; it must be built from the same sources as the host.
#[derive(Clone, Debug)]
pub struct CompileHelper {
    program: PathBuf,
    arguments: Vec<OsString>,
    limits: CompileLimits,
    /// Size from which modules are first compiled by the baseline compiler, in bytes.
    baseline_from: u64,
}

impl CompileHelper {
    /// The program at `program`, started with `arguments`, without the environment of this process,
    /// and with [`CompileLimits::default`]. If it cannot be started, loading a module fails with
    /// [`RejectionKind::HostUnavailable`].
    #[must_use]
    pub fn new(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Self {
        let arguments = arguments.into_iter().map(Into::into).collect();
        Self {
            program: program.into(),
            arguments,
            limits: CompileLimits::default(),
            baseline_from: u64::MAX,
        }
    }

    /// The program of this process itself, started with `arguments`, which must lead it to
    /// [`compile_helper`]. It is the program that runs now, also if an upgrade has replaced its
    /// file on disk.
    #[must_use]
    pub fn this_program(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self::new("/proc/self/exe", arguments)
    }

    /// Sets the limits on compiling one module.
    #[must_use]
    pub fn limits(self, limits: CompileLimits) -> Self {
        Self { limits, ..self }
    }

    /// Modules of at least `bytes` bytes begin with code of Wasmtime's baseline compiler (Winch), unless
    /// optimized code is kept ([`Settings::compiled_cache_dir`](crate::Settings::compiled_cache_dir)). It is
    /// compiled in a fourth to a sixth of the time, and is slower. What the baseline compiler lacks
    /// (exceptions, tail calls, some vector instructions), what has a fuel limit or more than 64 MiB of
    /// memory, and modules of which a function has more than 128 bulk instructions on memories, are compiled
    /// with optimizations. By default, every module is.
    ///
    /// This is for developers who wait for their own guests. The baseline compiler has had more errors that
    /// let guests leave their sandbox than the optimizing one, and a guest that executes many bulk
    /// instructions in a row ends up to about a second after its deadline. So do not use it for guests that
    /// you do not trust. (Any author can make a module large.)
    #[must_use]
    pub fn baseline_from(self, bytes: u64) -> Self {
        Self { baseline_from: bytes, ..self }
    }
}

/// Where the modules of a host are compiled.
#[derive(Clone, Debug, Default)]
pub(crate) enum Compiler {
    /// This process, on the thread that loads the module.
    #[default]
    InProcess,
    Helper(CompileHelper),
}

/// The turns of one host.
pub(crate) fn turns() -> Arc<Turns> {
    Turns::new(AT_ONCE, AT_ONCE_PER_TENANT)
}

/// One module to compile.
pub(crate) struct Job<'a> {
    /// The engine that it is compiled for.
    pub(crate) engine: &'a Engine,
    /// What that engine executes.
    pub(crate) target: Target,
    pub(crate) kind: Kind,
    pub(crate) binary: &'a [u8],
    /// Set when the host shuts down, to kill a helper.
    pub(crate) closed: &'a AtomicBool,
}

impl Compiler {
    /// Whether `bytes` are enough to begin with baseline code.
    pub(crate) fn begins_with_baseline(&self, bytes: &[u8]) -> bool {
        match self {
            Self::InProcess => false,
            Self::Helper(helper) => bytes.len() as u64 >= helper.baseline_from,
        }
    }

    /// Validates and compiles a module.
    ///
    /// # Errors
    /// It is not valid, uses what is off here, or takes more than the limits allow.
    pub(crate) fn compile(&self, job: &Job<'_>) -> Result<Code, Rejection> {
        match self {
            Self::InProcess => {
                let code = crate::module::compile_here(job.engine, job.kind, job.binary)?;
                Code::of(code).map_err(|error| {
                    let message = format!("failed to store the module's code in memory: {error}");
                    rejection(RejectionKind::HostUnavailable, message)
                })
            }
            Self::Helper(helper) => child::compile(helper, job),
        }
    }
}
