//! The bounds of a host, each with the reason for its size.

use std::path::PathBuf;
use std::time::Duration;

use crate::kernel::KernelFeatures;

/// Most frames of a guest's stack that are kept: the innermost ones show where it was, and a
/// recursion repeats itself.
pub const MAX_FRAMES: u32 = 32;

/// Elements of the largest table that any limit can allow: ten times what the interpreters of
/// toolchains have, and 800 kB of each instance slot.
pub const MAX_TABLE_ELEMENTS: u32 = 100_000;

/// The bounds of a host. The defaults fit one machine that does other work, too.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Guests that are instantiated at the same time. Each has an instance slot,
    /// 4 GiB of address space, a stack and some 6 memory mappings; a thousand fit any
    /// 64-bit machine, and ten thousand one that gives a process the usual 65,530 mappings
    /// (`vm.max_map_count`). A host whose pool does not fit is not built.
    pub max_runs: u32,
    /// Dispatches that wait for permission to start, beyond `max_runs`. More than can be served within
    /// a budget would only time out later.
    pub max_queued: usize,
    /// Guests of one tenant that run at the same time; at least 1. Default: as many as of the host,
    /// because tenants take turns anyway.
    pub max_runs_per_tenant: u32,
    /// Dispatches of one tenant that wait, beyond `max_runs_per_tenant`. Default: half of the host's, so
    /// that one tenant alone cannot fill the queue.
    pub max_queued_per_tenant: usize,
    /// Guests that wait for other entities in an ask, beyond `max_runs`: each keeps its instance slot and
    /// its memory, but not its admission permit. More asks are refused.
    pub max_asking: u32,
    /// Threads that run guests; at least 1. Default: as many as cores.
    pub guest_threads: usize,
    /// Calls of blocking host functions at the same time, including those that continue after their
    /// run has ended. Each occupies a thread; more calls are refused.
    pub max_blocking_calls: u32,
    /// Most linear memory that any integration may be granted, in bytes. It also
    /// bounds how long one bulk instruction can delay a kill.
    pub max_memory_bytes: u64,
    /// Linear memory of one slot of the pool, in bytes; default and maximum: `max_memory_bytes`. An
    /// integration that is granted more runs on demand.
    pub slot_memory_bytes: u64,
    /// Runs on demand at the same time ([`Allocation::OnDemand`](sandglass_model::Allocation)): each
    /// maps its memory anew, outside of the pool, so there are few.
    pub max_on_demand: u32,
    /// The folder where compiled code is kept for the next start of the process. Default: none. It must
    /// belong to this user alone, and is created if it does not exist.
    pub compiled_cache_dir: Option<PathBuf>,
    /// Most compiled code in that folder, in bytes; the least recently used code is removed. The
    /// default is enough for a thousand handlers of some hundred kilobytes, or thirty interpreters.
    pub compiled_cache_bytes: u64,
    /// Compiled code that is kept in memory although no integration uses it, in bytes: the next load of
    /// the same module finds it.
    pub module_cache_bytes: u64,
    /// Most HTTP requests that all guests together may have open. Each holds a file descriptor, so a
    /// third of the process's limit, minus a reserve, bounds it as well.
    pub max_open_requests: u32,
    /// Time limit of one host call that leaves the runtime.
    pub host_call_timeout: Duration,
    /// Size of the cache that guests keep from run to run, in bytes. One integration has at most a
    /// quarter of it for one tenant. Entries may disappear at any time.
    pub cache_bytes: u64,
    /// Memory for recordings ([`Dispatch::recorded`](crate::dispatch::Dispatch::recorded)) of all runs
    /// together, in bytes, from the start of a run until its report is dropped. If none is left, a run
    /// is not recorded, and its report says why.
    pub recording_bytes: u64,
    /// Most frames in the report of a guest that is stopped or traps, each with its inlined functions;
    /// together at most [`MAX_FRAMES`]. With 0 there are none, and they cost nothing.
    pub backtrace_frames: u32,
    /// Longest time that a report waits for the names and lines of its frames. Later ones are
    /// resolved by `Host::resolve_frames`.
    pub symbols_wait: Duration,
    /// The most time on the CPU of a handler that is brief: if the last ones of its module were,
    /// `Host::run_from_here` begins the next one on its caller's thread. Zero: never. The default is
    /// 200 us, several times the cost of the two changes of threads that it saves.
    pub brief_handler: Duration,
    /// Kernel features that may be used if the kernel has them. Default: all. Less is for tests and
    /// comparisons.
    pub kernel_features: KernelFeatures,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_runs: 1000,
            max_queued: 10_000,
            max_runs_per_tenant: 1000,
            max_queued_per_tenant: 5000,
            max_asking: 200,
            guest_threads: std::thread::available_parallelism().map_or(1, usize::from),
            max_blocking_calls: 64,
            max_memory_bytes: 256 << 20,
            slot_memory_bytes: u64::MAX,
            max_on_demand: 16,
            compiled_cache_dir: None,
            compiled_cache_bytes: 2 << 30,
            module_cache_bytes: 64 << 20,
            max_open_requests: 4096,
            host_call_timeout: Duration::from_secs(300),
            cache_bytes: 64 << 20,
            recording_bytes: 256 << 20,
            backtrace_frames: MAX_FRAMES,
            symbols_wait: Duration::from_millis(50),
            brief_handler: Duration::from_micros(200),
            kernel_features: KernelFeatures::ALL,
        }
    }
}

/// File descriptors that guests can never take: for connections, files and journals.
const RESERVED_DESCRIPTORS: u64 = 256;

impl Settings {
    /// Returns `max_open_requests`, limited by the file descriptors of the process.
    pub fn open_requests(&self) -> u32 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        // A third each for open requests, for idle connections, and for everything else.
        let third = limit.current.map_or(u64::MAX, |most| {
            most.saturating_sub(RESERVED_DESCRIPTORS).max(RESERVED_DESCRIPTORS) / 3
        });
        self.max_open_requests.max(1).min(u32::try_from(third).unwrap_or(u32::MAX))
    }

    /// Instances that exist at the same time: those that run, and those that wait in asks.
    pub fn slots(&self) -> u32 {
        self.max_runs.max(1).saturating_add(self.max_asking)
    }
}
