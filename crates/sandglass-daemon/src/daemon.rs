//! The state that all requests share: the runtime and what surrounds it, and the bounds that clients
//! share.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandglass_host::TickerHealth;
use sandglass_http::{SharedSlots, Slot};
use sandglass_journal::{Health, Journals};
use sandglass_model::{Clock, EntityRef, HostId};
use sandglass_runtime::{HostHandlers, RunView, Runtime};
use sandglass_telemetry::metrics::CancelTarget;
use sandglass_telemetry::prometheus::Exporter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::{Keys, Permission, Principal};
use crate::cluster::{Cluster, Deployments};
use crate::error::{Code, Error};
use crate::feed::Feed;
use crate::live::{Live, LiveSnapshot, Watching};
use crate::modules::Modules;
use crate::recent_kills::RecentKills;
use crate::settings::Settings;
use crate::view::ReasonCode;

/// Pages of histories that are read and serialized at the same time. Each is in memory several times
/// meanwhile; further requests wait.
const READING_MAX: usize = 8;

/// Uploads of modules at the same time: each may have its largest size in memory.
const UPLOADS_MAX: usize = 4;

/// Large bodies that are read at the same time: each may have `max_body_bytes`, and take minutes.
const LARGE_BODIES_MAX: usize = 64;

/// Requests for what all hosts of a cluster have at the same time. Each has some responses of other hosts
/// in memory; further requests wait.
const GATHERING_MAX: usize = 8;

/// What a daemon is made of.
#[derive(Debug)]
pub struct Parts {
    /// The runtime whose entities are served.
    pub runtime: Runtime,
    /// The handlers that the runtime uses.
    pub handlers: HostHandlers,
    /// The journals that the runtime writes.
    pub journals: Journals,
    /// The exporter of the metrics.
    pub exporter: Exporter,
    /// The clock that the runtime uses.
    pub clock: Arc<dyn Clock>,
    /// The modules that were given to `handlers`.
    pub modules: Modules,
    /// Types of entities that another interface creates and operates: this one shows them, and
    /// cancels their sessions.
    pub operated_elsewhere: BTreeSet<String>,
    /// The cluster that the runtime is a member of; `None` if this host has all entities.
    pub cluster: Option<Cluster>,
}

/// The HTTP interface of a runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Daemon(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: Parts,
    settings: Settings,
    keys: watch::Sender<Arc<Keys>>,
    feed: Feed,
    live: Live,
    closing: watch::Sender<bool>,
    waiting: SharedSlots,
    subscribers: SharedSlots,
    uploads: SharedSlots,
    large_bodies: SharedSlots,
    reading: Arc<Semaphore>,
    gathering: Arc<Semaphore>,
    watching: Mutex<Weak<Watching>>,
}

impl Daemon {
    /// Creates the interface of `parts`, with the bounds of `settings`, for clients with `keys`.
    /// Needs a tokio runtime.
    #[must_use]
    pub fn new(parts: Parts, settings: Settings, keys: Keys) -> Self {
        let kills = Arc::new(RecentKills::default());
        let others = parts.cluster.as_ref().map(|_| parts.journals.clone());
        Self(Arc::new(Inner {
            feed: Feed::new(&parts.runtime, Arc::clone(&kills), others),
            live: Live::new(kills),
            keys: watch::Sender::new(Arc::new(keys)),
            closing: watch::Sender::new(false),
            waiting: SharedSlots::new(settings.max_waiting),
            subscribers: SharedSlots::new(settings.max_subscribers),
            uploads: SharedSlots::new(UPLOADS_MAX),
            large_bodies: SharedSlots::new(LARGE_BODIES_MAX),
            reading: Arc::new(Semaphore::new(READING_MAX)),
            gathering: Arc::new(Semaphore::new(GATHERING_MAX)),
            watching: Mutex::default(),
            parts,
            settings,
        }))
    }

    /// Uses `keys` for every request from now on. Event streams end if their key was removed or may
    /// no longer read them.
    pub fn set_keys(&self, keys: Keys) {
        self.0.keys.send_replace(Arc::new(keys));
    }

