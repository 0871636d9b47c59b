//! Guest replay of a journal: replays each recorded handler and compares it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use sandglass_host::replay::{
    NotReplayed, RecordedEnd, RecordedRun, Replay, Replayed, ReplayedCall, RunDivergence,
};
use sandglass_host::{Host, Integration, Secret, Settings};
use sandglass_model::{
    DispatchId, Ended, EntityRef, Event, GuestLimits, ModuleHash, Outcome, Partition, Position,
    Record, Recorded,
};

use serde::Serialize;

use super::guests::Guests;
use crate::compiling;
use crate::journal_reader::JournalReader;

/// Most divergences that are kept; all are counted.
const DIVERGENCES_MAX: usize = 100;
/// Most reasons that are counted apart; further ones are counted together.
const REASONS_MAX: usize = 50;
/// Most integrations that stay loaded; further ones replace the oldest.
const LOADED_MAX: usize = 64;

/// Which handlers to replay, and how.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Wanted {
    /// Replay only this dispatch
    #[arg(long, value_name = "ID", requires = "guests")]
    pub(super) dispatch: Option<DispatchId>,
    /// End the replay after its N-th host call
    #[arg(long, value_name = "N", requires = "dispatch")]
    until: Option<u64>,
    /// Print each host call on standard error
    #[arg(long, requires = "guests")]
    trace: bool,
}

/// The result of a guest replay.
#[derive(Debug, Default)]
pub(super) struct Summary {
    /// How many handlers were replayed.
    pub(super) replayed: u64,
    /// Handlers of which only the decisions could be replayed, by reason.
    pub(super) decision_only: BTreeMap<String, DecisionOnly>,
    /// The first divergences.
    pub(super) divergences: Vec<Divergence>,
    pub(super) divergence_count: u64,
    /// Whether the requested dispatch exists.
    pub(super) found: bool,
}

/// Handlers that cannot be replayed for one reason.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionOnly {
    pub(super) runs: u64,
    /// The first of them.
    pub(super) dispatch: DispatchId,
}

impl Summary {
    /// How many handlers could not be replayed.
    pub(super) fn decision_only(&self) -> u64 {
        self.decision_only.values().map(|one| one.runs).sum()
    }
}

/// A handler whose replay differs from its record.
#[derive(Debug, Serialize)]
pub(super) struct Divergence {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) partition: Option<Partition>,
    pub(super) position: Position,
    pub(super) entity: Option<EntityRef>,
    pub(super) dispatch: DispatchId,
    pub(super) attempt: u32,
    #[serde(flatten)]
    pub(super) run: RunDivergence,
}

