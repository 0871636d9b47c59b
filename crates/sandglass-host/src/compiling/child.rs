//! The host's side: starts a helper for one module, writes the bytes to it, reads its response, and
//! kills it at its limits. It trusts nothing that the helper writes: a module that exploits the
//! compiler controls the helper, and must not gain more than that. (Code that the helper seals is
//! executed; that is what a compiler is for.)

mod ending;
mod exchange;

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::thread::available_parallelism;

use sandglass_model::{Clock as _, Entropy as _, ModuleHash, Rejection, RejectionKind};
use sandglass_model::{SystemClock, SystemEntropy};

use super::message::{self, Body, Request};
use super::{CompileHelper, Job, THREADS_MAX};
use crate::compiled_folder::{Code, ENTRY_MAX_BYTES, Entry, KEY_BYTES, NotGenuine, Seal};
use ending::{Ending, not_compiled};
use exchange::Exchange;
use sandglass_supervisor::rejection::rejection;

/// How many times larger than its binary code may be, in addition to [`CODE_MIN_BYTES`]. Code of
/// toolchains' modules is 2 to 6 times as large.
const CODE_TIMES_BINARY: u64 = 64;

/// Size that any code may have, in bytes. It includes images of initial memories.
const CODE_MIN_BYTES: u64 = 32 << 20;

/// A running helper. If this is dropped, it is killed and reaped.
struct Helper(Child);

impl Helper {
    fn start(helper: &CompileHelper, threads: usize) -> std::io::Result<Self> {
        let mut command = Command::new(&helper.program);
        command
            .args(&helper.arguments)
            .env_clear()
            // The compiler's threads. Wasmtime has no setting for their number.
            .env("RAYON_NUM_THREADS", threads.to_string())
            // Without this, the allocator of `sandglass` would count reserved memory as used.
            .env("MIMALLOC_ARENA_EAGER_COMMIT", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C is for the host, which then kills its helpers itself.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map(Self)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // If it has ended, killing it fails, and it is still reaped.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Compiles a module in `helper`.
///
/// # Errors
/// The module is not valid, or the helper exceeded its limits or crashed. The host is shutting
/// down, or the helper cannot be started or is not of this host's version.
pub(super) fn compile(helper: &CompileHelper, job: &Job<'_>) -> Result<Code, Rejection> {
    let clock = SystemClock::new();
    let deadline = clock.now().after(helper.limits.timeout);
    let mut key = [0; KEY_BYTES];
    SystemEntropy.fill(&mut key).map_err(|error| unavailable(helper, &error))?;
    let threads = available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let request = Request {
        key,
        kind: job.kind,
        target: job.target,
        memory_bytes: helper.limits.memory_bytes,
        cpu_seconds: cpu_seconds(helper, threads),
        binary_bytes: job.binary.len() as u64,
    };
    let mut process =
        Helper::start(helper, threads).map_err(|error| unavailable(helper, &error))?;
    let exchange = Exchange {
        request: &[&request.encode(), job.binary],
        most_code_bytes: most_code_bytes(job.binary),
        deadline,
        clock: &clock,
        closed: job.closed,
    };
    let ending = exchange.run(&mut process.0).map_err(|error| unavailable(helper, &error))?;
    match ending {
        Ending::Responded(Body::Code, sealed) => {
            let entry = Entry::of(job.engine, ModuleHash::of(job.binary), job.kind);
            match Seal::new(&key).open(&entry, sealed) {
                Ok(code) => Ok(code),
                Err(NotGenuine::Misplaced) => Err(unavailable(
                    helper,
                    &"it is of another version than this host, or has other settings",
                )),
                Err(NotGenuine::Forged) => Err(not_compiled(&Ending::Nonsense, helper)),
                Err(NotGenuine::Io(error)) => Err(unavailable(helper, &error)),
            }
        }
        Ending::Responded(Body::Rejection, mut text) => {
            let mut bytes = Vec::new();
            text.read_to_end(&mut bytes).map_err(|error| unavailable(helper, &error))?;
            Err(message::read_rejection(&bytes)
                .unwrap_or_else(|| not_compiled(&Ending::Nonsense, helper)))
        }
        other => Err(not_compiled(&other, helper)),
    }
}

/// Limit on the CPU time of all threads together, in case the host cannot kill its helper any more.
fn cpu_seconds(helper: &CompileHelper, threads: usize) -> u64 {
    let seconds = helper.limits.timeout.as_secs().saturating_add(1);
    seconds.saturating_mul(threads as u64)
}

fn most_code_bytes(binary: &[u8]) -> u64 {
    let in_proportion = (binary.len() as u64).saturating_mul(CODE_TIMES_BINARY);
    in_proportion.saturating_add(CODE_MIN_BYTES).min(ENTRY_MAX_BYTES)
}

/// The rejection if the helper is at fault and not the module, so that loading it later may succeed.
fn unavailable(helper: &CompileHelper, why: &dyn std::fmt::Display) -> Rejection {
    rejection(
        RejectionKind::HostUnavailable,
        format!(
            "the program that compiles modules (`{}`) cannot be used: {why}",
            helper.program.display()
        ),
    )
}
