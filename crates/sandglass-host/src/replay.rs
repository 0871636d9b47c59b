//! Guest replay: executes a recorded handler run again, with every result of a host call from its
//! recording, and compares the two: they must make the same host calls in the same order with the same
//! arguments, and end in the same way. A replay needs no clock, and reaches nothing outside.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use minicbor::Decoder;
use sandglass_model::{
    CallPlace, Cause, EndPoint, Ended, EntityRef, FailureKind, GuestLimits, LimitKind, ModuleHash,
    Outcome, Rejection, RunReport,
};

use crate::error::Error;
use crate::host::Host;
use crate::host_function::Signature;
use crate::integration::Integration;
use sandglass_supervisor::deadline::DispatchDeadline;
use sandglass_supervisor::dispatch::{Context, Dispatch};
use sandglass_supervisor::manifest::Manifest;
use sandglass_supervisor::node::{NoAccess, NodeCall};
use sandglass_supervisor::parking::is_parked_span;
use sandglass_supervisor::recording::{
    End, GivenSecrets, Header, Invocation, ReplayProgress, Replayer, secrets_in,
};
pub use sandglass_supervisor::recording::{ReplayedCall, Watcher};
use sandglass_supervisor::run::Phase;
use sandglass_supervisor::secret::Secret;

/// Least time that a guest has in a replay, because this machine may be much slower than the one of the
/// recorded handler run.
const LEAST_PATIENCE: Duration = Duration::from_secs(30);
/// How many times longer a guest may compute in a replay than it did when it was recorded.
const SLOWER_BY: u64 = 20;
/// Longest outcome that a divergence shows, in characters.
const SHOWN_CHARS: usize = 2_000;

/// A recorded handler run.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    recording: Arc<[u8]>,
    header: Header,
    secrets: BTreeMap<String, u64>,
}

/// The bytes are not a recording that this host can replay; the text states why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recording cannot be replayed: {0}")]
pub struct InvalidRecording(String);

impl RecordedRun {
    /// Reads a [`Recording::Whole`](sandglass_model::Recording::Whole).
    ///
    /// # Errors
    /// It is not a recording, or of a version that this host cannot replay.
    pub fn read(recording: Arc<[u8]>) -> Result<Self, InvalidRecording> {
        let header = Header::read(&mut Decoder::new(&recording));
        let header = header.map_err(|why| InvalidRecording(why.to_string()))?;
        let secrets = secrets_in(&recording).map_err(|why| InvalidRecording(why.to_string()))?;
        Ok(Self { recording, header, secrets })
    }

    /// The module that was executed.
    #[must_use]
    pub fn module(&self) -> ModuleHash {
        self.header.module
    }

    /// The limits of the handler run.
    #[must_use]
    pub fn limits(&self) -> GuestLimits {
        self.header.limits
    }

    /// The names of the secrets that the guest read or passed on. The recording does not contain their
    /// values, so a replay needs them again.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<&str> {
        self.secrets.keys().map(String::as_str).collect()
    }
}

/// How a recorded handler run ended, as far as a replay must end in the same way. Times are not part of
/// it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it.
    pub cause: Cause,
    /// The dying span, if it was stopped or trapped.
    pub dying_span: Option<String>,
    /// The host function that was running then, if that is recorded.
    pub dying_call: Option<String>,
    /// Where that was, counted in host calls.
    pub ended_at: Option<EndPoint>,
    /// Count of its host calls.
    pub host_calls: u64,
    /// How long the guest computed, in microseconds. A replay that takes very much longer has diverged.
    pub guest_us: u64,
}

impl From<&RunReport> for RecordedEnd {
    fn from(report: &RunReport) -> Self {
        Self {
            outcome: report.outcome.clone(),
            cause: report.cause,
            dying_span: report.dying_span.clone(),
            dying_call: report.dying_call.clone(),
            ended_at: report.ended_at,
            host_calls: report.host_calls.count,
            guest_us: report.time_split_us.guest + report.time_split_us.instantiate,
        }
    }
}

impl From<&Ended> for RecordedEnd {
    fn from(ended: &Ended) -> Self {
        let split = ended.time_split_us;
        Self {
            outcome: ended.outcome.clone(),
            cause: ended.cause,
            dying_span: ended.dying_span.clone(),
            dying_call: ended.dying_call.clone(),
            ended_at: ended.ended_at,
            host_calls: ended.host_calls.count,
            guest_us: split.guest.saturating_add(split.instantiate),
        }
    }
}

/// A request to replay a handler run.
pub struct Replay<'a> {
    run: &'a RecordedRun,
    end: &'a RecordedEnd,
    secrets: BTreeMap<String, Secret>,
    until: Option<u64>,
    watcher: Option<Watcher>,
}

