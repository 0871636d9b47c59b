//! What a store holds besides the guest: everything of one run that host
//! functions touch. It is dropped with the store.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::text::is_unprintable;
use sandglass_model::{Frame, GuestLimits, Monotonic, Story, SystemClock};
use sandglass_telemetry::Metrics;
use wasmtime::{Memory, WasmBacktrace};

use crate::abi::node_pack::NodeRun;
use crate::abi::wasi::Wasi;

use crate::accounting::Accounting;
use crate::call_spans::CallSpans;
use crate::capability::Guest;
use crate::capability::outside::Outside;
use crate::functions::Functions;
use crate::host_memory::Charge;
use crate::limiter::Limiter;
use crate::measured::{Measured as _, measured};
use crate::origin::Origin;
use crate::recording::Tape;
use crate::run::Run;
use crate::run_clock::RunClock;
use crate::secret::Secret;
use crate::ticker::Ticker;

/// Most frames of a guest's stack that are kept: the innermost ones tell where
/// it was, and a recursion repeats itself.
pub const MAX_FRAMES: u32 = 32;

/// Where a run stands, for the name of what it dies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Instantiating,
    Running,
}

impl Phase {
    /// The dying span of a guest that is in code of its own.
    pub(crate) const fn own_span(self) -> &'static str {
        match self {
            Self::Instantiating => "instantiate",
            Self::Running => "guest",
        }
    }
}

pub(crate) struct RunStore {
    pub(crate) run: Arc<Run>,
    pub(crate) clock: RunClock,
    /// What wakes calls that have limits of their own; none in a store in which
    /// nothing runs.
    pub(crate) ticker: Option<Arc<Ticker>>,
    /// When the boundary last read the clock.
    pub(crate) looked_at: Monotonic,
    /// Until when a run that nobody stops needs no more than that look: its deadline. At once
    /// over where a recording says when it ends.
    pub(crate) quiet_until: Monotonic,
    /// How many slices of the guest's have ended.
    pub(crate) slices: u64,
    pub(crate) functions: Arc<Functions>,
    pub(crate) phase: Phase,
    /// Time in host functions while the guest was instantiated, once it is.
    pub(crate) host_while_instantiating: Option<Duration>,
    pub(crate) accounting: Accounting,
    pub(crate) tape: Tape,
    pub(crate) limiter: Limiter,
    /// What was running when the run was found to have to end.
    pub(crate) stopped_in: Option<String>,
    pub(crate) guest: Guest,
    /// Whose run it is; nobody's, in a store in which nothing runs.
    pub(crate) origin: Option<Arc<Origin>>,
    /// The state of WASI, once the guest has called some of it: making it costs as much as
    /// an instance.
    pub(crate) wasi: Option<Wasi>,
    /// Bytes that the present call of a core module may still read from the guest's memory.
    pub(crate) readable_bytes: u64,
    /// The guest's memory, once somebody has asked for it.
    pub(crate) memory: Option<Memory>,
    /// The invocation, where the guest is a pack of nodes and instantiated.
    pub(crate) node: Option<NodeRun>,
    pub(crate) call_spans: CallSpans,
    pub(crate) metrics: Metrics,
    /// For all of these fields together.
    pub(crate) charge: Charge,
}

measured!(
    RunStore: run, clock, ticker, looked_at, quiet_until, slices, functions, phase,
    host_while_instantiating, accounting, tape, limiter, stopped_in, guest, origin, wasi,
    readable_bytes, memory, node, call_spans, metrics, charge,
);

impl RunStore {
    /// A store's data in which nothing will ever run, to ask a linker for types.
    pub(crate) fn idle() -> Self {
        let guest = Guest::idle();
        Self {
            run: Arc::new(Run::new()),
            clock: RunClock::new(Arc::new(SystemClock::new())),
            ticker: None,
            looked_at: Monotonic::default(),
            quiet_until: Monotonic::default(),
            slices: 0,
            functions: Arc::default(),
            phase: Phase::Instantiating,
            host_while_instantiating: None,
            accounting: Accounting::default(),
            tape: Tape::Off,
            limiter: Limiter::new(&GuestLimits::default()),
            stopped_in: None,
            charge: guest.memory.nothing(),
            guest,
            origin: None,
            wasi: None,
            readable_bytes: 0,
            memory: None,
            node: None,
            call_spans: CallSpans::idle(),
            metrics: Metrics::disabled(),
        }
    }

