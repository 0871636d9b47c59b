//! The entry of the binary; all of it is in the library beside.

use std::process::ExitCode;

/// Tasks are made on one thread and freed on another all the time, for which the C library's
/// allocator takes a lock: that is a third of what a dispatch and its decision take in memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sandglass_cli::main()
}
