//! The data of a store: the supervision of the handler run, and the parts of its state that are
//! Wasmtime's. It is dropped with the store.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use sandglass_model::{Frame, GuestLimits};
use sandglass_supervisor::argument::Unreadable;
use sandglass_supervisor::host_memory::{Charge, OutOfHostMemory};
use sandglass_supervisor::measured;
use sandglass_supervisor::settings::MAX_FRAMES;
use sandglass_supervisor::supervision::Supervision;
use sandglass_supervisor::text::NAME_MAX_CHARS;
use wasmtime::{Memory, WasmBacktrace};

use crate::abi::Moments;
use crate::abi::node_pack::NodeRun;
use crate::abi::wasi::Wasi;
use crate::evaluation::Evaluation;
use crate::limiter::Limiter;
use crate::measured::Measured as _;

/// What one task, subtask, set of waitables, stream or future takes in Wasmtime, in bytes: its entry in
/// a table, the object, and handles for it.
const TASK_OBJECT_BYTES: u64 = 512;

/// The data of a store. Each group of state belongs to one part of the host: `supervision` to the
/// boundary and the capabilities, `memory` to `abi::guest_memory`, `wasi` and `node` to their ABIs.
///
/// It dereferences to its [`Supervision`], because that is all that most host functions use, and
/// what the functions of the supervisor take.
pub(crate) struct RunStore {
    supervision: Supervision,
    pub(crate) memory: GuestMemory,
    /// How many time slices of the guest have ended.
    slices: u64,
    pub(crate) moments: Moments,
    /// `None` until the guest calls WASI, because making this state costs as much as an instance.
    wasi: Option<Wasi>,
    /// `None` unless the guest is an instantiated pack of nodes.
    pub(crate) node: Option<NodeRun>,
    /// `None` in a store in which nothing runs.
    pub(crate) evaluation: Option<Arc<Evaluation>>,
    /// The charge for all of these fields.
    charge: Charge,
    /// The charge for the guest's tasks, streams and futures, which Wasmtime keeps.
    tasks: Charge,
}

measured!(
    in crate::measured::Measured; RunStore: supervision, memory, slices, moments, wasi, node,
    evaluation, charge, tasks
);

/// The guest's linear memory: its limits, and what a core module's call may read of it.
pub(crate) struct GuestMemory {
    pub(crate) limiter: Limiter,
    /// `None` until a host function needs it.
    pub(crate) handle: Option<Memory>,
    /// Bytes that the present call may still read.
    readable_bytes: u64,
}

measured!(in crate::measured::Measured; GuestMemory: limiter, handle, readable_bytes);

impl GuestMemory {
    /// Allows the call that begins to read `bytes`.
    pub(crate) const fn allow_reads(&mut self, bytes: u64) {
        self.readable_bytes = bytes;
    }

    /// Counts that the present call reads `len` bytes as `what`, which may have `max`.
    ///
    /// # Errors
    /// It may not read that much.
    pub(crate) fn count_read(
        &mut self,
        what: &'static str,
        len: u32,
        max: u32,
    ) -> Result<(), Unreadable> {
        let readable = u32::try_from(self.readable_bytes).unwrap_or(u32::MAX);
        let max = max.min(readable);
        if len > max {
            return Err(Unreadable::TooLong { what, len, max });
        }
        self.readable_bytes -= u64::from(len);
        Ok(())
    }
}

impl RunStore {
    pub(crate) fn new(supervision: Supervision, limiter: Limiter) -> Self {
        Self {
            charge: supervision.guest().memory.nothing(),
            tasks: supervision.guest().memory.nothing(),
            supervision,
            memory: GuestMemory { limiter, handle: None, readable_bytes: 0 },
            slices: 0,
            moments: Moments::default(),
            wasi: None,
            node: None,
            evaluation: None,
        }
    }

    /// The data of a store in which nothing runs, for looking up types in a linker and for tests.
    pub(crate) fn idle() -> Self {
        Self::new(Supervision::idle(), Limiter::new(&GuestLimits::default()))
    }

    /// Counts that a time slice of the guest has ended. Returns how many have.
    pub(crate) const fn end_slice(&mut self) -> u64 {
        self.slices += 1;
        self.slices
    }

    pub(crate) fn wasi(&mut self) -> &mut Wasi {
        let run = &self.supervision;
        self.wasi.get_or_insert_with(|| Wasi::new(&run.guest().log, run.outside()))
    }

    /// Charges the guest's tasks, streams and futures: so many `objects` of Wasmtime. A guest makes
    /// them without a host call, so they are counted at the end of each time slice.
    ///
    /// # Errors
    /// The account has no room.
    pub(crate) fn charge_tasks(&mut self, objects: usize) -> Result<(), OutOfHostMemory> {
        if self.is_replay() {
            // The recording decides when the run ends.
            return Ok(());
        }
        self.tasks.resize((objects as u64).saturating_mul(TASK_OBJECT_BYTES))
    }

    /// Charges what a call leaves behind: the resources with these numbers, which it took or
    /// returned, and the state of the run.
    ///
    /// # Errors
    /// The account has no room, or one of the resources has a type that cannot be measured.
    #[inline]
    pub(crate) fn charge(&mut self, resources: &[u32]) -> wasmtime::Result<()> {
        match &mut self.wasi {
            Some(wasi) if !resources.is_empty() => wasi.charge(resources)?,
            _ => {}
        }
        let bytes = self.uncharged_bytes();
        Ok(self.charge.resize(bytes)?)
    }
}

impl Deref for RunStore {
    type Target = Supervision;

    #[inline]
    fn deref(&self) -> &Supervision {
        &self.supervision
    }
}

impl DerefMut for RunStore {
    #[inline]
    fn deref_mut(&mut self) -> &mut Supervision {
        &mut self.supervision
    }
}

/// The frames of a backtrace, innermost first, as offsets in the module's file. This runs on the
/// guest's thread, so it must read nothing that the module's author wrote (names, debug
/// information): that could take seconds.
pub(crate) fn frames(backtrace: &WasmBacktrace) -> Vec<Frame> {
    let offset = |info: &wasmtime::FrameInfo| info.module_offset().unwrap_or(0) as u64;
    let frames = backtrace.frames().iter().take(MAX_FRAMES as usize);
    frames.map(|info| Frame { offset: offset(info), ..Frame::default() }).collect()
}

/// The readable form of a mangled name. A short mangled name can stand for a name of any length, so
/// writing stops once no report would show more.
pub(crate) fn demangle(name: &str) -> String {
    struct Bounded(String);
    impl std::fmt::Write for Bounded {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            self.0.push_str(part);
            if self.0.len() > NAME_MAX_CHARS * 4 { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut bounded = Bounded(String::new());
    // An error means that the name is long enough.
    let _ = std::fmt::write(&mut bounded, format_args!("{:#}", rustc_demangle::demangle(name)));
    bounded.0
}
