//! The entry point of the binary; everything else is in the library.

use std::process::ExitCode;

/// Tasks are allocated on one thread and freed on another all the time. The C library's allocator
/// takes a lock for that, which costs a third of the time that a dispatch and its decision take
/// with a journal in memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    sandglass_cli::main()
}
