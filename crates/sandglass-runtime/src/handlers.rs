//! What the runtime requires of an executor of handlers, and what it gives to each handler. A WASM
//! host is one executor, the script of a test another.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::Fields;
use sandglass_model::{
    Busy, Cancellation, CancelledBy, Cause, DispatchId, Dispatched, EntityRef, Frame, ModuleHash,
    Monotonic, Outcome, Recovery, Rejection, RunReport, TraceContext,
};
use tokio::sync::Notify;

use crate::asking::Asking;
use crate::panics::catch_panic;
use crate::signals::Signals;

/// The execution of one handler. It is ready when nothing of it is left.
pub type RunFuture = Pin<Box<dyn Future<Output = RunReport> + Send>>;

/// Resolved stack frames.
pub type FramesFuture = Pin<Box<dyn Future<Output = Vec<Frame>> + Send>>;

/// Executes handlers, and holds each to its deadline: the runtime has no timer of its own for
/// handlers, and waits for the report.
pub trait Handlers: Send + Sync + 'static {
    /// Starts a handler. The future is polled on a task of its own. If it is dropped, nothing waits
    /// for the handler any more, and it should end.
    fn start(&self, run: HandlerRun) -> RunFuture;

    /// Reserves a slot for a handler of `tenant`, before its dispatch is recorded. The reservation
    /// comes back in [`HandlerRun::reserved`]; it is dropped if the handler is not started.
    ///
    /// # Errors
    /// There is no slot.
    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        let _ = (dispatched, tenant);
        Ok(Reserved::default())
    }

    /// What the handler of `dispatch` is doing; `None` if that is unknown.
    fn doing(&self, dispatch: DispatchId) -> Option<HandlerNow> {
        let _ = dispatch;
        None
    }

    /// Notifies `waiter` once, when the handler of `dispatch` shows activity next. An executor that
    /// cannot do so may ignore this: the end of a silence is then recorded with the next record of
    /// the entity.
    fn on_activity(&self, dispatch: DispatchId, waiter: &Arc<Notify>) {
        let _ = (dispatch, waiter);
    }

    /// Resolves frames of `module` that were recorded as offsets, in order to show them.
    fn resolve_frames(&self, module: ModuleHash, frames: Vec<Frame>) -> FramesFuture {
        let _ = module;
        Box::pin(std::future::ready(frames))
    }

    /// The hash of the module that an integration names, if it is known before the handler starts.
    /// Called if [`Handlers::reserve`] reserved no version of the module.
    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        let _ = module;
        None
    }
}

/// What a handler is doing at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerNow {
    /// The host function that it is in, or where else it is.
    pub place: String,
    /// For how long.
    pub since: Duration,
    /// The time since its last host call began or ended, and when that was by the executor's own
    /// clock, by which two readings of one call are recognized; `None` if there was none. A call that
    /// only sends a synthetic signal does not count.
    pub active: Option<(Duration, Monotonic)>,
}

/// What a handler is started with.
#[derive(Clone, Debug)]
pub struct HandlerRun {
    /// The entity.
    pub entity: EntityRef,
    /// Its record: integration, module, action, state, variables, budget.
    pub dispatched: Arc<Dispatched>,
    /// The fields of the entity when it was dispatched.
    pub fields: Fields,
    /// The tenant of the entity.
    pub tenant: String,
    /// The longest wait for its start, after which it is rejected.
    pub schedule_to_start: Duration,
    /// What was reserved for it.
    pub reserved: Reserved,
    /// The limits of its host calls, if the spec has any.
    pub host_calls: HostCallLimits,
    /// What failed before it: in the previous run of its session, in the attempt that its host lost,
    /// or in the last session of its conversation.
    pub recovery: Option<Arc<Recovery>>,
    /// The session that it belongs to, if its entity is one.
    pub session_id: Option<String>,
    /// Its own budget. The budget in `dispatched` is less if its asker had less time left.
    pub budget: Duration,
    /// The deadline of the handler that asked for it, if one did, on the runtime's clock. Its own
    /// deadline is never later.
    pub not_after: Option<Monotonic>,
    /// Carries its asks to other entities, on the runtime's clock.
    pub asks: Asking,
    /// The span of the transition that started it.
    pub parent: Option<TraceContext>,
    /// How it is stopped.
    pub stop: Stop,
    /// Where it sends its signals.
    pub signals: Signals,
}

