//! What is known of one run when it has ended: the report that the command line
//! prints and that records are made from.

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
use crate::session::Limit;
use crate::story::{Call, OutgoingRequest, Story};
use crate::trace::TraceContext;

/// Most overruns that a run tells: as many host functions as breach their limits in any run
/// that is worth a look. Sums of all functions are in [`HostCalls`].
pub const OVERRUNS_MAX: usize = 16;

/// One frame of a guest's stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The function's name, where the module carries names.
    pub function: Option<String>,
    /// The module's name, where it has one.
    pub module: Option<String>,
    /// Offset of the instruction in the module's file, in bytes.
    pub offset: u64,
    /// Source file, where the module carries DWARF.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Source line, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Where the time of a run went, in microseconds. The parts follow each other without a gap:
/// together they are [`RunReport::wall_us`], but for what rounding takes from each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSplit {
    /// From the dispatch until the guest might run.
    pub queue: u64,
    /// Compiling the module, or waiting for somebody who did.
    pub compile: u64,
    /// Instantiating it, with its `start` function.
    pub instantiate: u64,
    /// In the guest's own code, or ready to be: others' slices are in it, too.
    pub guest: u64,
    /// In host functions.
    pub host: u64,
    /// From the end of its code until its answer was read, and the store and all that it held
    /// were dropped.
    pub teardown: u64,
}

impl TimeSplit {
    /// All parts together.
    #[must_use]
    pub fn total(&self) -> u64 {
        let Self { queue, compile, instantiate, guest, host, teardown } = *self;
        let parts = [queue, compile, instantiate, guest, host, teardown];
        parts.into_iter().fold(0, u64::saturating_add)
    }
}

/// How much of what a guest told went nowhere, because it was more than one run may tell.
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
    /// Lines of the log, and wide events.
    pub log_lines: u64,
}

impl TelemetryDropped {
    /// Whether nothing went nowhere.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where the instances of a module come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Allocation {
    /// From a slot of the host's pool, which is ready: the usual.
    Pooled,
    /// Made for each run, because the module may be larger than a slot: it has more
    /// memories, tables or modules, a larger state, or is granted more memory. Such runs
    /// take several times as long to start, and a host has few of them at once.
    OnDemand,
}

/// The host calls of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCalls {
    /// How many were begun.
    pub count: u64,
    /// The same by function, in the order of each one's first call.
    pub by_function: Vec<FunctionCalls>,
}

/// Where a run ended, in terms that a replay of it comes by again: which host call, and on
/// which side of it. Time is none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndPoint {
    /// Where it was in respect of that call.
    pub place: CallPlace,
    /// Which host call of the run, from 1; 0 before the first.
    pub call: u64,
}

/// Where a run that ended was in respect of a host call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallPlace {
    /// At its entry: nothing of it was done, and it isn't counted.
    Before,
    /// In it, or on the way out of it: the guest never had its answer.
    Inside,
    /// In the guest's code behind it.
    After,
}

impl EndPoint {
    /// How many host calls such a run has begun.
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

/// That a limit inside of a run was breached, other than its deadline, which its outcome tells:
/// by calls of one host function, or by the wait for its start. The first breach is told as it
/// was, and the others are counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overrun {
    /// Which limit.
    pub limit: Limit,
    /// The host function, as the guest imports it, or what its calls turned out to be about;
    /// none where it is no call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<Cow<'static, str>>,
    /// From the begin of the budget until it began, in microseconds; zero where it began
    /// before that.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub started_us: u64,
    /// What is allowed, in milliseconds.
    pub threshold_ms: u64,
    /// What was measured, in milliseconds, rounded up: always above `threshold_ms`.
    pub observed_ms: u64,
    /// How often it was breached so, from 1.
    pub times: u64,
}

impl Overrun {
    /// That `limit` allows `allowed`, and `measured` is more: once, by no call.
    #[must_use]
    pub fn once(limit: Limit, allowed: Duration, measured: Duration) -> Self {
        let threshold_ms = u64::try_from(allowed.as_millis()).unwrap_or(u64::MAX - 1);
        let observed = measured.as_nanos().div_ceil(1_000_000);
        let observed_ms = u64::try_from(observed).unwrap_or(u64::MAX);
        // Clocks differ by what they are read apart; that it is more is known.
        let observed_ms = observed_ms.max(threshold_ms.saturating_add(1));
        Self { limit, host_call: None, started_us: 0, threshold_ms, observed_ms, times: 1 }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What was kept of a run for its replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recording {
    /// All that the host told the guest, in the host's own form.
    Whole(WholeRecording),
    /// Nothing: its decision alone can be replayed.
    DecisionOnly {
        /// Why.
        reason: String,
    },
}

/// A recording in memory, and its share of what a host may keep there: that is given back
/// when the last clone is dropped.
#[derive(Clone)]
pub struct WholeRecording {
    bytes: Arc<[u8]>,
    share: Option<Arc<dyn Send + Sync>>,
}

impl WholeRecording {
    /// These bytes, which hold `share` for as long as this is somewhere.
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

/// What a record says of a run's recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recorded {
    /// There is one, of this size in bytes.
    Bytes(u64),
    /// There is none, and why.
    DecisionOnly(String),
}

impl Recording {
    /// What its run's record says of it.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        match self {
            Self::Whole(bytes) => Recorded::Bytes(bytes.len() as u64),
            Self::DecisionOnly { reason } => Recorded::DecisionOnly(reason.clone()),
        }
    }
}

