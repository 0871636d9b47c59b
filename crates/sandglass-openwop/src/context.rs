//! What a handler knows of its run: from the records, or from the handler before it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sandglass_journal::Journals;
use sandglass_model::{DispatchId, EntityRef, Partition, WallTime};
use sandglass_workflow::definition::Definition;
use sandglass_workflow::error::RunError;
use sandglass_workflow::event::{Entry, Kind, Origin, RunEvent};
use sandglass_workflow::state::RunState;
use sandglass_workflow::step::Begin;

use crate::library::Library;
use crate::log::{Folded, ReadError};
use crate::sync::lock;

/// Most runs whose last context is kept: as many as can execute at once.
const KEPT_MAX: usize = 8_192;

/// Most bytes of JSON that the events of one run may have together: they are in memory while they
/// are read.
pub(crate) const RUN_EVENTS_MAX_BYTES: usize = 16 << 20;

/// A run, as its handler knows it.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) begin: Arc<Begin>,
    pub(crate) definition: Arc<Definition>,
    pub(crate) state: RunState,
    /// Why the node failed that was executing, if it did.
    pub(crate) failed: Option<RunError>,
    /// The handler that executed a node last, if the records were read for this context.
    pub(crate) origin: Option<Origin>,
    /// How many events there are.
    pub(crate) events: u64,
    /// Their size, in bytes of JSON.
    pub(crate) bytes: usize,
    /// When the present node began, or began to wait; `None` if that is now.
    pub(crate) since: Option<WallTime>,
    /// Events that are folded in, and are recorded at the end of the handler.
    pub(crate) unrecorded: Vec<RunEvent>,
    /// The events of the run that this one was forked from, once they are read.
    pub(crate) source: Option<Arc<Vec<Entry>>>,
}

impl Context {
    fn new(begin: Begin, definition: Arc<Definition>) -> Self {
        Self {
            state: RunState::new(&definition),
            begin: Arc::new(begin),
            definition,
            failed: None,
            origin: None,
            events: 0,
            bytes: 0,
            since: None,
            unrecorded: Vec::new(),
            source: None,
        }
    }

    /// The context at the beginning of a run.
    pub(crate) fn beginning(begin: Begin, definition: Arc<Definition>) -> Self {
        let started = begin.started();
        let mut context = Self::new(begin, definition);
        context.apply(&started);
        context
    }

    /// The context that the records of `run` lead to.
    pub(crate) async fn read(
        journals: &Journals,
        library: &Library,
        run: &EntityRef,
    ) -> Result<Self, ReadError> {
        let mut folded = Folded::default();
        let (mut events, mut since) = (Vec::new(), None);
        let take = |entry: Entry| {
            if matches!(entry.event.kind(), Kind::NodeStarted | Kind::InterruptRequested) {
                since = Some(entry.at);
            }
            events.push(entry.event);
        };
        folded.read_on(journals, run, take).await?;
        let projection = folded.projection;
        let begin = projection.begin.ok_or(ReadError::NoBeginning)?;
        let definition = library.pinned(journals, run, &begin).await?;
        let (failed, origin) = (projection.failed, projection.origin);
        let mut context = Self { failed, origin, since, ..Self::new(begin, definition) };
        events.iter().for_each(|event| context.apply(event));
        Ok(context)
    }

    /// Folds in an event that is recorded at the end of the handler, if not before.
    pub(crate) fn add(&mut self, event: RunEvent) {
        self.apply(&event);
        self.unrecorded.push(event);
    }

    /// Folds in one more event.
    pub(crate) fn apply(&mut self, event: &RunEvent) {
        self.events = self.events.saturating_add(1);
        self.bytes = self.bytes.saturating_add(event.payload.json_size());
        self.state.apply(&self.definition, event);
    }
}

/// What handlers knew when they ended, for those that follow them. It may be lost at any time: the
/// records contain the context, and the host's log contains what a node logged before it failed.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    contexts: Mutex<BTreeMap<EntityRef, (DispatchId, Context)>>,
    logged: Mutex<BTreeMap<EntityRef, (Origin, Vec<RunEvent>)>>,
}

/// Keeps `value` for `run`, unless there are too many.
fn keep<T>(map: &Mutex<BTreeMap<EntityRef, T>>, run: &EntityRef, value: T) {
    let mut kept = lock(map);
    if kept.len() < KEPT_MAX || kept.contains_key(run) {
        kept.insert(run.clone(), value);
    }
}

impl Contexts {
    /// Keeps what a node logged before it failed, which `origin` executed.
    pub(crate) fn keep_logged(&self, run: &EntityRef, origin: Origin, logged: Vec<RunEvent>) {
        if !logged.is_empty() {
            keep(&self.logged, run, (origin, logged));
        }
    }

    /// Takes what a node logged before it failed, if `origin` executed it.
    pub(crate) fn take_logged(&self, run: &EntityRef, origin: Option<&Origin>) -> Vec<RunEvent> {
        let kept = lock(&self.logged).remove(run);
        kept.filter(|(of, _)| origin == Some(of)).map(|(_, logged)| logged).unwrap_or_default()
    }

    /// Keeps the context in which the handler of `dispatch` ended.
    pub(crate) fn keep(&self, run: &EntityRef, dispatch: DispatchId, context: Context) {
        keep(&self.contexts, run, (dispatch, context));
    }

    /// Takes the context of `run`, if the handler of `after` ended in it.
    pub(crate) fn take(&self, run: &EntityRef, after: Option<DispatchId>) -> Option<Context> {
        let (dispatch, context) = lock(&self.contexts).remove(run)?;
        (after == Some(dispatch)).then_some(context)
    }

    /// Removes what is kept for a run that has ended.
    pub(crate) fn forget(&self, run: &EntityRef) {
        lock(&self.contexts).remove(run);
        lock(&self.logged).remove(run);
    }

    /// Removes what is kept for the runs of a partition.
    pub(crate) fn forget_partition(&self, partition: Partition) {
        lock(&self.contexts).retain(|run, _| Partition::of(run) != partition);
        lock(&self.logged).retain(|run, _| Partition::of(run) != partition);
    }

    /// Removes what is kept for all runs.
    pub(crate) fn forget_all(&self) {
        lock(&self.contexts).clear();
        lock(&self.logged).clear();
    }
}
