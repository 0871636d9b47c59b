//! Admits dispatches: as many as the bounds allow, tenants in turn, with a hint of when to retry if a
//! bound is reached.
//!
//! `queue` decides which dispatch starts when; here are the lock, the wake-ups and the metrics.

mod pace;
mod queue;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use sandglass_model::{Allocation, Busy, BusyScope, Clock, Monotonic};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{Level, LevelGuard, Refusal};
use tokio::sync::oneshot;

use crate::manifest::Manifest;
use crate::opaque::opaque;
use crate::settings::Settings;
use crate::sync::lock;
use pace::Pace;
pub use queue::IntegrationKey;
use queue::{Bound, Bounds, Full, Queue, Ticket};

/// What a future dispatch will count towards.
#[derive(Clone, Debug)]
pub struct ReserveFor {
    integration: IntegrationKey,
    tenant: Arc<str>,
}

impl ReserveFor {
    /// A dispatch of the integration of this manifest, for `tenant`.
    #[must_use]
    pub fn new(manifest: &Manifest, tenant: &str) -> Self {
        Self { integration: IntegrationKey::of(manifest), tenant: tenant.into() }
    }
}

impl IntegrationKey {
    /// What dispatches of the integration of `manifest` count towards.
    pub fn of(manifest: &Manifest) -> Self {
        let in_flight = manifest.max_in_flight.map_or(u64::MAX, |most| u64::from(most.max(1)));
        let queued = manifest.max_queued.map_or(u64::MAX, u64::from);
        Self { name: manifest.name.as_str().into(), bound: Bound { in_flight, queued } }
    }
}

/// A place in the queue, reserved before its dispatch exists. Dropping it releases the place.
#[derive(Debug)]
#[must_use = "dropping it releases the place"]
pub struct Reservation(pub AdmittedDispatch);

/// The admission of dispatches to one host.
pub struct Admission {
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    slots: usize,
    inner: Mutex<Inner>,
}

struct Inner {
    queue: Queue,
    admitted: BTreeMap<Ticket, TicketState>,
    pace: Pace,
}

/// The state of one ticket besides the queue's.
struct TicketState {
    /// Wakes the dispatch when it may run, while it waits for that.
    wake: Option<oneshot::Sender<()>>,
    running_since: Option<Monotonic>,
    level: Option<LevelGuard>,
}

impl Admission {
    /// Admits as many dispatches as `settings` allow.
    pub fn new(settings: &Settings, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        let bounds = Bounds {
            host: Bound {
                in_flight: u64::from(settings.max_runs.max(1)),
                queued: settings.max_queued as u64,
            },
            tenant: Bound {
                in_flight: u64::from(settings.max_runs_per_tenant.max(1)),
                queued: settings.max_queued_per_tenant as u64,
            },
            asking: u64::from(settings.max_asking),
            on_demand: u64::from(settings.max_on_demand.max(1)),
        };
        let inner =
            Inner { queue: Queue::new(bounds), admitted: BTreeMap::new(), pace: Pace::default() };
        let slots = settings.slots() as usize;
        let admission = Self { clock, metrics, slots, inner: Mutex::new(inner) };
        admission.with(|_| ());
        admission
    }

    /// Reserves a place in the queue for a dispatch.
    ///
    /// # Errors
    /// A bound is reached.
    pub fn reserve(self: &Arc<Self>, of: ReserveFor) -> Result<AdmittedDispatch, Busy> {
        self.with(|inner| {
            let reserved = inner.queue.reserve(of.integration, Arc::clone(&of.tenant));
            let ticket = reserved.map_err(|full| self.refuse(inner, full))?;
            let level = Some(self.metrics.hold(Level::Queued));
            inner.admitted.insert(ticket, TicketState { wake: None, running_since: None, level });
            Ok(AdmittedDispatch::new(self, ticket, of.tenant))
        })
    }

    /// Admits a dispatch of `integration` for `tenant`, which waits for its permit from now on.
    ///
    /// # Errors
    /// As [`Admission::reserve`].
    pub fn admit(
        self: &Arc<Self>,
        (integration, allocation): (IntegrationKey, Allocation),
        tenant: &str,
        now: Monotonic,
    ) -> Result<(AdmittedDispatch, PermitWait), Busy> {
        self.with(|inner| {
            let on_demand = allocation == Allocation::OnDemand;
            let tenant = inner.queue.name_of(tenant);
            let admitted = inner.queue.admit(integration, Arc::clone(&tenant), on_demand);
            let (ticket, at_once) = admitted.map_err(|full| self.refuse(inner, full))?;
            let place = AdmittedDispatch::new(self, ticket, tenant);
            let (wait, state) = if at_once {
                let running = TicketState { wake: None, running_since: Some(now), level: None };
                (PermitWait::default(), running)
            } else {
                let (wake, may_run) = oneshot::channel();
                let level = Some(self.metrics.hold(Level::Queued));
                let queued = TicketState { wake: Some(wake), running_since: None, level };
                (PermitWait(Some(may_run)), queued)
            };
            inner.admitted.insert(ticket, state);
            Ok((place, wait))
        })
    }

    fn refuse(&self, inner: &Inner, full: Full) -> Busy {
        self.metrics.dispatch_refused(match full.scope {
            BusyScope::Host => Refusal::QueueFull,
            BusyScope::Integration => Refusal::IntegrationQueueFull,
            BusyScope::Tenant => Refusal::TenantQueueFull,
        });
        inner.busy(full)
    }

    /// Locks the state for `change`, and then reports how much of the pool is in use.
    fn with<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = lock(&self.inner);
        let result = change(&mut inner);
        let in_use = usize::try_from(inner.queue.slots_in_use()).unwrap_or(usize::MAX);
        self.metrics.pool(in_use, self.slots);
        result
    }
}

