//! The report of one ended handler run: the command line prints it, and records are made from it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cause::Cause;
use crate::clock::WallTime;
use crate::id::{DispatchId, ModuleHash};
use crate::outcome::{DeadlineOwner, Outcome, OutcomeKind};
use crate::record::Dispatched;
use crate::session::Limit;
use crate::story::{Call, OutgoingRequest, Story};
use crate::trace::TraceContext;

/// Most overruns of a report. A run that breaches the limits of more host functions has other
/// problems; the totals of all functions are in [`HostCalls`].
pub const OVERRUNS_MAX: usize = 16;

/// One frame of a guest's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The function's name, if the module contains names.
    pub function: Option<String>,
    /// The module's name, if it has one.
    pub module: Option<String>,
    /// Offset of the instruction in the module's file, in bytes.
    pub offset: u64,
    /// Source file, if the module contains DWARF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Source line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Where the time of a run went, in microseconds. The parts have no gaps: except for rounding, their
/// sum is [`RunReport::wall_us`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSplit {
    /// From the dispatch until the budget began.
    pub queue: u64,
    /// Compiling the module, or waiting for another dispatch to compile it.
    pub compile: u64,
    /// Instantiating it, including its `start` function.
    pub instantiate: u64,
    /// In the guest's own code or ready to execute it: time slices of other guests are included.
    pub guest: u64,
    /// In host functions, or parked before them.
    pub host: u64,
    /// From the end of its code until its result was read and its store was dropped.
    pub teardown: u64,
}

impl TimeSplit {
    /// The sum of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { queue, compile, instantiate, guest, host, teardown } = *self;
        let parts = [queue, compile, instantiate, guest, host, teardown];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// How much telemetry of a guest was dropped because it exceeded the bounds of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TelemetryDropped {
    /// Spans.
    pub spans: u64,
    /// Events of spans.
    pub span_events: u64,
    /// Attributes of spans and events.
    pub attributes: u64,
    /// Observations of metrics.
    pub metrics: u64,
    /// Log lines and wide events.
    pub log_lines: u64,
}

impl TelemetryDropped {
    /// Whether nothing was dropped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// How the instances of a module are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    /// In a slot of the host's pool, as usual.
    Pooled,
    /// Outside of the pool, because the module may exceed a slot: it has more memories, tables or
    /// modules, a larger state, or is granted more memory. Such runs take several times as long to
    /// start, and a host has few of them at a time.
    OnDemand,
}

/// The host calls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCalls {
    /// How many began.
    pub count: u64,
    /// The calls by function, in the order of first calls.
    pub by_function: Vec<FunctionCalls>,
}

/// Where a run ended, in terms that a replay reaches again: at which host call, and on which side of
/// it. Time is not such a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndPoint {
    /// The position relative to that call.
    pub place: CallPlace,
    /// The number of the host call in the run, from 1; 0 before the first.
    pub call: u64,
}

/// The position of a run's end relative to a host call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPlace {
    /// At its entry: the call did nothing, and does not count.
    Before,
    /// Inside it, or on its way out: the guest never got its result.
    Inside,
    /// In the guest's code after it.
    After,
}

impl EndPoint {
    /// How many host calls had begun.
    #[must_use]
    pub const fn calls_begun(self) -> u64 {
        match self.place {
            CallPlace::Before => self.call.saturating_sub(1),
            CallPlace::Inside | CallPlace::After => self.call,
        }
    }
}

impl fmt::Display for EndPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.place {
            CallPlace::Before => "before",
            CallPlace::Inside => "inside",
            CallPlace::After => "after",
        };
        write!(f, "{place} host call {}", self.call)
    }
}