/// Limits on the duration of host calls, from the spec.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCallLimits {
    /// For all host functions, if there is one.
    pub all: Option<Duration>,
    /// For single host functions.
    pub of: BTreeMap<String, Duration>,
}

/// What was reserved for one handler; its type is known to the [`Handlers`] alone. It is released
/// when the last clone is dropped.
#[derive(Clone, Default)]
pub struct Reserved {
    reservation: Option<Arc<Mutex<Shared>>>,
    module_hash: Option<ModuleHash>,
}

type Shared = Option<Box<dyn Any + Send>>;

impl Reserved {
    /// Reserves `reservation`.
    #[must_use]
    pub fn of(reservation: impl Any + Send) -> Self {
        let reservation: Shared = Some(Box::new(reservation));
        Self { reservation: Some(Arc::new(Mutex::new(reservation))), module_hash: None }
    }

    /// Adds the version of the module that is reserved, which the record of the dispatch names.
    #[must_use]
    pub fn for_module(self, hash: ModuleHash) -> Self {
        Self { module_hash: Some(hash), ..self }
    }

    /// The reserved version of the module, if there is one.
    #[must_use]
    pub const fn module_hash(&self) -> Option<ModuleHash> {
        self.module_hash
    }

    /// Takes the reservation; `None` if there is none of this type.
    #[must_use = "a reservation that is not used is released"]
    pub fn take<T: Any>(&self) -> Option<T> {
        let mut shared = self.reservation.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let reservation = shared.take_if(|reservation| reservation.is::<T>())?;
        reservation.downcast().ok().map(|reservation| *reservation)
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reserved = if self.reservation.is_some() { "something" } else { "nothing" };
        write!(f, "Reserved({reserved})")
    }
}

/// The report of a handler that was never started.
#[must_use]
pub fn not_run(dispatched: &Dispatched, rejection: Rejection) -> RunReport {
    RunReport::unreported(dispatched, Outcome::Rejected(rejection), Cause::NotStarted)
}

/// The end of a handler that is stopped before it started.
pub(crate) fn stopped(request: StopRequest) -> (Outcome, Cause) {
    let by = CancelledBy::of(request.cause);
    let cancellation = Cancellation { by, reason: request.reason, dying_span: None };
    (Outcome::Cancelled(cancellation), request.cause)
}

/// The report of a handler that was lost through a fault of its executor. Its effects may have
/// landed, as if the host had crashed.
pub(crate) fn lost(dispatched: &Dispatched) -> RunReport {
    RunReport::unreported(dispatched, Outcome::Interrupted, Cause::HostLost)
}

/// Why a handler is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// The cause.
    pub cause: Cause,
    /// The reason that was given; may be empty.
    pub reason: String,
}

/// Stops one handler: gracefully with [`Stop::request_stop`], and for certain with [`Stop::kill`].
/// The first request holds.
#[derive(Clone, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Default)]
struct StopState {
    requests: Mutex<Requests>,
    woken: Notify,
}

#[derive(Default)]
struct Requests {
    is_stop_requested: bool,
    on_stop_request: Vec<Box<dyn FnOnce() + Send>>,
    kill: Option<StopRequest>,
    /// Why the handler's session is over, if it was stopped for good.
    over: Option<Arc<str>>,
    on_kill: Vec<Box<dyn FnOnce(StopRequest) + Send>>,
}

