//! The flags about the compilation of modules, and the hidden command that compiles one in a process
//! of its own.

use std::path::PathBuf;
use std::time::Duration;

use sandglass_host::{CompileHelper, CompileLimits};
use sandglass_source::{duration, size};

/// The hidden command of a compile helper.
pub(crate) const HELPER_COMMAND: &str = "compile-module";

/// The flags that limit the compilation of one module.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Time limit for compiling one module [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    pub(crate) compile_timeout: Option<Duration>,
    /// Memory limit for compiling one module [default: 2GiB]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    pub(crate) compile_memory: Option<u64>,
}

impl Arguments {
    /// The limits that the flags state, and `otherwise` for those that they do not state.
    pub(crate) fn limits(self, otherwise: CompileLimits) -> CompileLimits {
        CompileLimits {
            timeout: self.compile_timeout.unwrap_or(otherwise.timeout),
            memory_bytes: self.compile_memory.unwrap_or(otherwise.memory_bytes),
        }
    }

    /// The helper of a command whose only settings are these flags.
    pub(crate) fn helper(self) -> CompileHelper {
        helper().limits(self.limits(CompileLimits::default()))
    }
}

/// Size from which guests begin with code of the baseline compiler, in bytes. The optimizing one takes
/// a second for it.
const BASELINE_FROM_BYTES: u64 = 2 << 20;

/// The flag of a command that executes guests of its user.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Optimizing {
    /// Compile guests of 2 MiB and more with optimizations. By default, they start sooner with slower code,
    /// unless a journal is kept
    #[arg(long)]
    optimize: bool,
}

impl Optimizing {
    /// For [`CompileHelper::baseline_from`]. What is recorded `in_journal` is executed with optimized code,
    /// as it is when it is replayed.
    pub(crate) fn baseline_from(self, in_journal: bool) -> u64 {
        if self.optimize || in_journal { u64::MAX } else { BASELINE_FROM_BYTES }
    }
}

/// The flags of a command that keeps compiled code for the next process.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CachedArguments {
    /// Keep compiled code in this folder, so that slow compilations happen once [default: in the
    /// user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    compiled_cache: Option<PathBuf>,
    #[command(flatten)]
    limits: Arguments,
}

impl CachedArguments {
    /// Builds a host by `build`, which keeps compiled code in the folder that it gets: the one that the
    /// flags name, or else that of the user if it is usable.
    ///
    /// # Errors
    /// As `build`.
    pub(crate) fn build<T, E>(
        &self,
        build: impl Fn(Option<PathBuf>, CompileHelper) -> Result<T, E>,
    ) -> Result<T, E> {
        let build = |folder| build(folder, self.limits.helper());
        if let Some(folder) = &self.compiled_cache {
            return build(Some(folder.clone()));
        }
        match user_cache().map(|folder| build(Some(folder))) {
            Some(Ok(built)) => Ok(built),
            Some(Err(_)) | None => build(None),
        }
    }
}

/// A folder for compiled code in the user's cache folder (XDG Base Directory Specification).
fn user_cache() -> Option<PathBuf> {
    let named = |variable| std::env::var_os(variable).map(PathBuf::from);
    let caches = named("XDG_CACHE_HOME").filter(|folder| folder.is_absolute());
    let caches = caches.or_else(|| named("HOME").map(|home| home.join(".cache")))?;
    let ours = caches.join("sandglass");
    // The host creates the folder in it.
    std::fs::create_dir_all(&ours).ok()?;
    Some(ours.join("compiled"))
}

/// This program as a compile helper.
pub(crate) fn helper() -> CompileHelper {
    CompileHelper::this_program([HELPER_COMMAND])
}

fn timeout(text: &str) -> Result<Duration, String> {
    duration::within(text, &(Duration::from_millis(1)..=CompileLimits::TIMEOUT_MAX))
}

fn memory(text: &str) -> Result<u64, String> {
    match size::parse(text)? {
        bytes if bytes < CompileLimits::MEMORY_MIN_BYTES => {
            Err("must be at least 64MiB, which a small module needs".to_owned())
        }
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_bounded_and_override_other_settings() {
        assert_eq!(timeout("5m"), Ok(Duration::from_secs(300)));
        assert!(timeout("0s").is_err() && timeout("25h").is_err() && timeout("5").is_err());
        assert_eq!(memory("64MiB"), Ok(64 << 20));
        assert!(memory("1MiB").is_err() && memory("much").is_err());
        let set = CompileLimits { timeout: Duration::from_secs(9), memory_bytes: 1 << 30 };
        let flags =
            Arguments { compile_timeout: Some(Duration::from_secs(1)), ..Arguments::default() };
        assert_eq!(flags.limits(set), CompileLimits { timeout: Duration::from_secs(1), ..set });
        assert_eq!(Arguments::default().limits(set), set);
    }
}
