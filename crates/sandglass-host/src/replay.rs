//! Guest replay: a recorded run is had again, with every answer from its recording,
//! and compared with it: the same host calls in the same order with the same
//! arguments, and the same end. It needs no clock, and reaches nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use minicbor::Decoder;
use sandglass_model::{
    CallPlace, Cause, EndPoint, Ended, EntityRef, GuestLimits, ModuleHash, Outcome, Rejection,
    RunReport,
};

use crate::error::Error;
use crate::host::Host;
use crate::integration::Integration;
use sandglass_supervisor::deadline::DispatchDeadline;
use sandglass_supervisor::dispatch::{Context, Dispatch};
use sandglass_supervisor::manifest::Manifest;
use sandglass_supervisor::node::{NoAccess, NodeCall};
use sandglass_supervisor::recording::{End, Found, Given, Header, Invocation, Player, secrets_in};
pub use sandglass_supervisor::recording::{PlayedCall, Watcher};
use sandglass_supervisor::run::Phase;
use sandglass_supervisor::secret::Secret;

/// Least time that a guest has to come to its end again: a machine may be much slower
/// than the one of the recorded run.
const LEAST_PATIENCE: Duration = Duration::from_secs(30);
/// How many times as long as the recorded run's a guest's own time may be.
const SLOWER_BY: u64 = 20;
/// Most characters of an outcome that a divergence shows.
const SHOWN_CHARS: usize = 2_000;

/// A run that was recorded.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    recording: Arc<[u8]>,
    header: Header,
    secrets: BTreeMap<String, u64>,
}

/// That bytes are no recording that this host plays; the text says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recording can't be played: {0}")]
pub struct InvalidRecording(String);

impl RecordedRun {
    /// Reads what [`Recording::Whole`](sandglass_model::Recording::Whole) held.
    ///
    /// # Errors
    /// It is no recording, or of a version that this host doesn't play.
    pub fn read(recording: Arc<[u8]>) -> Result<Self, InvalidRecording> {
        let header = Header::read(&mut Decoder::new(&recording));
        let header = header.map_err(|why| InvalidRecording(why.to_string()))?;
        let secrets = secrets_in(&recording).map_err(|why| InvalidRecording(why.to_string()))?;
        Ok(Self { recording, header, secrets })
    }

    /// The module that ran.
    #[must_use]
    pub fn module(&self) -> ModuleHash {
        self.header.module
    }

    /// What the run might use.
    #[must_use]
    pub fn limits(&self) -> GuestLimits {
        self.header.limits
    }

    /// The names of the secrets that the guest was given, or passed on. The recording
    /// doesn't hold them, so they are to be given again.
    #[must_use]
    pub fn secrets(&self) -> BTreeSet<&str> {
        self.secrets.keys().map(String::as_str).collect()
    }
}

/// How a recorded run ended, as far as the same run had again ends likewise: of the
/// time that it took there is nothing here.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedEnd {
    /// How it ended.
    pub outcome: Outcome,
    /// What ended it.
    pub cause: Cause,
    /// What was running when it was stopped or trapped.
    pub dying_span: Option<String>,
    /// Where among its host calls that was.
    pub ended_at: Option<EndPoint>,
    /// The host calls that it made.
    pub host_calls: u64,
    /// How long its guest was at work in its own code, in microseconds: a replay that
    /// takes very much longer has gone astray.
    pub guest_us: u64,
}

impl From<&RunReport> for RecordedEnd {
    fn from(report: &RunReport) -> Self {
        Self {
            outcome: report.outcome.clone(),
            cause: report.cause,
            dying_span: report.dying_span.clone(),
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
            ended_at: ended.ended_at,
            host_calls: ended.host_calls.count,
            guest_us: split.guest.saturating_add(split.instantiate),
        }
    }
}

/// What is to be had again, and how.
pub struct Replay<'a> {
    run: &'a RecordedRun,
    end: &'a RecordedEnd,
    secrets: BTreeMap<String, Secret>,
    until: Option<u64>,
    watcher: Option<Watcher>,
}

impl<'a> Replay<'a> {
    /// The whole run, which needs no secrets.
    #[must_use]
    pub fn new(run: &'a RecordedRun, end: &'a RecordedEnd) -> Self {
        Self { run, end, secrets: BTreeMap::new(), until: None, watcher: None }
    }

    /// Gives the values of [`RecordedRun::secrets`].
    #[must_use]
    pub fn secrets(self, secrets: impl IntoIterator<Item = (String, Secret)>) -> Self {
        Self { secrets: secrets.into_iter().collect(), ..self }
    }

    /// Ends it behind this host call, in place of where the run ended.
    #[must_use]
    pub fn until(self, call: u64) -> Self {
        Self { until: Some(call), ..self }
    }

    /// Tells `watcher` of each host call.
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

/// What came of a replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The host calls that the guest made.
    pub calls: u64,
    /// The first difference from the recorded run; none where there is none.
    pub divergence: Option<RunDivergence>,
}

/// A difference between a recorded run and the same run had again.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RunDivergence {
    /// The host call, from 1; none where the end differs.
    pub call: Option<u64>,
    /// What differs.
    pub what: String,
    /// What was recorded.
    pub recorded: String,
    /// What came.
    pub came: String,
}