/// A time as reports and records have it: in whole microseconds, `u64::MAX` where it is
/// beyond that.
#[must_use]
pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The calls of one host function in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCalls {
    /// The function, as the guest imports it.
    pub name: Cow<'static, str>,
    /// How many calls were begun.
    pub count: u64,
    /// Time in them, in microseconds.
    pub total_us: u64,
    /// Whether the run ended inside one.
    pub in_flight: bool,
}

/// The deadline of a run and how it went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadlineReport {
    /// The budget that held, in milliseconds.
    pub budget_ms: u64,
    /// Time from when the guest might run to its end, in milliseconds, rounded up.
    pub elapsed_ms: u64,
    /// Time from the deadline to the guest off the CPU, in microseconds; zero
    /// where the deadline wasn't reached.
    pub overrun_us: u64,
    /// Whose deadline it was.
    pub owner: DeadlineOwner,
}

/// What a record keeps of a run beside what was decided, where it keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// What it did.
    #[serde(flatten)]
    pub story: Story,
    /// Where the guest was when it was stopped or trapped, innermost frame first; nothing
    /// where it timed out, since that outcome has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub backtrace: Vec<Frame>,
    /// As [`RunReport::wall_us`].
    pub wall_us: u64,
    /// As [`RunReport::cpu_us`].
    pub cpu_us: u64,
    /// As [`RunReport::peak_memory_bytes`].
    pub peak_memory_bytes: u64,
    /// As [`RunReport::peak_host_memory_bytes`]; 0, too, in what earlier versions recorded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub peak_host_memory_bytes: u64,
    /// As [`RunReport::allocation`]; none, too, in what earlier versions recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// As [`RunReport::telemetry_dropped`]; none, too, in what earlier versions recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry_dropped: Option<TelemetryDropped>,
}

impl Account {
    /// What is kept of the run that `report` is of.
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

/// Everything that the host can say of one run. As JSON it is the report of
/// `sandglass run`.
#[derive(Clone, Debug, PartialEq)]
pub struct RunReport {
    /// Which dispatch.
    pub dispatch_id: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// The module that ran; none where none was found.
    pub module: Option<ModuleHash>,
    /// Where its instance came from, or would have; none where no module was found.
    pub allocation: Option<Allocation>,
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it: the first cause that was named.
    pub cause: Cause,
    /// When the guest might run; none where it never might.
    pub started_at: Option<WallTime>,
    /// Its deadline.
    pub deadline: DeadlineReport,
    /// What was running when it was stopped or trapped.
    pub dying_span: Option<String>,
    /// Where among its host calls that was.
    pub ended_at: Option<EndPoint>,
    /// Where the guest was then, innermost frame first.
    pub backtrace: Vec<Frame>,
    /// The host calls that it made.
    pub host_calls: HostCalls,
    /// The limits inside of it that were breached: at most [`OVERRUNS_MAX`].
    pub overruns: Vec<Overrun>,
    /// Its host calls one by one, and its requests.
    pub story: Story,
    /// Where the time went.
    pub time_split_us: TimeSplit,
    /// From the dispatch to the end of the teardown, and what was compiled for it before,
    /// in microseconds.
    pub wall_us: u64,
    /// Time on a CPU from the instantiation to the answer, in microseconds. The first slice
    /// of a run, until it waits or 1 ms has passed, counts as long as it took.
    pub cpu_us: u64,
    /// Most linear memory that it had, in bytes.
    pub peak_memory_bytes: u64,
    /// Most memory that the host held for it at any time, in bytes: resources, bodies, streams,
    /// scratch and results.
    pub peak_host_memory_bytes: u64,
    /// How much of what its guest told went nowhere; none where it never ran.
    pub telemetry_dropped: Option<TelemetryDropped>,
    /// What was kept for its replay; none where nobody asked for it, or it never ran.
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

/// A story as reports show it: with all its keys, whatever is in it.
#[derive(Serialize)]
struct StoryView<'a> {
    calls: &'a [Call],
    calls_omitted: u64,
    requests: &'a [OutgoingRequest],
    requests_omitted: u64,
}

impl<'a> StoryView<'a> {
    fn of(story: &'a Story) -> Self {
        let Story { calls, calls_omitted, requests, requests_omitted } = story;
        Self { calls, calls_omitted: *calls_omitted, requests, requests_omitted: *requests_omitted }
    }
}

#[derive(Serialize)]
struct ReportView<'a> {
    outcome: OutcomeKind,
    result: Option<&'a Value>,
    error: Option<ErrorView>,
    deadline: DeadlineReport,
    dying_span: Option<&'a str>,
    backtrace: &'a [Frame],
    host_calls: &'a HostCalls,
    overruns: &'a [Overrun],
    #[serde(flatten)]
    story: StoryView<'a>,
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
    /// The guest's whole answer, where it gave a readable one.
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
            backtrace: &self.backtrace,
            host_calls: &self.host_calls,
            overruns: &self.overruns,
            story: StoryView::of(&self.story),
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