impl Stop {
    /// Kills the handler. Later requests have no effect.
    pub fn kill(&self, cause: Cause, reason: impl Into<String>) {
        let request = StopRequest { cause, reason: reason.into() };
        let callbacks = {
            let mut requests = self.lock();
            if requests.kill.is_some() {
                return;
            }
            requests.kill = Some(request.clone());
            std::mem::take(&mut requests.on_kill)
        };
        self.0.woken.notify_waiters();
        for callback in callbacks {
            // A panic of a callback must not reach the caller, who has nothing to do with it.
            if catch_panic(|| callback(request.clone())).is_none() {
                tracing::error!(cause = ?request.cause, "a callback of a kill panicked");
            }
        }
    }

    /// Requests that the handler stop gracefully.
    pub fn request_stop(&self) {
        let callbacks = {
            let mut requests = self.lock();
            requests.is_stop_requested = true;
            std::mem::take(&mut requests.on_stop_request)
        };
        self.0.woken.notify_waiters();
        for callback in callbacks {
            if catch_panic(callback).is_none() {
                tracing::error!("a callback of a stop request panicked");
            }
        }
    }

    /// Whether a graceful stop of the handler was requested.
    #[must_use]
    pub fn is_stop_requested(&self) -> bool {
        self.lock().is_stop_requested
    }

    /// Calls `callback` when a graceful stop of the handler is requested, or now if it was. It is
    /// called on the thread of the caller of [`Stop::request_stop`], which its panic does not reach.
    pub fn on_stop_request(&self, callback: impl FnOnce() + Send + 'static) {
        let mut requests = self.lock();
        if requests.is_stop_requested {
            drop(requests);
            callback();
        } else {
            requests.on_stop_request.push(Box::new(callback));
        }
    }

    /// Sets why the handler's session is over: entities that it has asked get the reason from here.
    /// The first reason is kept.
    pub(crate) fn set_session_over(&self, why: &Arc<str>) {
        self.lock().over.get_or_insert_with(|| Arc::clone(why));
    }

    /// Why the handler's session is over, if that was set.
    pub(crate) fn over(&self) -> Option<Arc<str>> {
        self.lock().over.clone()
    }

    /// The request that kills the handler, if there was one.
    #[must_use]
    pub fn kill_request(&self) -> Option<StopRequest> {
        self.lock().kill.clone()
    }

    /// Waits for the request that kills the handler.
    pub async fn killed(&self) -> StopRequest {
        loop {
            // Registered before the check, so that no request is missed in between.
            let woken = self.0.woken.notified();
            if let Some(request) = self.kill_request() {
                return request;
            }
            woken.await;
        }
    }

    /// Calls `callback` with the request that kills the handler, or now if there was one. It is
    /// called on the thread of the caller of [`Stop::kill`], which its panic does not reach.
    pub fn on_kill(&self, callback: impl FnOnce(StopRequest) + Send + 'static) {
        let mut requests = self.lock();
        match requests.kill.clone() {
            None => requests.on_kill.push(Box::new(callback)),
            Some(request) => {
                drop(requests);
                callback(request);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        // No code between two changes of one critical section can panic.
        self.0.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.kill_request()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_request_holds_and_reaches_all_waiters() {
        let stop = Stop::default();
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.killed().await }
        });
        tokio::task::yield_now().await;
        let called = Arc::new(Mutex::new(Vec::new()));
        let note = |called: &Arc<Mutex<Vec<Cause>>>| {
            let called = Arc::clone(called);
            move |request: StopRequest| called.lock().expect("no panic").push(request.cause)
        };
        stop.on_kill(note(&called));
        stop.kill(Cause::Cancel, "enough");
        stop.kill(Cause::Shutdown, "");
        stop.on_kill(note(&called));
        let expected = StopRequest { cause: Cause::Cancel, reason: "enough".to_owned() };
        assert_eq!(waiting.await.expect("no panic"), expected);
        assert_eq!(stop.killed().await, expected);
        assert_eq!(*called.lock().expect("no panic"), [Cause::Cancel, Cause::Cancel]);
    }
}
