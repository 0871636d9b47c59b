//! What a handler knows of its run: by its records, or by what the handler before it knew.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_journal::Journal;
use sandglass_model::{DispatchId, EntityRef, WallTime};
use sandglass_workflow::json_size;

use crate::library::Library;
use crate::log::Folded;
use sandglass_workflow::definition::{Definition, OnCrash};
use sandglass_workflow::event::{Entry, Kind, Origin, RunError, RunEvent};
use sandglass_workflow::node::is_orchestrator;
use sandglass_workflow::state::RunState;
use sandglass_workflow::step::Begin;

/// Most runs of which the last handler's knowledge is kept: as many as can be under way.
const KEPT_MAX: usize = 8_192;

/// Most that the events of one run may be together, in bytes of JSON: they are in memory while
/// somebody reads them.
pub(crate) const RUN_EVENTS_MAX_BYTES: usize = 16 << 20;

/// A run, as its handler knows it.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) begin: Arc<Begin>,
    pub(crate) definition: Arc<Definition>,
    pub(crate) state: RunState,
    /// Why the node has failed that is being run, where it has.
    pub(crate) failed: Option<RunError>,
    /// The handler that has run a node last, where the records were read for it.
    pub(crate) origin: Option<Origin>,
    /// Size of its events, in bytes of JSON.
    pub(crate) bytes: usize,
    /// When the node began that is being run, or began to wait; none where that is now.
    pub(crate) since: Option<WallTime>,
    /// What is folded in, and is recorded when the handler ends.
    pub(crate) untold: Vec<RunEvent>,
    /// The events of the run that it was forked from, once they are read.
    pub(crate) source: Option<Arc<Vec<Entry>>>,
    pub(crate) library: Arc<Library>,
}

/// What becomes of a node that its host loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// A turn of an orchestrator: it is taken once more.
    Turn,
    /// It is run again.
    Rerun,
    /// It fails, since its effects may have landed.
    Once,
}

/// Why a handler knows nothing of its run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unknown {
    #[error("the run's records can't be read: {0}")]
    Journal(#[from] sandglass_journal::Error),
    #[error("the run's first record can't be read")]
    NoBeginning,
    #[error("the definition {digest} of workflow `{workflow}` isn't in the journal")]
    NoDefinition { workflow: String, digest: String },
}

impl Context {
    /// Before anything has happened.
    fn new(begin: Begin, definition: Arc<Definition>, library: &Arc<Library>) -> Self {
        Self {
            state: RunState::new(&definition),
            begin: Arc::new(begin),
            definition,
            failed: None,
            origin: None,
            bytes: 0,
            since: None,
            untold: Vec::new(),
            source: None,
            library: Arc::clone(library),
        }
    }

    /// At the beginning of a run.
    pub(crate) fn beginning(
        begin: Begin,
        definition: Arc<Definition>,
        library: &Arc<Library>,
    ) -> Self {
        let mut context = Self::new(begin, definition, library);
        let started = RunEvent::of_run(Kind::RunStarted, context.begin.started());
        context.apply(&started);
        context
    }

    /// As the records of `run` say.
    pub(crate) async fn read(
        journal: &dyn Journal,
        library: &Arc<Library>,
        run: &EntityRef,
    ) -> Result<Self, Unknown> {
        let mut folded = Folded::default();
        let (mut events, mut since) = (Vec::new(), None);
        let take = |entry: Entry| {
            if matches!(entry.event.kind, Kind::NodeStarted | Kind::InterruptRequested) {
                since = Some(entry.at);
            }
            events.push(entry.event);
        };
        folded.read_on(journal, run, take).await?;
        let failed = folded.projection.failed.clone();
        let origin = folded.projection.origin.clone();
        let begin = folded.projection.begin.ok_or(Unknown::NoBeginning)?;
        let definition = library.pinned(journal, &begin).await?;
        let mut context = Self { failed, origin, since, ..Self::new(begin, definition, library) };
        events.iter().for_each(|event| context.apply(event));
        Ok(context)
    }

    /// What becomes of the node at `index` where its host loses it.
    pub(crate) fn class(&self, index: usize) -> Class {
        class(&self.library, &self.definition, index)
    }

    /// Folds in an event that is recorded when the handler ends, if not before.
    pub(crate) fn happened(&mut self, event: RunEvent) {
        self.apply(&event);
        self.untold.push(event);
    }

    /// Folds in one more event.
    pub(crate) fn apply(&mut self, event: &RunEvent) {
        self.bytes = self.bytes.saturating_add(json_size(&event.payload));
        let definition = Arc::clone(&self.definition);
        self.state.apply(&definition, event);
    }
}

/// What becomes of the node at `index` where its host loses it: as it says itself
/// (`settings.onCrash`), else its definition, else what its type does.
pub(crate) fn class(library: &Library, definition: &Definition, index: usize) -> Class {
    let node = &definition.nodes[index];
    if is_orchestrator(node) {
        return Class::Turn;
    }
    match node.on_crash.or(definition.settings.on_crash) {
        Some(OnCrash::Rerun) => Class::Rerun,
        Some(OnCrash::Fail) => Class::Once,
        None => match library.node(&node.type_id) {
            Some(of) if !of.is_pure() => Class::Once,
            _ => Class::Rerun,
        },
    }
}

/// What handlers knew when they ended, for those that follow them. It may be forgotten at any
/// time: of a run the records say the same, and what a node said before it failed is in the
/// host's log, too.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    known: Mutex<BTreeMap<EntityRef, (DispatchId, Context)>>,
    said: Mutex<BTreeMap<EntityRef, (Origin, Vec<RunEvent>)>>,
}

impl Contexts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<EntityRef, (DispatchId, Context)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_said(&self) -> MutexGuard<'_, BTreeMap<EntityRef, (Origin, Vec<RunEvent>)>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what a node said that has failed, where it was run by `origin`.
    pub(crate) fn keep_said(&self, run: &EntityRef, origin: Origin, said: Vec<RunEvent>) {
        let mut kept = self.lock_said();
        if !said.is_empty() && (kept.len() < KEPT_MAX || kept.contains_key(run)) {
            kept.insert(run.clone(), (origin, said));
        }
    }

    /// Takes what the node said that has failed, where it was run by `origin`.
    pub(crate) fn take_said(&self, run: &EntityRef, origin: Option<&Origin>) -> Vec<RunEvent> {
        let kept = self.lock_said().remove(run);
        kept.filter(|(of, _)| origin == Some(of)).map(|(_, said)| said).unwrap_or_default()
    }

    /// Keeps what the handler of `dispatch` knew at its end.
    pub(crate) fn keep(&self, run: &EntityRef, dispatch: DispatchId, context: Context) {
        let mut kept = self.lock();
        if kept.len() < KEPT_MAX || kept.contains_key(run) {
            kept.insert(run.clone(), (dispatch, context));
        }
    }

    /// Forgets a run that has come to its end.
    pub(crate) fn forget(&self, run: &EntityRef) {
        self.lock().remove(run);
        self.lock_said().remove(run);
    }

    /// Forgets all runs.
    pub(crate) fn forget_all(&self) {
        self.lock().clear();
        self.lock_said().clear();
    }

    /// Takes what is kept of `run`, where that is of the handler that ended with `after`.
    pub(crate) fn take(&self, run: &EntityRef, after: Option<DispatchId>) -> Option<Context> {
        let (dispatch, context) = self.lock().remove(run)?;
        (after == Some(dispatch)).then_some(context)
    }
}