/// The breach of a limit inside a run other than its deadline, which its outcome states: by calls of
/// one host function, or by the wait for its start. The values are those of the first breach; later
/// ones are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrun {
    /// Which limit.
    pub limit: Limit,
    /// The host function as the guest imports it, or what its calls were about; `None` if it was not
    /// a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<Cow<'static, str>>,
    /// From the start of the budget until it began, in microseconds; zero if it began earlier.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub started_us: u64,
    /// The limit, in milliseconds.
    pub threshold_ms: u64,
    /// The measured time, in milliseconds, rounded up: always above `threshold_ms`.
    pub observed_ms: u64,
    /// How often it was breached, from 1.
    pub times: u64,
}

impl Overrun {
    /// One breach of `limit`, which allows `allowed`, by `measured`; not by a host call.
    #[must_use]
    pub fn once(limit: Limit, allowed: Duration, measured: Duration) -> Self {
        let threshold_ms = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX - 1);
        let observed = measured.as_nanos().div_ceil(1_000_000);
        let observed_ms = u64::try_from(observed).unwrap_or(u64::MAX);
        // Clocks are read at slightly different moments, but the caller knows that it is more.
        let observed_ms = observed_ms.max(threshold_ms.saturating_add(1));
        Self { limit, host_call: None, started_us: 0, threshold_ms, observed_ms, times: 1 }
    }
}

/// What a run was recorded as, for its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recording {
    /// All results of host calls, in the host's own form.
    Whole(WholeRecording),
    /// Nothing: only the decision about it can be replayed.
    DecisionOnly {
        /// Why.
        reason: String,
    },
}

/// A recording in memory, with its share of the host's memory for recordings, which is released when
/// the last clone is dropped.
#[derive(Clone)]
pub struct WholeRecording {
    bytes: Arc<[u8]>,
    share: Option<Arc<dyn Send + Sync>>,
}

impl WholeRecording {
    /// Creates a recording of these bytes that keeps `share` until its last clone is dropped.
    #[must_use]
    pub fn holding(bytes: impl Into<Arc<[u8]>>, share: Arc<dyn Send + Sync>) -> Self {
        Self { bytes: bytes.into(), share: Some(share) }
    }
}

impl<T: Into<Arc<[u8]>>> From<T> for WholeRecording {
    fn from(bytes: T) -> Self {
        Self { bytes: bytes.into(), share: None }
    }
}

impl Deref for WholeRecording {
    type Target = Arc<[u8]>;

    fn deref(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl PartialEq for WholeRecording {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for WholeRecording {}

impl fmt::Debug for WholeRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeRecording")
            .field("bytes", &self.bytes.len())
            .field("has_share", &self.share.is_some())
            .finish()
    }
}

/// What a record states about a run's recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recorded {
    /// There is a recording of this size, in bytes.
    Bytes(u64),
    /// There is none, for this reason.
    DecisionOnly(String),
}

impl Recording {
    /// What the record of its run states about it.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        match self {
            Self::Whole(bytes) => Recorded::Bytes(bytes.len() as u64),
            Self::DecisionOnly { reason } => Recorded::DecisionOnly(reason.clone()),
        }
    }
}

/// Converts a time to the unit of reports and records: whole microseconds, at most `u64::MAX`.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The calls of one host function in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCalls {
    /// The function, as the guest imports it.
    pub name: Cow<'static, str>,
    /// How many calls began.
    pub count: u64,
    /// Time in them, in microseconds.
    pub total_us: u64,
    /// Whether the run ended inside one of them.
    pub in_flight: bool,
    /// The calls that failed, if a guest can wait in the function: others fail only because of their
    /// arguments.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub failed: Calls,
    /// The calls that their own time limit ended.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub timed_out: Calls,
    /// The calls that waited for the lease of their host before they began, and how long. Calls whose
    /// run ended meanwhile never began, so only this counts them. It is not part of `total_us`.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub parked: Calls,
}

/// How many calls, and how long they took together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// How many.
    pub count: u64,
    /// Time in them, in microseconds.
    pub total_us: u64,
}

