//! The limits that a helper sets for itself before it reads a module.

use std::io;

use rustix::process::{self, Resource, Rlimit, Signal};

/// How much lower a helper's priority is than that of guests (`nice`). Not lower: otherwise, anything
/// that spins on the machine would make every compilation exceed its timeout.
const NICENESS: i32 = 5;

/// Makes this process end with its parent, run at a lower priority, and write no files. A core dump
/// would contain the module.
///
/// # Errors
/// The operating system refuses what every process may do.
pub(super) fn at_the_start() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the machine runs out of memory, this process is killed before any other. If this fails
    // (there is no /proc), its own memory limit still applies.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    for resource in [Resource::Core, Resource::Fsize] {
        process::setrlimit(resource, limit(0))?;
    }
    // An error only makes other processes slower.
    let _ = process::nice(NICENESS);
    Ok(())
}

/// Bounds the memory that this process may write to, and its CPU time. The host measures the elapsed
/// time; the limit on CPU time is for a host that cannot.
pub(super) fn for_one_module(memory_bytes: u64, cpu_seconds: u64) -> io::Result<()> {
    // Not the address space: allocators reserve more of that than they ever use.
    process::setrlimit(Resource::Data, limit(memory_bytes))?;
    process::setrlimit(Resource::Cpu, limit(cpu_seconds))?;
    Ok(())
}

fn limit(most: u64) -> Rlimit {
    Rlimit { current: Some(most), maximum: Some(most) }
}
