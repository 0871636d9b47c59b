//! What all requests share: the runtime and what is known beside it, and the bounds
//! that they have in common.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_host::TickerHealth;
use sandglass_http::{SharedSlots, Slot};
use sandglass_journal::{Health, Journal};
use sandglass_model::{Clock, EntityRef};
use sandglass_runtime::{HostHandlers, RunView, Runtime};
use sandglass_telemetry::prometheus::Exporter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::access::{Keys, Principal};
use crate::error::{Code, Error};
use crate::feed::Feed;
use crate::live::Live;
use crate::modules::Modules;
use crate::settings::Settings;

/// Pages of histories that are read and written out at the same time: each is in memory
/// several times over then. More wait.
const READING_MAX: usize = 8;

/// Uploads of modules at the same time: each may have its largest size in memory.
const PUTS_MAX: usize = 4;

/// Large bodies that are read at the same time: each may have `max_body_bytes`, and take minutes.
const LARGE_BODIES_MAX: usize = 64;

/// What a daemon is made of.
#[derive(Debug)]
pub struct Parts {
    /// Its entities.
    pub runtime: Runtime,
    /// What runs their handlers: the same that the runtime has.
    pub handlers: HostHandlers,
    /// Where they are recorded: the same that the runtime has.
    pub journal: Arc<dyn Journal>,
    /// Its metrics.
    pub exporter: Exporter,
    /// The clock that the runtime has.
    pub clock: Arc<dyn Clock>,
    /// Its modules, as `handlers` were given them.
    pub modules: Modules,
    /// Types of entities that another interface creates and operates: this one shows them, and
    /// cancels their sessions.
    pub operated_elsewhere: BTreeSet<String>,
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
    puts: SharedSlots,
    large_bodies: SharedSlots,
    reading: Arc<Semaphore>,
}

/// Why the daemon doesn't do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unhealthy {
    Ticker,
    KillOverdue,
    Journal,
    Closing,
}

impl Daemon {
    /// The interface of these, with these bounds, for these keys. Needs a tokio runtime.
    #[must_use]
    pub fn new(parts: Parts, settings: Settings, keys: Keys) -> Self {
        let places = |most| Arc::new(Semaphore::new(most));
        let live = Live::default();
        Self(Arc::new(Inner {
            feed: Feed::of(&parts.runtime, live.kills()),
            live,
            keys: watch::Sender::new(Arc::new(keys)),
            closing: watch::Sender::new(false),
            waiting: SharedSlots::new(settings.max_waiting),
            subscribers: SharedSlots::new(settings.max_subscribers),
            puts: SharedSlots::new(PUTS_MAX),
            large_bodies: SharedSlots::new(LARGE_BODIES_MAX),
            reading: places(READING_MAX),
            parts,
            settings,
        }))
    }

    /// Takes these keys for every request from now on. The streams of events of keys that
    /// are gone, or may no more read them, end.
    pub fn set_keys(&self, keys: Keys) {
        self.0.keys.send_replace(Arc::new(keys));
    }

    /// The runtime.
    #[must_use]
    pub fn runtime(&self) -> &Runtime {
        &self.0.parts.runtime
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.0.settings
    }

    pub(crate) fn keys(&self) -> Arc<Keys> {
        Arc::clone(&self.0.keys.borrow())
    }

    /// The keys, to be looked at once in any case: they may have changed since the door let
    /// somebody in; and each change of them.
    pub(crate) fn watch_keys(&self) -> watch::Receiver<Arc<Keys>> {
        let mut keys = self.0.keys.subscribe();
        keys.mark_changed();
        keys
    }

    pub(crate) fn handlers(&self) -> &HostHandlers {
        &self.0.parts.handlers
    }

    pub(crate) fn journal(&self) -> &Arc<dyn Journal> {
        &self.0.parts.journal
    }

    pub(crate) fn exporter(&self) -> &Exporter {
        &self.0.parts.exporter
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.0.parts.clock
    }

    pub(crate) fn modules(&self) -> &Modules {
        &self.0.parts.modules
    }

    /// Whether clients may create `entity` and operate on it here.
    ///
    /// # Errors
    /// Another interface is for entities of its type.
    pub(crate) fn operates(&self, entity: &EntityRef) -> Result<(), Error> {
        if !self.0.parts.operated_elsewhere.contains(entity.entity_type()) {
            return Ok(());
        }
        let message = format!(
            "entities of type `{}` are shown here; what is done with them goes through the \
             interface that they are of",
            entity.entity_type()
        );
        Err(Error::new(Code::Forbidden, message))
    }

    pub(crate) fn feed(&self) -> &Feed {
        &self.0.feed
    }

    pub(crate) fn live(&self) -> &Live {
        &self.0.live
    }

    /// A slot of a request that waits for an entity to settle.
    pub(crate) fn waiting(&self, principal: &Principal) -> Result<Slot, Error> {
        share(&self.0.waiting, principal, "a request that waits for an entity to settle")
    }

    /// A slot of a reader of events.
    pub(crate) fn subscriber(&self, principal: &Principal) -> Result<Slot, Error> {
        share(&self.0.subscribers, principal, "a reader of events")
    }

    /// A slot of an uploaded module. It may be in memory and compile for a minute.
    pub(crate) fn put(&self, principal: &Principal) -> Result<Slot, Error> {
        share(&self.0.puts, principal, "an upload of a module")
    }

    /// A slot of a body that is larger than [`sandglass_http::body::LARGE_BYTES`].
    pub(crate) fn large_body(&self, principal: &Principal) -> Result<Slot, Error> {
        share(&self.0.large_bodies, principal, "a large body")
    }

    /// A place among those who read pages of histories, when there is one. None where
    /// nothing is bounded any more.
    pub(crate) async fn reading(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.reading).acquire_owned().await.ok()
    }

    /// Takes no more requests.
    pub(crate) fn close(&self) {
        self.0.closing.send_replace(true);
    }

    pub(crate) fn closing(&self) -> watch::Receiver<bool> {
        self.0.closing.subscribe()
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.0.closing.borrow()
    }

    /// Why it is not healthy; nothing where it is.
    pub(crate) fn unhealthy(&self) -> Vec<Unhealthy> {
        let host = self.handlers().host();
        let ticker = host.ticker_health() != TickerHealth::Healthy;
        let overdue = host.kills_overdue() > 0;
        let journal = self.journal().health() != Health::Working;
        let closing = self.is_closing();
        let reasons = [
            (ticker, Unhealthy::Ticker),
            (overdue, Unhealthy::KillOverdue),
            (journal, Unhealthy::Journal),
            (closing, Unhealthy::Closing),
        ];
        reasons.into_iter().filter_map(|(is, reason)| is.then_some(reason)).collect()
    }

    /// The handlers that are queued or in flight, by dispatch.
    pub(crate) fn in_flight(&self) -> Vec<(EntityRef, RunView)> {
        let mut runs = self.runtime().in_flight();
        runs.sort_by_key(|(_, run)| run.dispatch);
        runs
    }
}

fn share(shares: &SharedSlots, principal: &Principal, what: &str) -> Result<Slot, Error> {
    shares.take(&principal.holder()).map_err(|refused| {
        let message = format!("no slot for {what} is free: {refused}; try again later");
        Error::new(Code::Busy, message)
    })
}
