//! Builds a runtime: reads the entities that were awake when the previous runtime ended, ends what
//! they had in flight, and arms the timers that fire soon, before it accepts requests. What it reads
//! is proportional to what was in flight, however many entities sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Duration;

use futures_util::future::try_join_all;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use sandglass_journal::{
    self as journal, EntityEntry, Journal, Journals, PAGE_MAX_ENTRIES, SELECTED_MAX, Select,
    SelectedPlace,
};
use sandglass_liveness::fold::Unfit;
use sandglass_liveness::session::Ceilings;
use sandglass_liveness::{Fold, Spec, change_spec};
use sandglass_model::{
    Clock, EntityRef, Entropy, Partition, Position, Rejection, RejectionKind, SpecDigest,
    SystemClock, SystemEntropy, WallTime,
};
use sandglass_telemetry::Telemetry;
use sandglass_telemetry::metrics::Health;
use tokio::sync::{Semaphore, broadcast, oneshot};
use tokio::task::JoinSet;

use crate::account_sampling::AccountSampling;
use crate::actor::{Actor, Counted, Restored, Timers, View, channels};
use crate::conversations::Conversations;
use crate::error::ActorError;
use crate::handlers::{HandlerRun, Handlers, RunFuture, not_run};
use crate::inner::Inner;
use crate::loading::{Round, load_rounds};
use crate::moving::LostPartitions;
use crate::publish::SUBSCRIPTION_MAX;
use crate::quota::{BUSY_SPAWNED_MAX, SpawnQuota};
use crate::resting::{Rests, write_notes};
use crate::runtime::Runtime;
use crate::serving::Serving;
use crate::shared::Shared;
use crate::specs::{self, Specs};
use crate::table::{Rest, Sleep, Table};
use crate::timer;
use crate::waiting::WaitGraph;
use crate::waking::{Unread, WAKING_MAX, read_before, wake_outdated, watch_alarms};
use crate::watch;

/// How long an entity stays awake by default with nothing to do: as long as the next step of a
/// conversation usually takes, so that it is not read again for each step.
pub const LINGER: Duration = Duration::from_secs(5);
/// How many entities may be awake by default with nothing to do. One takes about 20 KiB, so these
/// take as much memory as a small process.
pub const AWAKE_MAX: usize = 2_000;

/// Most entities that are read at once, and most that are recovered at once: enough to fill the journal's
/// groups.
const RECOVERING_MAX: usize = 256;

/// Most attempts to read an entity at a start.
const READS_MAX: u32 = 5;
/// The wait between two of them.
const READ_AGAIN: Duration = Duration::from_millis(100);

/// The parts of a runtime.
pub struct Builder {
    journals: Journals,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    handlers: Arc<dyn Handlers>,
    telemetry: Telemetry,
    specs: Vec<Arc<Spec>>,
    rest: Rest,
    accounts: AccountSampling,
    ceilings: Ceilings,
    operators: Option<BTreeSet<String>>,
    busy_spawned_max: u32,
    is_served: bool,
}

/// Why a runtime cannot start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BuildError {
    /// The journal cannot be read or written.
    #[error("the journal cannot be used: {0}")]
    Journal(#[from] journal::Error),
    /// A record does not fit the ones before it.
    #[error("record {position} of the journal does not fit: {unfit}")]
    Unfit {
        /// The record.
        position: Position,
        /// Why.
        unfit: Unfit,
    },
    /// Two specs are of the same type.
    #[error("two specs are of the type `{0}`; give one of them")]
    DoubledType(String),
    /// The partition was lost, or the runtime shut down, while it was adopted.
    #[error("partition {0} was lost while it was adopted")]
    Lost(Partition),
    /// An entity could not be recovered.
    #[error("{entity} cannot be recovered: {error}")]
    Recovery {
        /// The entity.
        entity: EntityRef,
        /// Why.
        error: Box<ActorError>,
    },
}

impl Builder {
    pub(crate) fn new(journals: Journals) -> Self {
        Self {
            journals,
            clock: Arc::new(SystemClock::new()),
            entropy: Arc::new(SystemEntropy),
            handlers: Arc::new(NoHandlers),
            telemetry: Telemetry::disabled(),
            specs: Vec::new(),
            rest: Rest { linger: LINGER, awake_max: AWAKE_MAX },
            accounts: AccountSampling::default(),
            ceilings: Ceilings::default(),
            operators: None,
            busy_spawned_max: BUSY_SPAWNED_MAX,
            is_served: true,
        }
    }

    /// Sets the clock. The default is the clock of the system.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }

    /// Sets the source of the ids of lives and traces. The default is the operating system.
    #[must_use]
    pub fn entropy(self, entropy: Arc<dyn Entropy>) -> Self {
        Self { entropy, ..self }
    }

