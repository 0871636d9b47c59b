//! The limits that a helper sets for itself before it reads a module.

use std::io;

use rustix::process::{self, Resource, Rlimit, Signal};

/// How much less of a busy machine a helper has than what runs guests (`nice`). Not more: what
/// spins beside it would otherwise make every compile exceed its timeout.
const NICENESS: i32 = 5;

/// Ends with its parent, yields to it, and writes no files: neither others nor core dumps, in
/// which the module would be.
///
/// # Errors
/// The operating system refuses what every process may do.
pub(super) fn at_the_start() -> io::Result<()> {
    #[cfg(target_os = "linux")]
    process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // If the machine runs out of memory, this process is killed before any other. If it can't be
    // said (there is no /proc), its own limit holds all the same.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    for resource in [Resource::Core, Resource::Fsize] {
        process::setrlimit(resource, limit(0))?;
    }
    // It is slower for others without, and no less safe.
    let _ = process::nice(NICENESS);
    Ok(())
}

/// Bounds the memory that this process may write to, and its CPU time. The host measures the
/// time, too; the CPU limit holds if the host can not.
pub(super) fn for_one_module(memory_bytes: u64, cpu_seconds: u64) -> io::Result<()> {
    // Not the address space: allocators reserve more of that than they ever use.
    process::setrlimit(Resource::Data, limit(memory_bytes))?;
    process::setrlimit(Resource::Cpu, limit(cpu_seconds))?;
    Ok(())
}

fn limit(most: u64) -> Rlimit {
    Rlimit { current: Some(most), maximum: Some(most) }
}