impl<'a> Replay<'a> {
    /// Replays the whole handler run, without secrets.
    #[must_use]
    pub fn new(run: &'a RecordedRun, end: &'a RecordedEnd) -> Self {
        Self { run, end, secrets: BTreeMap::new(), until: None, watcher: None }
    }

    /// Sets the values of [`RecordedRun::secrets`].
    #[must_use]
    pub fn secrets(self, secrets: impl IntoIterator<Item = (String, Secret)>) -> Self {
        Self { secrets: secrets.into_iter().collect(), ..self }
    }

    /// Ends the replay after this host call, instead of where the recorded handler run ended.
    #[must_use]
    pub fn until(self, call: u64) -> Self {
        Self { until: Some(call), ..self }
    }

    /// Calls `watcher` for each host call.
    #[must_use]
    pub fn watched_by(self, watcher: Watcher) -> Self {
        Self { watcher: Some(watcher), ..self }
    }
}

impl fmt::Debug for Replay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay")
            .field("end", &self.end)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Count of the guest's host calls.
    pub calls: u64,
    /// The first difference from the recorded handler run; `None` if there is none.
    pub divergence: Option<RunDivergence>,
}

/// A difference between a recorded handler run and its replay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RunDivergence {
    /// The host call, from 1; `None` if the end differs.
    pub call: Option<u64>,
    /// What differs.
    pub what: String,
    /// What was recorded.
    pub recorded: String,
    /// What was observed in the replay.
    pub came: String,
}

/// Why a handler run cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum NotReplayed {
    /// A secret is missing, or is not the one that the recorded handler run had.
    #[error("{0}")]
    Secret(String),
    /// The integration is not of the module that was executed.
    #[error("the run was of the module {recorded}, and this one is {given}")]
    Module {
        /// The module that was executed.
        recorded: ModuleHash,
        /// The one that was given.
        given: ModuleHash,
    },
    /// The host could not do its work.
    #[error(transparent)]
    Host(#[from] Error),
}

impl Host {
    /// Compiles `bytes`, the module of [`RecordedRun::module`], to replay `run`. It has the limits of the
    /// recorded handler run and no grants, because a replay reaches nothing.
    ///
    /// # Errors
    /// As [`Host::load`].
    pub fn load_for_replay(
        &self,
        bytes: &[u8],
        run: &RecordedRun,
    ) -> Result<Integration, Rejection> {
        let functions = self.functions();
        let manifest = Manifest::named("replayed")
            .limits(run.header.limits)
            .functions(functions.iter().map(Signature::full_name));
        self.load(bytes, manifest)
    }

    /// Replays a recorded handler run on a new instance of `integration`, which comes from
    /// [`Host::load_for_replay`].
    ///
    /// # Errors
    /// A secret is missing, or the host could not do its work.
    pub async fn replay(
        &self,
        integration: &Integration,
        replay: Replay<'_>,
    ) -> Result<Replayed, NotReplayed> {
        let (recorded, module) = (replay.run.module(), integration.module());
        if recorded != module {
            return Err(NotReplayed::Module { recorded, given: module });
        }
        let given = GivenSecrets(replay.secrets);
        for (name, len) in &replay.run.secrets {
            given.find(name, *len).map_err(NotReplayed::Secret)?;
        }
        let ended = replay.end;
        let until = replay.until.filter(|call| *call < ended.host_calls);
        let end = match until {
            Some(call) => End::Until(call),
            None => end_of(ended),
        };
        let recording = Arc::clone(&replay.run.recording);
        // The header was read before, so this fails only for what follows it.
        let replayer = Replayer::new(recording, given, end, replay.watcher)
            .map_err(|why| NotReplayed::Host(Error::Unavailable(why.to_string())))?;
        let progress = replayer.progress();
        let patience = patience(ended);
        let entity = EntityRef::new("Replayed", "run").expect("both are names");
        // The guest gets its entity from the recorded context.
        let dispatch = Dispatch::new(entity, "Replay", Context::default())
            .deadline(DispatchDeadline::after(patience))
            .replayed_by(replayer);
        let dispatch = match &replay.run.header.node {
            Some(invocation) => dispatch.node(node_call(invocation)),
            None => dispatch,
        };
        let report = self.run(integration, dispatch).await?;
        let progress = progress.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let compared = Compared { ended, end, report: &report, progress: &progress };
        let divergence = match until {
            Some(_) if progress.reached_end => None,
            _ => compared.divergence(patience),
        };
        Ok(Replayed { calls: progress.calls, divergence })
    }
}

/// The invocation of a node that reaches nothing but its recording.
fn node_call(invocation: &Invocation) -> NodeCall {
    let Invocation { index, request } = invocation.clone();
    NodeCall { index, request, access: Arc::new(NoAccess), seed: [0; 32] }
}