    /// Sets what executes handlers. By default nothing does, and each handler is rejected.
    #[must_use]
    pub fn handlers(self, handlers: Arc<dyn Handlers>) -> Self {
        Self { handlers, ..self }
    }

    /// Sets where metrics and spans go. By default they go nowhere.
    #[must_use]
    pub fn telemetry(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Adds specs for new entities. Existing entities change to them as in [`Runtime::reload`];
    /// entities of other types keep the specs that they have.
    #[must_use]
    pub fn specs(mut self, specs: impl IntoIterator<Item = impl Into<Arc<Spec>>>) -> Self {
        self.specs.extend(specs.into_iter().map(Into::into));
        self
    }

    /// Sets how long an entity stays awake with nothing to do; the default is [`LINGER`]. While it
    /// sleeps, only its name and timers are in memory. It is read from the journal when a request
    /// arrives or a timer fires, which takes longer the longer its history is.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.rest.linger = linger;
        self
    }

    /// While more than this many entities are awake, each falls asleep as soon as it has nothing to
    /// do; the default is [`AWAKE_MAX`]. Entities that have something to do are bounded by
    /// admission.
    #[must_use]
    pub const fn awake_max(mut self, entities: usize) -> Self {
        self.rest.awake_max = entities;
        self
    }

    /// Keeps an account, which lists all calls, of one in this many handlers that complete, and of
    /// none if it is 0; the default is [`ACCOUNTS_ONE_IN`](crate::ACCOUNTS_ONE_IN). Handlers that
    /// do not complete always have one, and so have those in which a call to the outside failed.
    #[must_use]
    pub const fn accounts_one_in(mut self, one_in: u32) -> Self {
        self.accounts.one_in = one_in;
        self
    }

    /// Restricts stopping and resuming sessions to these operators, by name. By default every
    /// caller may. Limits, parents and shutdowns stop sessions in any case.
    #[must_use]
    pub fn operators(self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let operators = Some(names.into_iter().map(Into::into).collect());
        Self { operators, ..self }
    }

    /// Bounds the spawned entities of one tenant that have something to do; the default is
    /// [`BUSY_SPAWNED_MAX`]. Beyond that, spawns are refused (`too_many`), and for ten minutes the
    /// entities that counted at that time spawn nothing. An entity counts from its creation until it is at
    /// rest: while it has handlers in flight or entities to create, or a timer that fires within a
    /// minute. A chain of first actions that spawn has at most this many entities, and at most 256.
    #[must_use]
    pub const fn busy_spawned_max(mut self, per_tenant: u32) -> Self {
        self.busy_spawned_max = per_tenant;
        self
    }

    /// Sets upper bounds on the limits of runs. By default specs decide alone.
    /// [`Runtime::set_ceilings`] changes them.
    #[must_use]
    pub fn ceilings(self, ceilings: Ceilings) -> Self {
        Self { ceilings, ..self }
    }

    /// Begins with none of the partitions of a partitioned store; [`Runtime::adopt`] adds them. It has no
    /// effect on a runtime over one journal.
    #[must_use]
    pub fn without_partitions(mut self) -> Self {
        self.is_served = !self.journals.is_partitioned();
        self
    }