opaque!(Admission as "Admission", AdmittedDispatch as "AdmittedDispatch" { ticket });

impl Inner {
    fn busy(&self, full: Full) -> Busy {
        let retry_after_ms = self.pace.retry_after_ms(full.queued, full.at_once);
        Busy { scope: full.scope, limit: full.limit, retry_after_ms }
    }

    fn start(&mut self, ticket: Ticket, now: Monotonic) {
        let Some(admitted) = self.admitted.get_mut(&ticket) else { return };
        admitted.running_since.get_or_insert(now);
        admitted.level = None;
        if let Some(wake) = admitted.wake.take() {
            // It may have been dropped, or have cancelled what waits.
            let _ = wake.send(());
        }
    }
}

/// One admitted dispatch, until this is dropped: queued, running, or waiting in an ask.
pub struct AdmittedDispatch {
    admission: Arc<Admission>,
    ticket: Ticket,
    tenant: Arc<str>,
    /// How many asks it waits for. It has no permit while there are any.
    asks: Mutex<u32>,
}

impl AdmittedDispatch {
    fn new(admission: &Arc<Admission>, ticket: Ticket, tenant: Arc<str>) -> Self {
        Self { admission: Arc::clone(admission), ticket, tenant, asks: Mutex::default() }
    }

    /// Waits for `ask`. The handler has no permit to run until the last of its asks has ended. A guest
    /// with tasks may run all the same: it counts as one that asks, of which there are a limited
    /// number.
    ///
    /// # Errors
    /// Too many handlers wait in asks.
    pub async fn without_permit<T>(&self, ask: impl Future<Output = T>) -> Result<T, Busy> {
        /// One ask of the dispatch. Dropped, it is cancelled.
        struct Asking<'a>(Option<&'a AdmittedDispatch>);
        impl Asking<'_> {
            fn end(&mut self) -> PermitWait {
                self.0.take().map(AdmittedDispatch::end_ask).unwrap_or_default()
            }
        }
        impl Drop for Asking<'_> {
            fn drop(&mut self) {
                // Its guest goes on, and does not wait for the permit.
                drop(self.end());
            }
        }
        let mut asking = {
            let mut asks = lock(&self.asks);
            if *asks == 0 {
                self.release_permit()?;
            }
            *asks += 1;
            Asking(Some(self))
        };
        let answer = ask.await;
        asking.end().wait().await;
        Ok(answer)
    }

    /// The tenant of the dispatch.
    pub const fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Whether `admission` admitted it.
    pub fn is_of(&self, admission: &Arc<Admission>) -> bool {
        Arc::ptr_eq(&self.admission, admission)
    }

    /// Waits for the permit to run from now on, with an instance that is allocated like this.
    pub fn request_permit(&self, allocation: Allocation, now: Monotonic) -> PermitWait {
        self.wait_unless(now, |queue, ticket| {
            if allocation == Allocation::OnDemand {
                queue.set_on_demand(ticket);
            }
            queue.wait(ticket)
        })
    }

    /// Releases the permit to run while the handler waits in an ask.
    ///
    /// # Errors
    /// Too many handlers wait in asks.
    fn release_permit(&self) -> Result<(), Busy> {
        let Admission { clock, metrics, .. } = &*self.admission;
        let now = clock.now();
        self.admission.with(|inner| {
            let started = inner.queue.begin_ask(self.ticket).map_err(|full| {
                metrics.dispatch_refused(Refusal::AskingFull);
                inner.busy(full)
            })?;
            if let Some(admitted) = inner.admitted.get_mut(&self.ticket) {
                admitted.level = Some(metrics.hold(Level::Asking));
                // An ask that has ended does not wait for the permit until this one ends as well.
                drop(admitted.wake.take());
            }
            started.into_iter().for_each(|ticket| inner.start(ticket, now));
            Ok(())
        })
    }

    /// Ends an ask. After the last one, the dispatch waits for its permit again, before all that have
    /// not begun.
    fn end_ask(&self) -> PermitWait {
        let mut asks = lock(&self.asks);
        *asks -= 1;
        match *asks {
            0 => self.wait_unless(self.admission.clock.now(), Queue::end_ask),
            _ => PermitWait::default(),
        }
    }

    /// Starts the dispatch if `may_run_now`, or else returns the wait for its permit.
    fn wait_unless(
        &self,
        now: Monotonic,
        may_run_now: impl FnOnce(&mut Queue, Ticket) -> bool,
    ) -> PermitWait {
        self.admission.with(|inner| {
            if may_run_now(&mut inner.queue, self.ticket) {
                inner.start(self.ticket, now);
                return PermitWait::default();
            }
            let (wake, may_run) = oneshot::channel();
            if let Some(admitted) = inner.admitted.get_mut(&self.ticket) {
                admitted.wake = Some(wake);
            }
            PermitWait(Some(may_run))
        })
    }
}

/// The wait for a permit; the default one is over.
#[derive(Debug, Default)]
pub struct PermitWait(Option<oneshot::Receiver<()>>);

impl PermitWait {
    /// Whether the dispatch may run.
    pub const fn is_over(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until the dispatch may run.
    pub async fn wait(self) {
        if let Some(may_run) = self.0 {
            // The sender exists until it is used or the dispatch is dropped, so this ends.
            drop(may_run.await);
        }
    }
}

impl Drop for AdmittedDispatch {
    fn drop(&mut self) {
        let now = self.admission.clock.now();
        self.admission.with(|inner| {
            let left = inner.admitted.remove(&self.ticket);
            if let Some(since) = left.and_then(|admitted| admitted.running_since) {
                inner.pace.note_run(now.since(since));
            }
            for ticket in inner.queue.leave(self.ticket) {
                inner.start(ticket, now);
            }
        });
    }
}
