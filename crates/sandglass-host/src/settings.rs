//! The bounds of a host, each with the reason for its size.

use std::time::Duration;

/// How a host is dimensioned. [`Settings::default`] fits one machine that does
/// other work besides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Guests that are instantiated at the same time. Each has an instance slot,
    /// 4 GiB of address space and a stack; a thousand fit any 64-bit machine.
    pub max_runs: u32,
    /// Dispatches that wait for a place to run. More than can be served within
    /// any budget would only time out later.
    pub max_queued: usize,
    /// Threads that run guests; at least 1. As many as cores, by default.
    pub guest_threads: usize,
    /// Most linear memory that any integration may be granted, in bytes. It also
    /// bounds how long one bulk instruction can delay a kill.
    pub max_memory_bytes: u64,
    /// Compiled modules that are kept for the next load of the same bytes.
    pub max_cached_modules: usize,
    /// Most time that one host call to the outside may take.
    pub host_call_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_runs: 1000,
            max_queued: 10_000,
            guest_threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_memory_bytes: 256 << 20,
            max_cached_modules: 256,
            host_call_timeout: Duration::from_secs(300),
        }
    }
}
