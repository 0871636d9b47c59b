//! Builds a runtime: folds its journal, ends what was in flight when the last one
//! ended, and re-arms the timers, before it takes anything.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use sandglass_journal::{self as journal, Batch, Expected, Journal, PAGE_MAX_ENTRIES};
use sandglass_liveness::fold::Unfit;
use sandglass_liveness::{Entity, Fold, Spec};
use sandglass_model::{
    Clock, EntityRef, Event, Position, Rejection, RejectionKind, Sequence, SpecDigest, SystemClock,
};
use sandglass_telemetry::Telemetry;
use tokio::sync::{broadcast, oneshot, watch};
use tokio::task::JoinSet;

use crate::actor::{Actor, Shared, recorded, seat};
use crate::error::ActorError;
use crate::handlers::{HandlerRun, Handlers, RunFuture, not_run};
use crate::publish::SUBSCRIPTION_MAX;
use crate::runtime::{Actors, Inner, Runtime};

/// What a runtime is made of.
pub struct Builder {
    journal: Arc<dyn Journal>,
    clock: Arc<dyn Clock>,
    handlers: Arc<dyn Handlers>,
    telemetry: Telemetry,
    specs: Vec<Arc<Spec>>,
}

/// Why a runtime can't start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// The journal can't be read or written.
    #[error("the journal can't be used: {0}")]
    Journal(#[from] journal::Error),
    /// A record doesn't fit the ones before it.
    #[error("record {position} of the journal doesn't fit: {unfit}")]
    Unfit {
        /// The record.
        position: Position,
        /// Why.
        unfit: Unfit,
    },
    /// Two specs are of the same type.
    #[error("two specs are of the type `{0}`; give one of them")]
    DoubledType(String),
    /// An entity could not be recovered.
    #[error("{entity} can't be recovered: {error}")]
    Recovery {
        /// The entity.
        entity: EntityRef,
        /// Why.
        error: Box<ActorError>,
    },
}

impl Builder {
    pub(crate) fn new(journal: Arc<dyn Journal>) -> Self {
        Self {
            journal,
            clock: Arc::new(SystemClock::new()),
            handlers: Arc::new(NoHandlers),
            telemetry: Telemetry::disabled(),
            specs: Vec::new(),
        }
    }

    /// With this clock: the system's, unless given.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// With what runs handlers: nothing, unless given, so that each is rejected.
    #[must_use]
    pub fn handlers(self, handlers: Arc<dyn Handlers>) -> Self {
        Self { handlers, ..self }
    }

    /// Reporting there: nowhere, unless given.
    #[must_use]
    pub fn telemetry(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// With these specs for new entities. An existing entity keeps the spec that it
    /// was created with.
    #[must_use]
    pub fn specs(mut self, specs: impl IntoIterator<Item = Spec>) -> Self {
        self.specs.extend(specs.into_iter().map(Arc::new));
        self
    }

    /// Recovers the journal's entities and starts them. Needs a tokio runtime.
    ///
    /// # Errors
    /// The journal can't be read, holds what doesn't fit, or takes no appends.
    pub async fn build(self) -> Result<Runtime, BuildError> {
        let types = types(self.specs)?;
        let fold = folded(&*self.journal).await?;
        let (events, _) = broadcast::channel(SUBSCRIPTION_MAX);
        let shared = Arc::new(Shared {
            clock: self.clock,
            journal: self.journal,
            handlers: self.handlers,
            telemetry: self.telemetry,
            events,
            journal_works: AtomicBool::new(true),
        });
        for spec in types.values().filter(|spec| fold.spec(spec.digest).is_none()) {
            register(&shared, spec).await?;
        }
        let (closing, _) = watch::channel(false);
        let actors = Arc::new(Actors::default());
        let tasks = Mutex::new(JoinSet::new());
        let shutdown = tokio::sync::Mutex::default();
        let inner = Inner { shared, types, actors, tasks, closing, shutdown };
        let runtime = Runtime(Arc::new(inner));
        recover(&runtime, fold).await?;
        Ok(runtime)
    }
}

fn types(specs: Vec<Arc<Spec>>) -> Result<BTreeMap<String, Arc<Spec>>, BuildError> {
    let mut types: BTreeMap<String, Arc<Spec>> = BTreeMap::new();
    for spec in specs {
        let name = spec.name.to_string();
        let digest = spec.digest;
        let before = types.insert(name.clone(), spec);
        if before.is_some_and(|before| before.digest != digest) {
            return Err(BuildError::DoubledType(name));
        }
    }
    Ok(types)
}

async fn folded(journal: &dyn Journal) -> Result<Fold, BuildError> {
    let mut fold = Fold::new();
    let mut next = Some(Position(0));
    while let Some(from) = next {
        let page = journal.read(from, PAGE_MAX_ENTRIES).await?;
        next = page.next;
        for entry in page.entries {
            let record = entry.into_record()?;
            let position = record.position;
            fold.apply(&record).map_err(|unfit| BuildError::Unfit { position, unfit })?;
        }
    }
    Ok(fold)
}

async fn register(shared: &Shared, spec: &Spec) -> Result<(), BuildError> {
    let event = Event::SpecRegistered {
        digest: spec.digest,
        automaton: spec.name.to_string(),
        source: spec.source.clone(),
    };
    let (at, records) = (shared.clock.wall(), vec![(Sequence(0), event.clone())]);
    let batch = Batch { entity: None, expected: Expected::Any, at, records };
    let position = shared.append(batch).await?;
    shared.publish(recorded(position, at, None, Sequence(0), event));
    Ok(())
}

/// Starts the task of each entity, and waits until all have recovered.
async fn recover(runtime: &Runtime, fold: Fold) -> Result<(), BuildError> {
    let (specs, entities): (BTreeMap<SpecDigest, Arc<Spec>>, _) = fold.into_parts();
    let mut waiting = Vec::new();
    for (name, entity) in entities {
        // The fold holds no entity without its spec.
        let Some(spec) = specs.get(&entity.spec).cloned() else { continue };
        waiting.push((name, start(runtime, spec, entity)));
    }
    for (entity, recovered) in waiting {
        let answer = recovered.await.unwrap_or(Err(ActorError::Closed));
        answer.map_err(|error| BuildError::Recovery { entity, error: Box::new(error) })?;
    }
    Ok(())
}

fn start(
    runtime: &Runtime,
    spec: Arc<Spec>,
    entity: Entity,
) -> oneshot::Receiver<Result<(), ActorError>> {
    let inner = &runtime.0;
    let (handle, seat) = seat(inner.closing.subscribe());
    inner.actors.lock().insert(entity.entity.clone(), handle);
    let (reply, recovered) = oneshot::channel();
    let mut actor = Actor::new(Arc::clone(&inner.shared), spec, entity, seat);
    inner.spawn(async move {
        let answer = actor.recover().await;
        let failed = answer.is_err();
        let _ = reply.send(answer);
        if !failed {
            actor.live().await;
        }
    });
    recovered
}

/// Runs nothing.
struct NoHandlers;

impl Handlers for NoHandlers {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let message = format!(
            "nothing runs handlers here, so integration `{}` can't run",
            run.dispatched.integration
        );
        let rejection = Rejection { kind: RejectionKind::HostUnavailable, message };
        Box::pin(async move { not_run(&run.dispatched, rejection) })
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let types: Vec<&str> = self.specs.iter().map(|spec| &*spec.name).collect();
        f.debug_struct("Builder").field("specs", &types).finish_non_exhaustive()
    }
}
