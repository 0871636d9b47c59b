//! What a store holds besides the guest: the supervision of the run, and the parts of its state that
//! are Wasmtime's. It is dropped with the store.

use std::ops::{Deref, DerefMut};

use sandglass_model::{Frame, GuestLimits};
use sandglass_supervisor::host_memory::Charge;
use sandglass_supervisor::measured;
use sandglass_supervisor::settings::MAX_FRAMES;
use sandglass_supervisor::supervision::Supervision;
use sandglass_supervisor::text::NAME_MAX_CHARS;
use wasmtime::{Memory, WasmBacktrace};

use crate::abi::node_pack::NodeRun;
use crate::abi::wasi::Wasi;
use crate::limiter::Limiter;
use crate::measured::Measured as _;

/// The data of a store. Host functions see the [`Supervision`] of their run through it.
pub(crate) struct RunStore {
    supervision: Supervision,
    limiter: Limiter,
    /// How many time slices of the guest have ended.
    slices: u64,
    /// The state of WASI; `None` until the guest calls it, because making it costs as much as an
    /// instance.
    wasi: Option<Wasi>,
    /// Bytes that the present call of a core module may still read from the guest's memory.
    readable_bytes: u64,
    /// The guest's memory; `None` until a host function needs it.
    memory: Option<Memory>,
    /// The invocation of a node, if the guest is a pack of nodes and instantiated.
    node: Option<NodeRun>,
    /// The charge for all of these fields.
    charge: Charge,
}

measured!(
    in crate::measured::Measured;
    RunStore: supervision, limiter, slices, wasi, readable_bytes, memory, node, charge
);

impl RunStore {
    pub(crate) fn new(supervision: Supervision, limiter: Limiter) -> Self {
        Self {
            charge: supervision.guest().memory.nothing(),
            supervision,
            limiter,
            slices: 0,
            wasi: None,
            readable_bytes: 0,
            memory: None,
            node: None,
        }
    }

    /// The data of a store in which nothing runs, to ask a linker for types.
    pub(crate) fn idle() -> Self {
        Self::new(Supervision::idle(), Limiter::new(&GuestLimits::default()))
    }

    pub(crate) const fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    pub(crate) const fn limiter_mut(&mut self) -> &mut Limiter {
        &mut self.limiter
    }

    /// Counts a time slice of the guest that has ended; returns how many there were.
    pub(crate) const fn end_slice(&mut self) -> u64 {
        self.slices += 1;
        self.slices
    }

    /// The state of WASI.
    pub(crate) fn wasi(&mut self) -> &mut Wasi {
        let run = &self.supervision;
        self.wasi.get_or_insert_with(|| Wasi::new(run.guest().lines(), run.outside()))
    }

    /// The invocation of a node; `None` if the guest is not a pack of nodes.
    pub(crate) const fn node(&mut self) -> Option<&mut NodeRun> {
        self.node.as_mut()
    }

    pub(crate) fn set_node(&mut self, node: NodeRun) {
        self.node = Some(node);
    }

    pub(crate) const fn memory(&self) -> Option<Memory> {
        self.memory
    }

    pub(crate) const fn set_memory(&mut self, memory: Memory) {
        self.memory = Some(memory);
    }

    /// Bytes that the present call may still read from the guest's memory.
    pub(crate) const fn readable_bytes(&self) -> u64 {
        self.readable_bytes
    }

    pub(crate) const fn set_readable_bytes(&mut self, bytes: u64) {
        self.readable_bytes = bytes;
    }

    /// Charges what a call leaves behind: the resources of these numbers, which it has taken or
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

/// The frames of a backtrace, innermost first, as offsets in the module's file: this runs on the
/// guest's thread, so it reads nothing that the module's author wrote.
pub(crate) fn frames(backtrace: &WasmBacktrace) -> Vec<Frame> {
    let offset = |info: &wasmtime::FrameInfo| info.module_offset().unwrap_or(0) as u64;
    let frames = backtrace.frames().iter().take(MAX_FRAMES as usize);
    frames.map(|info| Frame { offset: offset(info), ..Frame::default() }).collect()
}

/// The readable form of a mangled name. A short name can stand for one of any
/// length, so the writing stops where nobody would read on.
pub(crate) fn demangle(name: &str) -> String {
    struct Bounded(String);
    impl std::fmt::Write for Bounded {
        fn write_str(&mut self, part: &str) -> std::fmt::Result {
            self.0.push_str(part);
            if self.0.len() > NAME_MAX_CHARS * 4 { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut bounded = Bounded(String::new());
    // It fails where the name is long enough.
    let _ = std::fmt::write(&mut bounded, format_args!("{:#}", rustc_demangle::demangle(name)));
    bounded.0
}
