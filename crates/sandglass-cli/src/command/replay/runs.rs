//! Guest replay of a journal: each recorded run is had again, and compared.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use sandglass_host::replay::{
    NotReplayed, PlayedCall, RecordedEnd, RecordedRun, Replay, Replayed, RunDivergence,
};
use sandglass_host::{Host, Integration, Settings};
use sandglass_journal::SqliteReader;
use sandglass_model::{
    DispatchId, Ended, EntityRef, Event, GuestLimits, ModuleHash, Outcome, Position, Record,
    Recorded,
};

use super::guests::Guests;
use crate::compiling;
use crate::secrets;

/// Most divergences of runs that are kept; all are counted.
const DIVERGENCES_MAX: usize = 100;
/// Most reasons of decision-only runs that are told apart; the rest count as one.
const REASONS_MAX: usize = 50;
/// Most integrations that are held; they are loaded again where there are more.
const LOADED_MAX: usize = 64;

/// Which runs, and how.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The one dispatch that is had again; all, where there is none.
    pub(super) dispatch: Option<DispatchId>,
    /// The host call behind which it ends.
    pub(super) until: Option<u64>,
    pub(super) trace: Trace,
}

/// Whether each host call is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    Off,
    On,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// Runs that were had again.
    pub(super) replayed: u64,
    /// Runs whose decisions alone could be replayed, by the reasons.
    pub(super) decision_only: BTreeMap<String, DecisionOnly>,
    /// The first divergences.
    pub(super) divergences: Vec<Divergence>,
    pub(super) divergence_count: u64,
    /// Whether the dispatch that was asked for is there.
    pub(super) found: bool,
}

/// Runs that can't be had again for one reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionOnly {
    pub(super) runs: u64,
    /// The first of them.
    pub(super) dispatch: DispatchId,
}

impl Summary {
    /// How many runs can't be had again.
    pub(super) fn decision_only(&self) -> u64 {
        self.decision_only.values().map(|one| one.runs).sum()
    }
}

/// A run that came out differently.
#[derive(Debug)]
pub(super) struct Divergence {
    pub(super) position: Position,
    pub(super) entity: Option<EntityRef>,
    pub(super) dispatch: DispatchId,
    pub(super) attempt: u32,
    pub(super) run: RunDivergence,
}

/// A guest replay under way.
pub(super) struct Runs {
    host: Host,
    runtime: tokio::runtime::Runtime,
    guests: Guests,
    loaded: Vec<((ModuleHash, GuestLimits), Integration)>,
    wanted: Wanted,
    pub(super) summary: Summary,
}

impl Runs {
    /// # Errors
    /// The folder can't be read, or no host can be started.
    pub(super) fn new(
        folder: &Path,
        wanted: Wanted,
        compiling: compiling::Arguments,
    ) -> anyhow::Result<Self> {
        let settings = Settings {
            max_runs: 4,
            // What the runs were granted, some host granted.
            max_memory_bytes: u64::from(u32::MAX) + 1,
            ..Settings::default()
        };
        let host = Host::builder().settings(settings).compile_in(compiling.helper()).build();
        Ok(Self {
            host: host.context("can't start a host to run guests in")?,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            guests: Guests::find(folder)?,
            loaded: Vec::new(),
            wanted,
            summary: Summary::default(),
        })
    }

    /// Has the run again whose end `record` is; anything else is passed over.
    ///
    /// # Errors
    /// The host or the journal could not do its work.
    pub(super) fn feed(
        &mut self,
        record: &Record,
        journal: &mut SqliteReader,
    ) -> anyhow::Result<()> {
        let Event::Ended(ended) = &record.event else { return Ok(()) };
        if self.wanted.dispatch.is_some_and(|wanted| wanted != ended.dispatch) {
            return Ok(());
        }
        self.summary.found = true;
        match self.again(record, ended, journal)? {
            Came::NeverRan => {}
            Came::DecisionOnly(why) => self.decision_only(why, ended.dispatch),
            Came::Replayed(replayed) => {
                self.summary.replayed += 1;
                if let Some(run) = replayed.divergence {
                    self.differs(record, ended, run);
                }
            }
            Came::Damaged(what) => {
                let recorded = what;
                let what = "a recording that can't be played".to_owned();
                let came = "nothing".to_owned();
                self.differs(record, ended, RunDivergence { call: None, what, recorded, came });
            }
        }
        Ok(())
    }