/// The deadline of a run, and how much of it was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineReport {
    /// The effective budget, in milliseconds.
    pub budget_ms: u64,
    /// Time from the start of the budget to the end, in milliseconds, rounded up.
    pub elapsed_ms: u64,
    /// Time from the deadline until the guest was off the CPU, in microseconds; zero if the deadline
    /// was not reached.
    pub overrun_us: u64,
    /// Whose deadline it was.
    pub owner: DeadlineOwner,
}

/// The details of a run that some records contain besides what was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// What it did.
    #[serde(flatten)]
    pub story: Story,
    /// Where the guest was when it was stopped or trapped, innermost frame first; empty if it timed
    /// out, because that outcome contains the frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backtrace: Vec<Frame>,
    /// As [`RunReport::wall_us`].
    pub wall_us: u64,
    /// As [`RunReport::cpu_us`].
    pub cpu_us: u64,
    /// As [`RunReport::peak_memory_bytes`].
    pub peak_memory_bytes: u64,
    /// As [`RunReport::peak_host_memory_bytes`]; also 0 in records of earlier versions.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub peak_host_memory_bytes: u64,
    /// As [`RunReport::allocation`]; also `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// As [`RunReport::telemetry_dropped`]; also `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry_dropped: Option<TelemetryDropped>,
}

impl Account {
    /// The details of the run that `report` describes.
    #[must_use]
    pub fn of(report: &RunReport) -> Self {
        let backtrace = match &report.outcome {
            Outcome::TimedOut(_) => Vec::new(),
            _ => report.backtrace.clone(),
        };
        Self {
            story: report.story.clone(),
            backtrace,
            wall_us: report.wall_us,
            cpu_us: report.cpu_us,
            peak_memory_bytes: report.peak_memory_bytes,
            peak_host_memory_bytes: report.peak_host_memory_bytes,
            allocation: report.allocation,
            telemetry_dropped: report.telemetry_dropped,
        }
    }
}

/// Everything that the host reports about one run. As JSON it is the output of `sandglass run`.
#[derive(Clone, Debug, PartialEq)]
pub struct RunReport {
    /// Which dispatch.
    pub dispatch_id: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// The module that ran; `None` if it was not found.
    pub module: Option<ModuleHash>,
    /// How its instance was allocated, or would have been; `None` if no module was found.
    pub allocation: Option<Allocation>,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it ended: the first cause.
    pub cause: Cause,
    /// When its budget began; `None` if it never started.
    pub started_at: Option<WallTime>,
    /// Its deadline.
    pub deadline: DeadlineReport,
    /// What was running when it was stopped or trapped, by its most specific name, as in
    /// [`HandlerDeadlineExceeded::dying_span`](crate::HandlerDeadlineExceeded::dying_span).
    pub dying_span: Option<String>,
    /// The host function that was running then, if one was.
    pub dying_call: Option<String>,
    /// Where that was, in host calls.
    pub ended_at: Option<EndPoint>,
    /// Where the guest was then, innermost frame first.
    pub backtrace: Vec<Frame>,
    /// The host calls that it made.
    pub host_calls: HostCalls,
    /// The breached limits inside it, at most [`OVERRUNS_MAX`].
    pub overruns: Vec<Overrun>,
    /// Its host calls one by one, and its requests.
    pub story: Story,
    /// Where the time went.
    pub time_split_us: TimeSplit,
    /// From the dispatch to the end of the teardown, plus the compilation for it before the dispatch,
    /// in microseconds.
    pub wall_us: u64,
    /// CPU time from the instantiation to the result, in microseconds. The first time slice of a run
    /// (until it waits or 1 ms has passed) counts with its wall time.
    pub cpu_us: u64,
    /// Largest linear memory at any time, in bytes.
    pub peak_memory_bytes: u64,
    /// Most memory that the host used for it at any time, in bytes: resources, bodies, streams,
    /// scratch and results.
    pub peak_host_memory_bytes: u64,
    /// How much of its telemetry was dropped; `None` if it never ran.
    pub telemetry_dropped: Option<TelemetryDropped>,
    /// Its recording; `None` if none was requested, or it never ran.
    pub recording: Option<Recording>,
}