/// Where the replay has to end, unless it ends by itself.
fn end_of(ended: &RecordedEnd) -> End {
    match (ended.cause, ended.ended_at) {
        (Cause::Returned | Cause::NotStarted, _) | (_, None) => End::ByItself,
        (Cause::Trap, Some(point))
            if point.place != CallPlace::Inside && !is_out_of_host_memory(&ended.outcome) =>
        {
            End::ByItself
        }
        (cause, Some(point)) => {
            let began = ended.dying_span.as_deref() == Some(Phase::Running.own_span());
            let phase = if began { Phase::Running } else { Phase::Instantiating };
            let in_call = ended.dying_call.is_some()
                || ended.dying_span.as_deref().is_some_and(is_parked_span);
            let is_waiting = point.place == CallPlace::After && in_call;
            End::At { point, phase, cause, is_waiting }
        }
    }
}

/// Whether the host ended the run because of what it would hold for it, which is not the same in a
/// replay.
fn is_out_of_host_memory(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Limit(breach) if breach.kind == LimitKind::HostMemory)
}

fn patience(ended: &RecordedEnd) -> Duration {
    LEAST_PATIENCE.saturating_add(Duration::from_micros(ended.guest_us.saturating_mul(SLOWER_BY)))
}

/// A recorded handler run and its replay.
struct Compared<'a> {
    ended: &'a RecordedEnd,
    end: End,
    report: &'a RunReport,
    progress: &'a ReplayProgress,
}

impl Compared<'_> {
    /// Whether the replay died in what the recorded run died in. A replay sends no request, so only
    /// the host function is compared, if it is recorded. It never waits for a lease, so of a run that
    /// ended while it waited, the place is compared.
    fn has_dying_span(&self) -> bool {
        let Self { ended, report, .. } = self;
        if ended.dying_span.as_deref().is_some_and(is_parked_span) {
            return report.ended_at == ended.ended_at;
        }
        match &ended.dying_call {
            Some(call) => report.dying_call.as_ref() == Some(call),
            None => [&report.dying_span, &report.dying_call].contains(&&ended.dying_span),
        }
    }

    fn divergence(&self, patience: Duration) -> Option<RunDivergence> {
        let Self { ended, report, progress, .. } = self;
        if let Some(difference) = &progress.difference {
            return Some(RunDivergence {
                call: Some(progress.calls),
                what: difference.what.clone(),
                recorded: difference.recorded.clone(),
                came: difference.came.clone(),
            });
        }
        let came = if report.cause == Cause::Deadline && !progress.reached_end {
            format!("it went on for {} s", patience.as_secs())
        } else {
            describe_end(&report.outcome, report.ended_at)
        };
        if let Some(next) = &progress.next
            && !progress.reached_end
        {
            return Some(RunDivergence {
                call: Some(progress.calls + 1),
                what: "a host call that is missing".to_owned(),
                recorded: next.clone(),
                came,
            });
        }
        let what = match self.end {
            End::At { .. } | End::Until(_) if !progress.reached_end => "another end",
            End::At { .. } if !self.has_dying_span() => "another dying span",
            End::ByItself if report.cause != ended.cause => "another end",
            End::ByItself if !is_same_outcome(&ended.outcome, &report.outcome) => "another outcome",
            End::ByItself if report.ended_at != ended.ended_at => "another place to end at",
            End::At { .. } | End::Until(_) | End::ByItself => return None,
        };
        Some(RunDivergence {
            call: None,
            what: what.to_owned(),
            recorded: describe_end(&ended.outcome, ended.ended_at),
            came,
        })
    }
}

/// Whether a replay that ended with `replayed` ended as recorded. If the host or the entity's spec
/// made a success a failure, the guest itself succeeds again: a replay refuses no call, and has no
/// spec.
fn is_same_outcome(recorded: &Outcome, replayed: &Outcome) -> bool {
    use FailureKind::{ActionNotTaken, Denied, NoAction};
    match (recorded, replayed) {
        (Outcome::Failed(failure), Outcome::Completed(completion)) => {
            [ActionNotTaken, Denied, NoAction].contains(&failure.kind)
                && failure.result.as_ref() == Some(&completion.result)
        }
        _ => recorded == replayed,
    }
}

fn describe_end(outcome: &Outcome, at: Option<EndPoint>) -> String {
    let kind = outcome.kind();
    let at = at.map(|at| format!(" {at}")).unwrap_or_default();
    let outcome = serde_json::to_string(outcome).unwrap_or_default();
    let shown: String = outcome.chars().take(SHOWN_CHARS).collect();
    format!("{kind}{at}: {shown}")
}