/// A guest replay in progress.
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
    /// Errors if the folder cannot be read, or no host can be started.
    pub(super) fn new(
        folder: &Path,
        wanted: Wanted,
        compiling: &compiling::CachedArguments,
    ) -> anyhow::Result<Self> {
        let settings = Settings {
            max_runs: 4,
            // No manifest can grant more, so every recorded handler fits.
            max_memory_bytes: u64::from(u32::MAX) + 1,
            ..Settings::default()
        };
        let host = compiling.build(|compiled_cache_dir, helper| {
            let settings = Settings { compiled_cache_dir, ..settings.clone() };
            Host::builder().settings(settings).compile_in(helper).build()
        });
        Ok(Self {
            host: host.context("can't start a host to run guests in")?,
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build()?,
            guests: Guests::find(folder)?,
            loaded: Vec::new(),
            wanted,
            summary: Summary::default(),
        })
    }

    /// Replays the handler whose end `record` is; skips other records.
    ///
    /// # Errors
    /// Errors if the host or the journal fails.
    pub(super) fn feed(
        &mut self,
        partition: Option<Partition>,
        record: &Record,
        journal: &mut JournalReader,
    ) -> anyhow::Result<()> {
        let Event::Ended(ended) = &record.event else { return Ok(()) };
        if self.wanted.dispatch.is_some_and(|wanted| wanted != ended.dispatch) {
            return Ok(());
        }
        self.summary.found = true;
        match self.replay(record, ended, journal) {
            Ok(replayed) => {
                self.summary.replayed += 1;
                if let Some(run) = replayed.divergence {
                    self.add_divergence(partition, record, ended, run);
                }
            }
            Err(Obstacle::NeverRan) => {}
            Err(Obstacle::DecisionOnly(why)) => self.decision_only(why, ended.dispatch),
            Err(Obstacle::Damaged(recorded)) => {
                let what = "a recording that cannot be replayed".to_owned();
                let came = "nothing".to_owned();
                let run = RunDivergence { call: None, what, recorded, came };
                self.add_divergence(partition, record, ended, run);
            }
            Err(Obstacle::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn replay(
        &mut self,
        record: &Record,
        ended: &Ended,
        journal: &mut JournalReader,
    ) -> Result<Replayed, Obstacle> {
        let run = recorded_run(record.entity.as_ref(), ended, journal)?;
        let integration = self.load(&run)?;
        let secrets = run.secrets().into_iter().map(|name| match Secret::granted(name) {
            Ok(value) => Ok((name.to_owned(), value)),
            Err(what) => {
                Err(Obstacle::DecisionOnly(format!("the secret `{name}` is missing: {what}")))
            }
        });
        let end = end_of_guest(record, ended);
        let mut replay = Replay::new(&run, &end).secrets(secrets.collect::<Result<Vec<_>, _>>()?);
        if let Some(call) = self.wanted.until {
            replay = replay.until(call);
        }
        if self.wanted.trace {
            print_trace_heading(record, ended, &run);
            replay = replay.watched_by(Arc::new(print_call));
        }
        self.runtime.block_on(self.host.replay(&integration, replay)).map_err(|error| match error {
            NotReplayed::Secret(why) => Obstacle::DecisionOnly(why),
            error => Obstacle::Failed(error.into()),
        })
    }

    /// Loads the module of a recorded handler with its limits.
    fn load(&mut self, run: &RecordedRun) -> Result<Integration, Obstacle> {
        let key = (run.module(), run.limits());
        if let Some((_, loaded)) = self.loaded.iter().find(|(loaded, _)| *loaded == key) {
            return Ok(loaded.clone());
        }
        let module = run.module();
        let bytes = self
            .guests
            .read(module)
            .map_err(Obstacle::Failed)?
            .ok_or_else(|| Obstacle::DecisionOnly(format!("there is no module {module}")))?;
        let integration = self.host.load_for_replay(&bytes, run).map_err(|rejection| {
            Obstacle::DecisionOnly(format!("the module {module} cannot run here: {rejection}"))
        })?;
        if self.loaded.len() >= LOADED_MAX {
            self.loaded.remove(0);
        }
        self.loaded.push((key, integration.clone()));
        Ok(integration)
    }

    fn decision_only(&mut self, why: String, dispatch: DispatchId) {
        let reasons = &mut self.summary.decision_only;
        let is_counted_apart = reasons.contains_key(&why) || reasons.len() < REASONS_MAX;
        let why = if is_counted_apart { why } else { "other reasons".to_owned() };
        reasons.entry(why).or_insert(DecisionOnly { runs: 0, dispatch }).runs += 1;
    }

    fn add_divergence(
        &mut self,
        partition: Option<Partition>,
        record: &Record,
        ended: &Ended,
        run: RunDivergence,
    ) {
        self.summary.divergence_count += 1;
        if self.summary.divergences.len() < DIVERGENCES_MAX {
            self.summary.divergences.push(Divergence {
                partition,
                position: record.position,
                entity: record.entity.clone(),
                dispatch: ended.dispatch,
                attempt: ended.attempt,
                run,
            });
        }
    }
}

/// How the guest of a handler ended. In a workflow, the guest is a node.
fn end_of_guest(record: &Record, ended: &Ended) -> RecordedEnd {
    let entity_type = record.entity.as_ref().map(EntityRef::entity_type);
    match entity_type {
        Some(sandglass_openwop::RUN_TYPE | sandglass_openwop::REPLAY_TYPE) => {
            sandglass_openwop::end_of_node(ended)
        }
        _ => RecordedEnd::from(ended),
    }
}

/// Why a handler is not replayed.
enum Obstacle {
    /// No guest ever ran.
    NeverRan,
    /// There is no recording, or something that its replay needs is missing.
    DecisionOnly(String),
    /// Its recording is damaged.
    Damaged(String),
    /// The host or the journal failed, which ends the replay of all handlers.
    Failed(anyhow::Error),
}

fn recorded_run(
    entity: Option<&EntityRef>,
    ended: &Ended,
    journal: &mut JournalReader,
) -> Result<RecordedRun, Obstacle> {
    let decision_only = |why: &str| Err(Obstacle::DecisionOnly(why.to_owned()));
    match &ended.recording {
        None if ended.outcome == Outcome::Interrupted => {
            return decision_only("the host was lost while it ran");
        }
        None if ended.started_at.is_none() => return Err(Obstacle::NeverRan),
        None => return decision_only("nothing was recorded of it"),
        Some(Recorded::DecisionOnly(why)) => return decision_only(why),
        Some(Recorded::Bytes(_)) => {}
    }
    let recording = match journal.recording(entity, ended.dispatch, ended.attempt) {
        Ok(Some(recording)) => recording,
        Ok(None) => return Err(Obstacle::Damaged("it is missing".to_owned())),
        Err(sandglass_journal::Error::Damaged { place, what }) => {
            return Err(Obstacle::Damaged(format!("{place}: {what}")));
        }
        Err(error) => return Err(Obstacle::Failed(error.into())),
    };
    RecordedRun::read(recording.into()).map_err(|error| Obstacle::Damaged(error.to_string()))
}

fn print_trace_heading(record: &Record, ended: &Ended, run: &RecordedRun) {
    let entity = super::or_dash(record.entity.as_ref());
    let end = ended.ended_at.map(|at| format!(", {at}")).unwrap_or_default();
    crate::terminal::report_progress(&format!(
        "{} attempt {}  {entity}  module {}  {}{end}",
        ended.dispatch,
        ended.attempt,
        run.module(),
        ended.outcome.kind(),
    ));
}

fn print_call(call: &ReplayedCall) {
    let result = call.answer.as_deref().map(|answer| format!(" -> {answer}")).unwrap_or_default();
    let ReplayedCall { number, function, arguments, .. } = call;
    crate::terminal::report_progress(&format!("{number:>6}  {function} {arguments}{result}"));
}
