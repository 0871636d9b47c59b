//! Admits dispatches: as many as the bounds allow, tenants in turn, with a hint of when to retry if a
//! bound is reached.
//!
//! `queue` decides which dispatch starts when; here are the lock, the wake-ups and the metrics.

mod pace;
mod queue;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

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

/// A place in the queue, reserved before its dispatch exists. Dropping it releases it.
#[derive(Debug)]
#[must_use = "dropping it releases the place"]
pub struct Reservation(pub Place);

/// The admission of dispatches to one host.
pub struct Admission {
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    slots: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    queue: Queue,
    admitted: BTreeMap<Ticket, Admitted>,
    pace: Pace,
}

/// The state of one ticket besides the queue's.
struct Admitted {
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
        let slots = u64::from(settings.slots());
        let admission = Self { clock, metrics, slots, inner: Mutex::new(inner) };
        admission.lock();
        admission
    }

    /// Reserves a place in the queue for a dispatch.
    ///
    /// # Errors
    /// A bound is reached.
    pub fn reserve(self: &Arc<Self>, of: ReserveFor) -> Result<Place, Busy> {
        let mut inner = self.lock();
        let arrived = inner.queue.arrive(of.integration, Arc::clone(&of.tenant));
        let ticket = arrived.map_err(|full| self.refuse(&inner, full))?;
        let level = Some(self.metrics.hold(Level::Queued));
        inner.admitted.insert(ticket, Admitted { wake: None, running_since: None, level });
        Ok(Place { admission: Arc::clone(self), ticket, tenant: of.tenant })
    }

    /// Admits a dispatch of `integration` for `tenant`, which waits for its permit from now on.
    ///
    /// # Errors
    /// As [`Admission::reserve`].
    pub fn line_up(
        self: &Arc<Self>,
        (integration, allocation): (IntegrationKey, Allocation),
        tenant: &str,
        now: Monotonic,
    ) -> Result<(Place, Turn), Busy> {
        let mut inner = self.lock();
        let on_demand = allocation == Allocation::OnDemand;
        let tenant = inner.queue.name_of(tenant);
        let come = inner.queue.come(integration, Arc::clone(&tenant), on_demand);
        let (ticket, at_once) = come.map_err(|full| self.refuse(&inner, full))?;
        let place = Place { admission: Arc::clone(self), ticket, tenant };
        if at_once {
            let running = Admitted { wake: None, running_since: Some(now), level: None };
            inner.admitted.insert(ticket, running);
            return Ok((place, Turn::default()));
        }
        let (wake, may_run) = oneshot::channel();
        let level = Some(self.metrics.hold(Level::Queued));
        inner.admitted.insert(ticket, Admitted { wake: Some(wake), running_since: None, level });
        Ok((place, Turn(Some(may_run))))
    }

    fn refuse(&self, inner: &Inner, full: Full) -> Busy {
        self.metrics.dispatch_refused(match full.scope {
            BusyScope::Host => Refusal::QueueFull,
            BusyScope::Integration => Refusal::IntegrationQueueFull,
            BusyScope::Tenant => Refusal::TenantQueueFull,
        });
        inner.busy(full)
    }

    fn lock(&self) -> Guard<'_> {
        let inner = lock(&self.inner);
        Guard { admission: self, inner }
    }
}

opaque!(Admission as "Admission");

/// The lock on the state of admission. When it is released, it reports how much of the pool is in use.
struct Guard<'a> {
    admission: &'a Admission,
    inner: MutexGuard<'a, Inner>,
}

impl std::ops::Deref for Guard<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.inner
    }
}

impl std::ops::DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.inner
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let in_use = usize::try_from(self.inner.queue.slots_in_use()).unwrap_or(usize::MAX);
        let slots = usize::try_from(self.admission.slots).unwrap_or(usize::MAX);
        self.admission.metrics.pool(in_use, slots);
    }
}