    /// Reads the entities that the journal has as awake, and recovers those that had handlers in
    /// flight. The others sleep; those that change to another version of their spec are woken one
    /// after the other from then on. Needs a tokio runtime, on whose threads all entities live.
    ///
    /// # Errors
    /// The journal cannot be read, one of these entities has a record that does not fit, or the
    /// journal takes no appends.
    pub async fn build(self) -> Result<Runtime, BuildError> {
        let types = specs::by_type(self.specs).map_err(BuildError::DoubledType)?;
        let served = if self.is_served { self.journals.all() } else { &[] };
        let each = served.iter().map(|journal| read_specs(&**journal, &types));
        let recorded = try_join_all(each).await?;
        let known = recorded.iter().flatten().map(|(digest, spec)| (*digest, Arc::clone(spec)));
        let known = known.collect();
        let (specs, _) = Specs { known, ..Specs::default() }.reloaded(types);
        let metrics = &self.telemetry.metrics;
        // It could be read; it counts as working until an append fails.
        metrics.journal_health(Health::Healthy);
        specs::expect(metrics, &specs, &self.ceilings);
        let (events, _) = broadcast::channel(SUBSCRIPTION_MAX);
        let journals = self.journals.all().len();
        let shared = Arc::new(Shared {
            clock: self.clock,
            entropy: self.entropy,
            journal: self.journals,
            handlers: self.handlers,
            telemetry: self.telemetry,
            events,
            journal_works: AtomicBool::new(true),
            wait_graph: WaitGraph::default(),
            way: Default::default(),
            active_elsewhere: Default::default(),
            open_asks: Default::default(),
            conversations: Conversations::default(),
            rests: Rests::default(),
            runtime: watch::Sender::new(None),
            specs: watch::Sender::new(Arc::new(specs)),
            lost: LostPartitions::default(),
            table: Table::new(self.rest, Serving::new(journals, self.is_served)),
            blocked: Arc::default(),
            accounts: self.accounts,
            present_ceilings: RwLock::new(Arc::new(self.ceilings)),
            operators: self.operators,
            shutdown_grace_ms: AtomicU64::new(0),
            waking: Arc::new(Semaphore::new(WAKING_MAX)),
            spawn_quota: SpawnQuota::new(self.busy_spawned_max),
        });
        let each = shared.journal.all().iter().zip(&recorded);
        try_join_all(
            each.map(|(journal, recorded)| register_missing(&shared, &**journal, recorded)),
        )
        .await?;
        let (closing, _) = watch::channel(false);
        let tasks = Mutex::new(JoinSet::new());
        let (reloading, shutdown) = Default::default();
        let threads = tokio::runtime::Handle::current();
        let moving = (0..journals).map(|_| tokio::sync::Mutex::default()).collect();
        let inner = Inner { shared, tasks, threads, closing, reloading, moving, shutdown };
        let runtime = Runtime(Arc::new(inner));
        let round = Recovery::of(&runtime, None).run().await?;
        let (inner, weak) = (&runtime.0, Arc::downgrade(&runtime.0));
        inner.shared.runtime.send_replace(Some(Weak::clone(&weak)));
        let (shared, closing) = (|| Arc::clone(&inner.shared), || inner.closing.subscribe());
        inner.spawn(watch_alarms(shared(), Weak::clone(&weak), closing()));
        inner.spawn(load_rounds(shared(), round, closing()));
        inner.spawn(write_notes(shared(), closing()));
        inner.spawn(wake_outdated(shared(), weak, inner.shared.specs(), None, closing()));
        Ok(runtime)
    }
}

/// Records the specs in use that `journal` does not contain. One at a time, because each may be as
/// large as a batch.
pub(crate) async fn register_missing(
    shared: &Shared,
    journal: &dyn Journal,
    recorded: &RecordedSpecs,
) -> Result<(), BuildError> {
    for (digest, spec) in &shared.specs().known {
        if !recorded.contains_key(digest) {
            specs::register_in(shared, journal, std::slice::from_ref(spec)).await?;
        }
    }
    Ok(())
}

pub(crate) type RecordedSpecs = BTreeMap<SpecDigest, Arc<Spec>>;

/// Folds the specs of a journal. Those of `types` need not be parsed again.
pub(crate) async fn read_specs(
    journal: &dyn Journal,
    types: &BTreeMap<String, Arc<Spec>>,
) -> Result<RecordedSpecs, BuildError> {
    let mut fold = Fold::with_parsed(types.values().cloned());
    let mut after = None;
    loop {
        let page = journal.read_by_entity(after.clone(), PAGE_MAX_ENTRIES).await?;
        for entry in page.entries {
            let record = entry.into_record()?;
            if record.entity.is_some() {
                return Ok(fold.specs().clone());
            }
            let position = record.position;
            fold.apply(&record).map_err(|unfit| BuildError::Unfit { position, unfit })?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(fold.specs().clone());
        }
    }
}

type Recovered = oneshot::Receiver<Result<(), ActorError>>;

/// Recovers the entities that were awake when the previous runtime ended, in the order of their names. In
/// memory are only those that are being read or recovered, at most [`RECOVERING_MAX`] of each.
pub(crate) struct Recovery<'a> {
    runtime: &'a Runtime,
    /// The partition whose entities it recovers; `None` for all that are served.
    of: Option<usize>,
    waiting: Vec<(EntityRef, Recovered)>,
}

impl<'a> Recovery<'a> {
    pub(crate) const fn of(runtime: &'a Runtime, of: Option<usize>) -> Self {
        Self { runtime, of, waiting: Vec::new() }
    }