    pub(crate) fn now(&self) -> Monotonic {
        self.clock.now()
    }

    /// The state of WASI, for its own functions.
    pub(crate) fn wasi(&mut self) -> &mut Wasi {
        let (guest, run, clock) = (&self.guest, &self.run, self.clock.shared());
        self.wasi.get_or_insert_with(|| Wasi::new(guest.lines(), guest.outside(run, clock)))
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

    /// The way to the outside.
    pub(crate) fn outside(&self) -> Outside {
        self.guest.outside(&self.run, self.clock.shared())
    }

    /// The call that is under way goes by `name`. There must be few.
    pub(crate) fn is_about(&mut self, name: Arc<str>) {
        self.tape.is_about(&name);
        self.run.present.is_about(Arc::clone(&name));
        self.accounting.is_about(name);
    }

    /// Gives the guest a secret, which is hidden from people from now on.
    pub(crate) fn give_secret(&mut self, name: &str, secret: &Secret) {
        self.guest.redactor.hide(secret);
        self.tape.see(name, secret);
    }

    /// What the run has done since `start`, at its end.
    pub(crate) fn story(&self, start: Monotonic, end: Monotonic) -> Story {
        let (calls, calls_omitted) = self.accounting.calls(&self.functions, start);
        let cut = self.accounting.cut_since();
        let (requests, requests_omitted) =
            self.guest.requests.told(&self.guest.redactor, (start, end), cut);
        Story { calls, calls_omitted, requests, requests_omitted }
    }

    /// Says in the trace that the call that is under way was ended `now`, and why.
    pub(crate) fn tell_call_ended(&mut self, now: Monotonic, error_type: &str, why: &str) {
        let took = self.accounting.under_way_for(now).unwrap_or_default();
        self.call_spans.error(took, error_type, why, &self.functions);
    }

    /// The run ends `now`, in the call that is under way, if one is: that has a span.
    pub(crate) fn tell_call_cut(&mut self, now: Monotonic) {
        if let Some(took) = self.accounting.under_way_for(now) {
            self.call_spans.cut(took, &self.functions);
        }
    }

    /// From now on the guest does its work.
    pub(crate) fn enter_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.run.present.in_guest(phase, self.clock.glance());
        self.host_while_instantiating = Some(self.accounting.total());
    }

    /// The name of what is running at this moment.
    pub(crate) fn present_span(&self) -> String {
        let call = self.accounting.current(&self.functions);
        call.unwrap_or_else(|| self.phase.own_span()).to_owned()
    }
}

/// A run whose caller has gone is dropped wherever it is.
impl Drop for RunStore {
    fn drop(&mut self) {
        if self.call_spans.is_waiting() {
            self.tell_call_cut(self.now());
        }
    }
}

/// The frames of a backtrace, innermost first, as offsets in the module's file: this runs on the
/// guest's thread, so it reads nothing that the module's author wrote.
pub(crate) fn frames(backtrace: &WasmBacktrace) -> Vec<Frame> {
    let offset = |info: &wasmtime::FrameInfo| info.module_offset().unwrap_or(0) as u64;
    let frames = backtrace.frames().iter().take(MAX_FRAMES as usize);
    frames.map(|info| Frame { offset: offset(info), ..Frame::default() }).collect()
}

/// Longest name that is shown, in characters: enough for a generic function's.
const NAME_MAX_CHARS: usize = 256;

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

/// A name of the guest's choosing, made fit for a terminal and a record.
pub(crate) fn printable(name: &str) -> String {
    name.chars()
        .take(NAME_MAX_CHARS)
        .map(|c| if is_unprintable(c) { '\u{fffd}' } else { c })
        .collect()
}