#[derive(Serialize)]
struct ErrorView {
    kind: String,
    message: String,
}

#[derive(Serialize)]
struct MemoryView {
    peak_bytes: u64,
    host_peak_bytes: u64,
}

#[derive(Serialize)]
struct ReportView<'a> {
    outcome: OutcomeKind,
    result: Option<&'a Value>,
    error: Option<ErrorView>,
    deadline: DeadlineReport,
    dying_span: Option<&'a str>,
    dying_call: Option<&'a str>,
    backtrace: &'a [Frame],
    host_calls: &'a HostCalls,
    overruns: &'a [Overrun],
    // The story: empty lists and zeros are serialized, too.
    calls: &'a [Call],
    calls_omitted: u64,
    requests: &'a [OutgoingRequest],
    requests_omitted: u64,
    time_split_us: TimeSplit,
    wall_us: u64,
    cpu_us: u64,
    allocation: Option<Allocation>,
    memory: MemoryView,
    telemetry_dropped: Option<TelemetryDropped>,
    trace_id: String,
    dispatch_id: DispatchId,
}

impl RunReport {
    /// A report in which only the end is known: nothing started, and nothing was measured.
    #[must_use]
    pub fn new(
        dispatch_id: DispatchId,
        trace: TraceContext,
        outcome: Outcome,
        cause: Cause,
    ) -> Self {
        Self {
            dispatch_id,
            trace,
            module: None,
            allocation: None,
            outcome,
            cause,
            started_at: None,
            deadline: DeadlineReport::default(),
            dying_span: None,
            dying_call: None,
            ended_at: None,
            backtrace: Vec::new(),
            host_calls: HostCalls::default(),
            overruns: Vec::new(),
            story: Story::default(),
            time_split_us: TimeSplit::default(),
            wall_us: 0,
            cpu_us: 0,
            peak_memory_bytes: 0,
            peak_host_memory_bytes: 0,
            telemetry_dropped: None,
            recording: None,
        }
    }

    /// The report of a handler of which only the end is known, such as one that is not a guest.
    #[must_use]
    pub fn unreported(dispatched: &Dispatched, outcome: Outcome, cause: Cause) -> Self {
        let (budget_ms, owner) = (dispatched.budget_ms, dispatched.owner);
        Self {
            module: dispatched.module_hash,
            deadline: DeadlineReport { budget_ms, owner, ..DeadlineReport::default() },
            ..Self::new(dispatched.dispatch, dispatched.trace, outcome, cause)
        }
    }

    /// The guest's whole result, if it returned a readable one.
    #[must_use]
    pub fn result(&self) -> Option<&Value> {
        match &self.outcome {
            Outcome::Completed(completion) => Some(&completion.result),
            Outcome::Failed(failure) => failure.result.as_ref(),
            _ => None,
        }
    }
}

impl Serialize for RunReport {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ReportView {
            outcome: self.outcome.kind(),
            result: self.result(),
            error: self.outcome.error().map(|(kind, message)| ErrorView { kind, message }),
            deadline: self.deadline,
            dying_span: self.dying_span.as_deref(),
            dying_call: self.dying_call.as_deref(),
            backtrace: &self.backtrace,
            host_calls: &self.host_calls,
            overruns: &self.overruns,
            calls: &self.story.calls,
            calls_omitted: self.story.calls_omitted,
            requests: &self.story.requests,
            requests_omitted: self.story.requests_omitted,
            time_split_us: self.time_split_us,
            wall_us: self.wall_us,
            cpu_us: self.cpu_us,
            allocation: self.allocation,
            memory: MemoryView {
                peak_bytes: self.peak_memory_bytes,
                host_peak_bytes: self.peak_host_memory_bytes,
            },
            telemetry_dropped: self.telemetry_dropped,
            trace_id: self.trace.trace_id.to_string(),
            dispatch_id: self.dispatch_id,
        }
        .serialize(serializer)
    }
}
