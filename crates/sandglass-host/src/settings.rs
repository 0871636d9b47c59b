//! The bounds of a host, each with the reason for its size.

use std::path::PathBuf;
use std::time::Duration;

use crate::kernel::KernelFeatures;
use crate::store::MAX_FRAMES;

/// How a host is dimensioned. [`Settings::default`] fits one machine that does
/// other work besides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Guests that are instantiated at the same time. Each has an instance slot,
    /// 4 GiB of address space, a stack and some 6 memory mappings; a thousand fit any
    /// 64-bit machine, and ten thousand one that gives a process the usual 65,530 mappings
    /// (`vm.max_map_count`). A host whose pool can't be filled isn't built.
    pub max_runs: u32,
    /// Dispatches that wait for a place to run: a host takes in at most this many
    /// beyond `max_runs`. More than can be served within any budget would only
    /// time out later.
    pub max_queued: usize,
    /// Guests of one tenant that run at the same time; at least 1. As many as the
    /// host has places, by default: tenants take turns anyway.
    pub max_runs_per_tenant: u32,
    /// Dispatches of one tenant that wait, beyond `max_runs_per_tenant`. Half of
    /// the host's, by default, so that one tenant alone can't fill the queue.
    pub max_queued_per_tenant: usize,
    /// Guests that wait in asks to other entities, beyond `max_runs`: each keeps
    /// its instance slot and its memory, but no place to run. More asks are refused.
    pub max_asking: u32,
    /// Threads that run guests; at least 1. As many as cores, by default.
    pub guest_threads: usize,
    /// Calls of blocking host functions at the same time, those included that go on
    /// after their run has ended. Each holds a thread; more calls are refused.
    pub max_blocking_calls: u32,
    /// Most linear memory that any integration may be granted, in bytes. It also
    /// bounds how long one bulk instruction can delay a kill.
    pub max_memory_bytes: u64,
    /// Linear memory that a slot of the pool has room for, in bytes; as much as
    /// `max_memory_bytes`, by default and at most. An integration that is granted more runs
    /// on demand.
    pub slot_memory_bytes: u64,
    /// Runs on demand at the same time ([`Allocation::OnDemand`](crate::Allocation)): each
    /// maps its memory anew, outside of the pool's bounds, so they are few.
    pub max_on_demand: u32,
    /// Where compiled code is kept for the next start of the process; nowhere, by
    /// default. The folder must be this user's alone; it is made where there is none.
    pub compiled_cache_dir: Option<PathBuf>,
    /// Most compiled code that is kept there, in bytes; what was used longest ago goes. A
    /// thousand handlers of some hundred kilobytes, or thirty with an interpreter inside.
    pub compiled_cache_bytes: u64,
    /// Compiled code that is kept for the next load of the same bytes where no
    /// integration has it any more, in bytes.
    pub module_cache_bytes: u64,
    /// Most HTTP requests that guests may have open, all together. Each holds a descriptor, so the
    /// process's limit on those bounds it as well: a third of that limit, beyond a reserve.
    pub max_open_requests: u32,
    /// Most time that one host call to the outside may take.
    pub host_call_timeout: Duration,
    /// What guests may keep in the host's memory from run to run, in bytes, all
    /// together; one integration has at most a quarter of it for one tenant. It is
    /// a cache: what is in it may go at any time.
    pub cache_bytes: u64,
    /// Memory for the recordings of runs ([`Dispatch::recorded`](crate::Dispatch::recorded)),
    /// all together, in bytes, from a run's begin until its report is dropped. A run that
    /// finds none left is not recorded, and its report says why.
    pub recording_bytes: u64,
    /// Most frames of a guest's stack that a report has of one that is stopped or traps, each
    /// with the functions that the compiler put into it; all together at
    /// most [`MAX_FRAMES`](crate::MAX_FRAMES), and none, which costs nothing, where it is 0.
    pub backtrace_frames: u32,
    /// Longest time that a report waits for the names and lines of its frames. Later ones are
    /// resolved by [`Host::resolve_frames`](crate::Host::resolve_frames).
    pub symbols_wait: Duration,
    /// What of the kernel may be used, where it has it. All, by default; less is for
    /// tests of what a host does without, and for comparing.
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
            kernel_features: KernelFeatures::ALL,
        }
    }
}

/// Descriptors that guests can never take: for those who connect, files and journals.
const RESERVED_DESCRIPTORS: u64 = 256;

impl Settings {
    /// Requests that guests may have open, as far as the process has descriptors for them.
    pub(crate) fn open_requests(&self) -> u32 {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        // A third each for open requests, for idle connections, and for everything else.
        let third = limit.current.map_or(u64::MAX, |most| {
            most.saturating_sub(RESERVED_DESCRIPTORS).max(RESERVED_DESCRIPTORS) / 3
        });
        self.max_open_requests.max(1).min(u32::try_from(third).unwrap_or(u32::MAX))
    }

    /// Instances that exist at the same time: those that run, and those that wait
    /// in asks.
    pub(crate) fn slots(&self) -> u32 {
        self.max_runs.max(1).saturating_add(self.max_asking)
    }
}