impl Inner {
    fn busy(&self, full: Full) -> Busy {
        let retry_after_ms = self.pace.retry_after_ms(full.queued, full.at_once);
        Busy { scope: full.scope, limit: full.limit, retry_after_ms }
    }

    fn started(&mut self, ticket: Ticket, now: Monotonic) {
        let Some(admitted) = self.admitted.get_mut(&ticket) else { return };
        admitted.running_since.get_or_insert(now);
        admitted.level = None;
        if let Some(wake) = admitted.wake.take() {
            // A dispatch that no longer waits is about to release its place.
            let _ = wake.send(());
        }
    }
}

/// One admitted dispatch, until this is dropped: queued, running, or waiting in an ask.
pub struct Place {
    admission: Arc<Admission>,
    ticket: Ticket,
    tenant: Arc<str>,
}

impl Place {
    /// The tenant of the dispatch.
    pub const fn tenant(&self) -> &Arc<str> {
        &self.tenant
    }

    /// Whether `admission` admitted it.
    pub fn is_of(&self, admission: &Arc<Admission>) -> bool {
        Arc::ptr_eq(&self.admission, admission)
    }

    /// Waits for the permit to run from now on, with an instance that is allocated like this.
    pub fn line_up(&self, allocation: Allocation, now: Monotonic) -> Turn {
        self.turn(now, |queue, ticket| {
            if allocation == Allocation::OnDemand {
                queue.takes_no_slot(ticket);
            }
            queue.wait(ticket)
        })
    }

    /// Releases the permit to run while the handler waits in an ask.
    ///
    /// # Errors
    /// Too many handlers wait in asks.
    pub fn step_aside(&self) -> Result<(), Busy> {
        let now = self.admission.clock.now();
        let mut inner = self.admission.lock();
        match inner.queue.ask(self.ticket) {
            Ok(started) => {
                let asking = self.admission.metrics.hold(Level::Asking);
                if let Some(admitted) = inner.admitted.get_mut(&self.ticket) {
                    admitted.level = Some(asking);
                }
                for ticket in started {
                    inner.started(ticket, now);
                }
                Ok(())
            }
            Err(full) => {
                self.admission.metrics.dispatch_refused(Refusal::AskingFull);
                Err(inner.busy(full))
            }
        }
    }

    /// Waits for the permit again, before all dispatches that have not begun.
    pub async fn come_back(&self) {
        self.turn(self.admission.clock.now(), Queue::come_back).come().await;
    }

    fn turn(&self, now: Monotonic, has_place: impl FnOnce(&mut Queue, Ticket) -> bool) -> Turn {
        let mut inner = self.admission.lock();
        if has_place(&mut inner.queue, self.ticket) {
            inner.started(self.ticket, now);
            return Turn::default();
        }
        let (wake, may_run) = oneshot::channel();
        if let Some(admitted) = inner.admitted.get_mut(&self.ticket) {
            admitted.wake = Some(wake);
        }
        Turn(Some(may_run))
    }
}

/// The wait for the permit of a place; the default one is over.
#[derive(Debug, Default)]
pub struct Turn(Option<oneshot::Receiver<()>>);

impl Turn {
    /// Whether the dispatch may run.
    pub const fn has_come(&self) -> bool {
        self.0.is_none()
    }

    /// Waits until the dispatch may run.
    pub async fn come(self) {
        if let Some(may_run) = self.0 {
            // The sender exists until it is used or the place is dropped, so this ends.
            drop(may_run.await);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let now = self.admission.clock.now();
        let mut inner = self.admission.lock();
        let ran = inner.admitted.remove(&self.ticket).and_then(|admitted| admitted.running_since);
        if let Some(since) = ran {
            inner.pace.ran_for(now.since(since));
        }
        for ticket in inner.queue.leave(self.ticket) {
            inner.started(ticket, now);
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.ticket).finish()
    }
}