    fn again(
        &mut self,
        record: &Record,
        ended: &Ended,
        journal: &mut SqliteReader,
    ) -> anyhow::Result<Came> {
        match &ended.recording {
            None if ended.outcome == Outcome::Interrupted => {
                return Ok(Came::DecisionOnly("the host was lost while it ran".to_owned()));
            }
            None if ended.started_at.is_none() => return Ok(Came::NeverRan),
            None => return Ok(Came::DecisionOnly("nothing was recorded of it".to_owned())),
            Some(Recorded::DecisionOnly(why)) => return Ok(Came::DecisionOnly(why.clone())),
            Some(Recorded::Bytes(_)) => {}
        }
        let recording = match journal.recording(ended.dispatch, ended.attempt) {
            Ok(Some(recording)) => recording,
            Ok(None) => return Ok(Came::Damaged("it is missing".to_owned())),
            Err(sandglass_journal::Error::Damaged { place, what }) => {
                return Ok(Came::Damaged(format!("{place}: {what}")));
            }
            Err(error) => return Err(error.into()),
        };
        let run = match RecordedRun::read(recording.into()) {
            Ok(run) => run,
            Err(error) => return Ok(Came::Damaged(error.to_string())),
        };
        let integration = match self.load(&run)? {
            Ok(integration) => integration,
            Err(why) => return Ok(Came::DecisionOnly(why)),
        };
        let values = run.secrets().into_iter().map(|name| {
            let value = secrets::value(name).map_err(|what| (name, what))?;
            Ok((name.to_owned(), value))
        });
        let values = match values.collect::<Result<Vec<_>, _>>() {
            Ok(values) => values,
            Err((name, what)) => {
                let why = format!("the secret `{name}` isn't given: {what}");
                return Ok(Came::DecisionOnly(why));
            }
        };
        let end = end_of_guest(record, ended);
        let mut replay = Replay::new(&run, &end).secrets(values);
        if let Some(call) = self.wanted.until {
            replay = replay.until(call);
        }
        if self.wanted.trace == Trace::On {
            begin_trace(record, ended, &run);
            replay = replay.watched_by(Arc::new(trace));
        }
        match self.runtime.block_on(self.host.replay(&integration, replay)) {
            Ok(replayed) => Ok(Came::Replayed(replayed)),
            Err(NotReplayed::Secret(why)) => Ok(Came::DecisionOnly(why)),
            Err(error) => Err(error.into()),
        }
    }

    /// The module of a run, held to that run's limits.
    fn load(&mut self, run: &RecordedRun) -> anyhow::Result<Result<Integration, String>> {
        let key = (run.module(), run.limits());
        if let Some((_, known)) = self.loaded.iter().find(|(known, _)| *known == key) {
            return Ok(Ok(known.clone()));
        }
        let Some(bytes) = self.guests.read(run.module())? else {
            return Ok(Err(format!("there is no module {}", run.module())));
        };
        let integration = match self.host.load_for_replay(&bytes, run) {
            Ok(integration) => integration,
            Err(rejection) => {
                let module = run.module();
                return Ok(Err(format!("the module {module} can't be run here: {rejection}")));
            }
        };
        if self.loaded.len() >= LOADED_MAX {
            self.loaded.remove(0);
        }
        self.loaded.push((key, integration.clone()));
        Ok(Ok(integration))
    }

    fn decision_only(&mut self, why: String, dispatch: DispatchId) {
        let reasons = &mut self.summary.decision_only;
        let known = reasons.contains_key(&why) || reasons.len() < REASONS_MAX;
        let why = if known { why } else { "other reasons".to_owned() };
        reasons.entry(why).or_insert(DecisionOnly { runs: 0, dispatch }).runs += 1;
    }

    fn differs(&mut self, record: &Record, ended: &Ended, run: RunDivergence) {
        self.summary.divergence_count += 1;
        if self.summary.divergences.len() < DIVERGENCES_MAX {
            self.summary.divergences.push(Divergence {
                position: record.position,
                entity: record.entity.clone(),
                dispatch: ended.dispatch,
                attempt: ended.attempt,
                run,
            });
        }
    }
}

/// How the guest of a handler ended: of a run of a workflow it is a node of it.
fn end_of_guest(record: &Record, ended: &Ended) -> RecordedEnd {
    let entity_type = record.entity.as_ref().map(EntityRef::entity_type);
    match entity_type {
        Some(sandglass_openwop::RUN_TYPE | sandglass_openwop::REPLAY_TYPE) => {
            sandglass_openwop::end_of_node(ended)
        }
        _ => RecordedEnd::from(ended),
    }
}

/// What came of having a run again.
enum Came {
    /// No guest ever ran.
    NeverRan,
    DecisionOnly(String),
    Replayed(Replayed),
    /// Its recording isn't as it was written.
    Damaged(String),
}

fn begin_trace(record: &Record, ended: &Ended, run: &RecordedRun) {
    let entity = record.entity.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
    let end = ended.ended_at.map(|at| format!(", {at}")).unwrap_or_default();
    crate::terminal::report_progress(&format!(
        "{} attempt {}  {entity}  module {}  {}{end}",
        ended.dispatch,
        ended.attempt,
        run.module(),
        ended.outcome.kind(),
    ));
}

fn trace(call: &PlayedCall) {
    let answer = call.answer.as_deref().map(|answer| format!(" -> {answer}")).unwrap_or_default();
    let PlayedCall { number, function, arguments, .. } = call;
    crate::terminal::report_progress(&format!("{number:>6}  {function} {arguments}{answer}"));
}