/// Why a run can't be had again.
#[derive(Debug, thiserror::Error)]
pub enum NotReplayed {
    /// A secret isn't given, or isn't the one that the run had.
    #[error("{0}")]
    Secret(String),
    /// The integration isn't of the module that ran.
    #[error("the run was of the module {recorded}, and this one is {given}")]
    Module {
        /// The module that ran.
        recorded: ModuleHash,
        /// The one that was given.
        given: ModuleHash,
    },
    /// The host could not do its work.
    #[error(transparent)]
    Host(#[from] Error),
}

impl Host {
    /// Compiles `bytes`, the module of [`RecordedRun::module`], to have `run` again: it is
    /// held to the run's limits, and granted nothing, since nothing is reached.
    ///
    /// # Errors
    /// As [`Host::load`].
    pub fn load_for_replay(
        &self,
        bytes: &[u8],
        run: &RecordedRun,
    ) -> Result<Integration, Rejection> {
        let manifest =
            Manifest::named("replayed").limits(run.header.limits).functions(self.own_functions());
        self.load(bytes, manifest)
    }

    /// Has a recorded run again, on a fresh instance of `integration`, which comes from
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
        let given = Given(replay.secrets);
        for (name, len) in &replay.run.secrets {
            given.find(name, *len).map_err(NotReplayed::Secret)?;
        }
        let ended = replay.end;
        let until = replay.until.filter(|call| *call < ended.host_calls);
        let end = match until {
            Some(call) => {
                let point = EndPoint { place: CallPlace::After, call };
                End::At { point, phase: Phase::Instantiating, cause: Cause::Cancel }
            }
            None => end_of(ended),
        };
        let recording = Arc::clone(&replay.run.recording);
        // A run was read before it could be asked for.
        let player = Player::new(recording, given, end, replay.watcher)
            .map_err(|why| NotReplayed::Host(Error::Unavailable(why.to_string())))?;
        let found = player.found();
        let patience = patience(ended);
        let entity = EntityRef::new("Replayed", "run").expect("both are names");
        // What the guest learns of its entity is in the recorded context.
        let dispatch = Dispatch::new(entity, "Replay", Context::default())
            .deadline(DispatchDeadline::after(patience))
            .played_by(player);
        let dispatch = match &replay.run.header.node {
            Some(invocation) => dispatch.node(again(invocation)),
            None => dispatch,
        };
        let report = self.run(integration, dispatch).await?;
        let found = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let compared = Compared { ended, end, report: &report, found: &found };
        let divergence = match until {
            Some(_) if found.came_to_its_end => None,
            _ => compared.divergence(patience),
        };
        Ok(Replayed { calls: found.calls, divergence })
    }
}

/// The invocation of a node, which reaches nothing but its recording.
fn again(invocation: &Invocation) -> NodeCall {
    let Invocation { index, request } = invocation.clone();
    NodeCall { index, request, access: Arc::new(NoAccess), seed: [0; 32] }
}

/// How the recorded run ended: by itself, or because it was ended there.
fn end_of(ended: &RecordedEnd) -> End {
    match (ended.cause, ended.ended_at) {
        (Cause::Returned | Cause::NotStarted, _) | (_, None) => End::ByItself,
        (Cause::Trap, Some(point)) if point.place != CallPlace::Inside => End::ByItself,
        (cause, Some(point)) => {
            let began = ended.dying_span.as_deref() == Some(Phase::Running.own_span());
            let phase = if began { Phase::Running } else { Phase::Instantiating };
            End::At { point, phase, cause }
        }
    }
}

fn patience(ended: &RecordedEnd) -> Duration {
    LEAST_PATIENCE.saturating_add(Duration::from_micros(ended.guest_us.saturating_mul(SLOWER_BY)))
}

/// A recorded run beside the same run had again.
struct Compared<'a> {
    ended: &'a RecordedEnd,
    end: End,
    report: &'a RunReport,
    found: &'a Found,
}

impl Compared<'_> {
    fn divergence(&self, patience: Duration) -> Option<RunDivergence> {
        let Self { ended, report, found, .. } = self;
        if let Some(difference) = &found.difference {
            return Some(RunDivergence {
                call: Some(found.calls),
                what: difference.what.clone(),
                recorded: difference.recorded.clone(),
                came: difference.came.clone(),
            });
        }
        let came = if report.cause == Cause::Deadline && !found.came_to_its_end {
            format!("it went on for {} s", patience.as_secs())
        } else {
            told(report.outcome.kind(), &report.outcome, report.ended_at)
        };
        let differs = |what: &str| {
            Some(RunDivergence {
                call: None,
                what: what.to_owned(),
                recorded: told(ended.outcome.kind(), &ended.outcome, ended.ended_at),
                came: came.clone(),
            })
        };
        if let Some(next) = &found.next
            && !found.came_to_its_end
        {
            return Some(RunDivergence {
                call: Some(found.calls + 1),
                what: "a host call that is missing".to_owned(),
                recorded: next.clone(),
                came,
            });
        }
        match self.end {
            End::At { .. } if !found.came_to_its_end => differs("another end"),
            End::At { .. } if report.dying_span != ended.dying_span => {
                differs("another dying span")
            }
            End::At { .. } => None,
            End::ByItself if report.cause != ended.cause => differs("another end"),
            End::ByItself if report.outcome != ended.outcome => differs("another outcome"),
            End::ByItself if report.ended_at != ended.ended_at => {
                differs("another place to end at")
            }
            End::ByItself => None,
        }
    }
}

fn told(kind: impl fmt::Display, outcome: &Outcome, at: Option<EndPoint>) -> String {
    let outcome = serde_json::to_string(outcome).unwrap_or_default();
    let at = at.map(|at| format!(" {at}")).unwrap_or_default();
    let shown: String = outcome.chars().take(SHOWN_CHARS).collect();
    format!("{kind}{at}: {shown}")
}