    /// Reads the entities that are awake or listed, and then loads those whose timers fire soon.
    /// Returns what is left to be loaded.
    pub(crate) async fn run(mut self) -> Result<Round, BuildError> {
        let shared = &self.runtime.0.shared;
        let which = || Select::Due { until: WallTime::from_millis(SelectedPlace::FIRST) };
        let mut after = None;
        loop {
            let of = shared.served(self.of);
            let page = shared.journal.select_of(&of, which(), after, SELECTED_MAX).await?;
            // The first start with a copied or upgraded journal reads all entities. Many reads wait in the
            // journal's queue at once, which one after the other would each wait for the one before.
            let read = page.entries.into_iter().map(|entry| read_patiently(shared, entry));
            let mut read = stream::iter(read).buffered(RECOVERING_MAX);
            while let Some((entry, restored)) = read.try_next().await? {
                if let Some(restored) = restored {
                    self.recover(entry, restored).await?;
                }
            }
            drop(read);
            if shared.rests.fill_a_write() {
                // While the disk is full, these entities keep their entries in the table.
                let _ = shared.write_rests().await;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.wait_until_recovered().await?;
        let mut round = Round::begin(shared, self.of);
        round.load_page(shared).await?;
        Ok(round)
    }

    /// Lets an entity sleep. If it has something in flight, or changes to another version of its
    /// spec, starts its task instead.
    async fn recover(&mut self, entry: EntityEntry, restored: Restored) -> Result<(), BuildError> {
        let (shared, name) = (&self.runtime.0.shared, entry.entity);
        let Restored { spec, entity, last, .. } = &restored;
        if let Some(hold) = shared.table.hold_at(shared.journal.index_of(&name)) {
            shared.note_conversation(spec, entity, *last, &hold);
        }
        let newest = shared.specs().newest(entity);
        let changes_spec = newest.is_some_and(|newest| change_spec(spec, entity, &newest).is_ok());
        if entity.is_at_rest() && !changes_spec {
            let mut timers = Timers::default();
            let has_work = false; // It is settled.
            timers.follow(entity, has_work, spec, &*shared.clock);
            let counted = Counted::asleep(shared, entity);
            let (next, now) = (timers.next(), shared.clock.now());
            let slot = shared.spawn_quota.follow(None, entity, next, now);
            let is_counted = counted.is_some() || slot.is_some();
            let rest = shared.rest_of(spec, entity, next, is_counted);
            let obeyed = Some(Arc::clone(spec)).filter(|spec| !entity.has_ended(spec));
            let sleep = Sleep::new(obeyed, *last, timers).counted(counted).with_slot(slot);
            let is_noted = entry.rest.is_some_and(|noted| noted.is_listed == rest.is_listed);
            if !is_noted || sleep.is_needed(now) {
                shared.table.add(&name, sleep);
            }
            if !is_noted {
                shared.rests.add(&name, *last, rest);
            }
            return Ok(());
        }
        let recovered = start(self.runtime, &name, restored);
        self.waiting.push((name, recovered));
        if self.waiting.len() >= RECOVERING_MAX {
            self.wait_until_recovered().await?;
        }
        Ok(())
    }

    async fn wait_until_recovered(&mut self) -> Result<(), BuildError> {
        for (entity, recovered) in self.waiting.drain(..) {
            let answer = recovered.await.unwrap_or(Err(ActorError::Closed));
            answer.map_err(|error| BuildError::Recovery { entity, error: Box::new(error) })?;
        }
        Ok(())
    }
}

/// Reads an entity. A start reads each one that was awake, so it would hardly ever succeed on a disk or
/// connection that fails now and then, if one failure were enough.
async fn read_patiently(
    shared: &Shared,
    entry: EntityEntry,
) -> Result<(EntityEntry, Option<Restored>), BuildError> {
    for _ in 1..READS_MAX {
        match read_before(shared, &entry.entity, Position(u64::MAX)).await {
            Err(Unread::Journal(journal::Error::Unavailable { .. })) => {
                timer::until(&*shared.clock, shared.clock.now().after(READ_AGAIN)).await;
            }
            read => return Ok((entry, read?)),
        }
    }
    let read = read_before(shared, &entry.entity, Position(u64::MAX)).await?;
    Ok((entry, read))
}

impl From<Unread> for BuildError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Journal(error) => Self::Journal(error),
            Unread::Unfit { position, unfit } => Self::Unfit { position, unfit },
        }
    }
}

fn start(runtime: &Runtime, name: &EntityRef, restored: Restored) -> Recovered {
    let inner = &runtime.0;
    let (reply, recovered) = oneshot::channel();
    let mut entities = inner.shared.table.lock();
    let hold = entities.serving.hold(name).filter(|_| !*inner.closing.borrow());
    // Without one, the recovery learns that from the reply that is dropped.
    let Some(hold) = hold else { return recovered };
    let (handle, channels) = channels(View::Waking, hold.clone());
    entities.enter(name.clone(), handle);
    let mut actor = Actor::new(Arc::clone(&inner.shared), restored, channels);
    inner.spawn_life((name.clone(), hold), async move {
        let answer = actor.recover().await;
        let failed = answer.is_err();
        let _ = reply.send(answer);
        if !failed {
            Box::pin(actor.run_loop()).await;
        }
    });
    recovered
}

/// Executes nothing.
struct NoHandlers;

impl Handlers for NoHandlers {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let message = format!(
            "no executor of handlers is set, so integration `{}` cannot run",
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
