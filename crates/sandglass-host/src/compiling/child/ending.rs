//! The endings of a helper that compiled nothing, and the rejection of the module for each.

use std::fs::File;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use rustix::process::Signal;
use sandglass_model::{Rejection, RejectionKind};

use crate::compiling::CompileHelper;
use crate::compiling::message::Body;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::text::printable;

/// What a Rust program writes to its standard error when it aborts because an allocation fails. Stable
/// Rust has no hook for that, so no exit code distinguishes it from other aborts;
/// `what_takes_too_much_memory_is_rejected` fails if the text changes.
const NO_MEMORY: &str = "memory allocation of";

/// What it writes if its stack overflows.
const NO_STACK: &str = "has overflowed its stack";

/// How an exchange with a helper ends.
#[derive(Debug)]
pub(super) enum Ending {
    /// A complete response. Its body is in a file in memory, positioned at its first byte.
    Responded(Body, File),
    TimedOut,
    /// The code would have this many bytes.
    TooMuchCode(u64),
    /// It wrote something that is not a response.
    Nonsense,
    /// It ended without a response: its status, and the end of its standard error.
    Ended(ExitStatus, String),
    /// The host shuts down.
    Closed,
}

/// The rejection of a module whose helper ended without code.
pub(super) fn not_compiled(ending: &Ending, helper: &CompileHelper) -> Rejection {
    let limits = helper.limits;
    let of = |what: String| rejection(RejectionKind::CompileLimit, what);
    match ending {
        Ending::TimedOut => of(format!(
            "compiling the module takes longer than {:?}; split its largest functions, or raise \
             the time limit for compiling (`--compile-timeout`, or `timeout` in `[compile]`)",
            limits.timeout
        )),
        Ending::Ended(status, error) if error.contains(NO_MEMORY) => {
            tracing::debug!(%status, "a helper ran out of memory");
            of(format!(
                "compiling the module takes more than {} MiB of memory; split its largest functions \
                 and element segments, or raise the memory limit for compiling \
                 (`--compile-memory`, or `memory` in `[compile]`)",
                limits.memory_bytes >> 20
            ))
        }
        Ending::Ended(status, _) if status.signal() == Some(Signal::XCPU.as_raw()) => {
            not_compiled(&Ending::TimedOut, helper)
        }
        Ending::Ended(_, error) if error.contains(NO_STACK) => {
            of("compiling the module takes more stack than the compiler has; nest its blocks and \
             types less deeply"
                .to_owned())
        }
        Ending::TooMuchCode(bytes) => of(format!(
            "the module compiles to {bytes} bytes of code, which is out of proportion to its \
             size; initialize its tables and memories by fewer, larger segments"
        )),
        Ending::Ended(status, error) => {
            let stderr = printable(error.trim_end());
            tracing::warn!(%status, stderr, "a program that compiles modules crashed");
            of(format!(
                "the compiler crashed on the module ({status}); build it with another version of \
                 its toolchain, or report it to the Wasmtime project if you can share the module"
            ))
        }
        Ending::Responded(..) | Ending::Nonsense => {
            tracing::warn!(
                program = %helper.program.display(),
                "a program that compiles modules wrote something that is not a result"
            );
            of(format!(
                "the compiler returned no valid result for the module; check that `{}` is a \
                 program that compiles modules",
                helper.program.display()
            ))
        }
        Ending::Closed => rejection(RejectionKind::HostUnavailable, "the host is shutting down"),
    }
}