    /// The runtime.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.parts.runtime
    }

    /// The host that executes the handlers.
    #[must_use]
    pub fn host(&self) -> &sandglass_host::Host {
        self.0.parts.handlers.host()
    }

    /// The clock that the runtime uses.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.0.parts.clock
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.0.parts
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.0.keys.borrow())
    }

    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.0.parts.cluster.as_ref()
    }

    /// What the hosts of the cluster run, if they follow their database.
    pub(crate) fn deployments(&self) -> Option<&Arc<dyn Deployments>> {
        self.cluster().and_then(|cluster| cluster.deployments.as_ref())
    }

    /// The id of this host, if it is a member of a cluster.
    pub(crate) fn own_host(&self) -> Option<HostId> {
        self.cluster().map(|cluster| cluster.peers.host())
    }

    /// Each change of the keys. The first one is reported at once, because they may have changed
    /// since the request was admitted.
    pub(crate) fn watch_keys(&self) -> watch::Receiver<Arc<Keys>> {
        let mut keys = self.0.keys.subscribe();
        keys.mark_changed();
        keys
    }

    /// Checks that clients may create `entity` and operate on it through this interface.
    pub(crate) fn require_operated_here(&self, entity: &EntityRef) -> Result<(), Error> {
        let entity_type = entity.entity_type();
        if !self.0.parts.operated_elsewhere.contains(entity_type) {
            return Ok(());
        }
        let message = format!(
            "entities of type `{entity_type}` are read-only here; use the interface that creates them"
        );
        Err(Error::new(Code::Forbidden, message))
    }

    /// Checks that `principal` may cancel, and counts a refusal.
    pub(crate) fn require_to_cancel(
        &self,
        principal: &Principal,
        target: CancelTarget,
    ) -> Result<(), Error> {
        let metrics = &self.0.parts.handlers.host().telemetry().metrics;
        principal.require(Permission::Operate).inspect_err(|_| metrics.cancel_refused(target))
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.0.feed
    }

    /// A snapshot for the live view, at most a moment old.
    pub(crate) fn live_snapshot(&self) -> Arc<LiveSnapshot> {
        let Parts { runtime, handlers, clock, .. } = &self.0.parts;
        self.0.live.snapshot(runtime, handlers.host(), &**clock, || self.unhealthy())
    }

    /// What the other hosts of `cluster` show, for all clients that watch.
    pub(crate) fn watch_others(&self, cluster: &Cluster) -> Result<Arc<Watching>, Error> {
        let mut watching = self.0.watching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(present) = watching.upgrade() {
            return Ok(present);
        }
        let new = Arc::new(Watching::begin(self, cluster)?);
        *watching = Arc::downgrade(&new);
        Ok(new)
    }

    /// A slot for a request that waits for an entity to settle.
    pub(crate) fn waiting(&self, principal: &Principal) -> Result<Slot, Error> {
        take_slot(&self.0.waiting, principal, "a request that waits for an entity to settle")
    }

    /// A slot for a reader of events.
    pub(crate) fn subscriber(&self, principal: &Principal) -> Result<Slot, Error> {
        take_slot(&self.0.subscribers, principal, "a reader of events")
    }

    /// A slot for an upload of a module, which may be in memory and compile for a minute.
    pub(crate) fn upload(&self, principal: &Principal) -> Result<Slot, Error> {
        take_slot(&self.0.uploads, principal, "an upload of a module")
    }

    /// A slot for a body that is larger than [`sandglass_http::body::LARGE_BYTES`].
    pub(crate) fn large_body(&self, principal: &Principal) -> Result<Slot, Error> {
        take_slot(&self.0.large_bodies, principal, "a large body")
    }

    /// Waits for a permit to read a page of a history.
    pub(crate) async fn reading(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.0.reading).acquire_owned().await;
        permit.expect("this semaphore is never closed")
    }

    /// Waits for a permit to ask the other hosts of a cluster.
    pub(crate) async fn gathering(&self) -> OwnedSemaphorePermit {
        let permit = Arc::clone(&self.0.gathering).acquire_owned().await;
        permit.expect("this semaphore is never closed")
    }

    /// Refuses all further requests.
    pub(crate) fn close(&self) {
        self.0.closing.send_replace(true);
    }

    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.0.closing.subscribe()
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.0.closing.borrow()
    }

    /// Why the daemon is not healthy; empty if it is.
    pub(crate) fn unhealthy(&self) -> Vec<ReasonCode> {
        let host = self.0.parts.handlers.host();
        let reasons = [
            (host.ticker_health() != TickerHealth::Healthy, ReasonCode::Ticker),
            (host.kills_overdue() > 0, ReasonCode::KillOverdue),
            (self.0.parts.journals.health() != Health::Working, ReasonCode::Journal),
            (self.cluster().is_some_and(|one| !one.peers.is_trusted()), ReasonCode::Ownership),
            (self.cluster().is_some_and(|one| one.peers.is_refused()), ReasonCode::Refused),
            (self.deployments().is_some_and(|all| !all.has_generation()), ReasonCode::Deployment),
            (self.is_closing(), ReasonCode::ShuttingDown),
        ];
        reasons.into_iter().filter_map(|(holds, reason)| holds.then_some(reason)).collect()
    }

    /// The handlers that are queued or in flight, by dispatch.
    pub(crate) fn in_flight(&self) -> Vec<(EntityRef, RunView)> {
        let mut runs = self.runtime().in_flight();
        runs.sort_by_key(|(_, run)| run.dispatch);
        runs
    }
}

fn take_slot(slots: &SharedSlots, principal: &Principal, purpose: &str) -> Result<Slot, Error> {
    slots.take(&principal.holder()).map_err(|refused| {
        let message = format!("no slot for {purpose} is free: {refused}; try again later");
        Error::new(Code::Busy, message)
    })
}
