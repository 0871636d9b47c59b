//! What the runtime needs of whatever runs handlers, and what it hands them. A
//! WASM host is one such thing; a test's script is another.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_model::{
    Busy, Cancellation, CancelledBy, Cause, DeadlineReport, DispatchId, Dispatched, EntityRef,
    Frame, HostCalls, ModuleHash, Monotonic, Outcome, Recovery, Rejection, RunReport, TimeSplit,
    TraceContext,
};
use tokio::sync::Notify;

use crate::asking::Asking;
use crate::caught::caught;
use crate::signals::Signals;

/// The run of one handler, until it has ended and nothing of it is left.
pub type RunFuture = Pin<Box<dyn Future<Output = RunReport> + Send>>;

/// The frames of a run, with what is known of them.
pub type FramesFuture = Pin<Box<dyn Future<Output = Vec<Frame>> + Send>>;

/// Runs handlers. It holds each to its deadline; the runtime has no timer of its
/// own for them, and waits for the report.
pub trait Handlers: Send + Sync + 'static {
    /// Starts a run. The future is polled on a task of its own; where it is dropped,
    /// nobody waits any more, and the run should end.
    fn start(&self, run: HandlerRun) -> RunFuture;

    /// Keeps room for a run of `dispatched` on behalf of `tenant`, before anything is
    /// recorded of it. What is answered is handed back in [`HandlerRun::reserved`], or
    /// dropped where there will be no run.
    ///
    /// # Errors
    /// There is no room.
    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        let _ = (dispatched, tenant);
        Ok(Reserved::default())
    }

    /// What the run of `dispatch` is doing: the host function that it is in, or where else
    /// it is, and for how long; none where nobody knows.
    fn doing(&self, dispatch: DispatchId) -> Option<(String, Duration)> {
        let _ = dispatch;
        None
    }

    /// Resolves frames of a run of `module` that were recorded as offsets, for showing them.
    fn resolve_frames(&self, module: ModuleHash, frames: Vec<Frame>) -> FramesFuture {
        let _ = module;
        Box::pin(std::future::ready(frames))
    }

    /// The hash of the module that an integration names, where it is known before
    /// the run. Asked where [`Handlers::reserve`] kept no room for a version of it.
    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        let _ = module;
        None
    }
}

/// All that a run is given.
#[derive(Clone, Debug)]
pub struct HandlerRun {
    /// The entity.
    pub entity: EntityRef,
    /// What was asked for: integration, module, action, state, variables, budget.
    pub dispatched: Dispatched,
    /// On whose behalf the entity lives.
    pub tenant: String,
    /// The longest wait for its start: after it the run is rejected.
    pub schedule_to_start: Duration,
    /// The room that was kept for it.
    pub reserved: Reserved,
    /// How long a host call of it may take, where its spec says so; and the same for calls
    /// of some functions.
    pub host_calls: HostCallLimits,
    /// What went wrong in the run of its session before this one, where there was one.
    pub recovery: Option<Arc<Recovery>>,
    /// Its own budget: at least that of `dispatched`, which is what its asker had left
    /// where that was less.
    pub budget: Duration,
    /// The deadline of the handler that asked for it, if one did, on the runtime's
    /// clock: its own is never later.
    pub not_after: Option<Monotonic>,
    /// Takes what it asks of other entities, on the runtime's clock.
    pub asks: Asking,
    /// The span of the transition that asked for it.
    pub parent: Option<TraceContext>,
    /// Says when the run has to end.
    pub stop: Stop,
    /// Where it tells of its progress.
    pub signals: Signals,
}

/// How long host calls may take, as a spec says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostCallLimits {
    /// Any of them, where it says so.
    pub all: Option<Duration>,
    /// Those of some functions.
    pub of: BTreeMap<String, Duration>,
}

/// Room that was kept for one run: whatever a [`Handlers`] makes of that. It is
/// given back when it is dropped. Clones share it.
#[derive(Clone, Default)]
pub struct Reserved {
    room: Option<Arc<Mutex<Kept>>>,
    module_hash: Option<ModuleHash>,
}

type Kept = Option<Box<dyn Any + Send>>;

impl Reserved {
    /// Keeps `room`.
    #[must_use]
    pub fn of(room: impl Any + Send) -> Self {
        Self { room: Some(Arc::new(Mutex::new(Some(Box::new(room))))), module_hash: None }
    }

    /// The same, for this version of the run's module: that is what its record names.
    #[must_use]
    pub fn for_module(self, hash: ModuleHash) -> Self {
        Self { module_hash: Some(hash), ..self }
    }

    /// The version of the run's module that it is for, where it is for one.
    #[must_use]
    pub const fn module_hash(&self) -> Option<ModuleHash> {
        self.module_hash
    }

    /// Takes out what is kept; none where nothing of this type is.
    #[must_use = "room that isn't used is given back"]
    pub fn take<T: Any>(&self) -> Option<T> {
        let mut kept = self.room.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let room = kept.take()?.downcast::<T>();
        match room {
            Ok(room) => Some(*room),
            Err(other) => {
                *kept = Some(other);
                None
            }
        }
    }
}

impl fmt::Debug for Reserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.room.is_some() { "Reserved(room)" } else { "Reserved(nothing)" })
    }
}

/// The report of a handler that could not be run.
#[must_use]
pub fn not_run(dispatched: &Dispatched, rejection: Rejection) -> RunReport {
    unreported(dispatched, Outcome::Rejected(rejection), Cause::NotStarted)
}

/// What becomes of a run that is asked to end before anything of it began.
pub(crate) fn stopped(request: StopRequest) -> (Outcome, Cause) {
    let by = CancelledBy::of(request.cause);
    let cancellation = Cancellation { by, reason: request.reason, dying_span: None };
    (Outcome::Cancelled(cancellation), request.cause)
}

/// The report of a run that was lost in the middle, through a fault of whatever ran
/// it. Its effects may have landed, as with one whose host has crashed.
pub(crate) fn lost(dispatched: &Dispatched) -> RunReport {
    unreported(dispatched, Outcome::Interrupted, Cause::HostLost)
}

/// The report of a run of which nothing is known but its end: of a handler that is no guest,
/// say.
#[must_use]
pub fn unreported(dispatched: &Dispatched, outcome: Outcome, cause: Cause) -> RunReport {
    RunReport {
        dispatch_id: dispatched.dispatch,
        trace: dispatched.trace,
        module: dispatched.module_hash,
        allocation: None,
        outcome,
        cause,
        started_at: None,
        deadline: DeadlineReport {
            budget_ms: dispatched.budget_ms,
            owner: dispatched.owner,
            ..DeadlineReport::default()
        },
        dying_span: None,
        ended_at: None,
        backtrace: Vec::new(),
        host_calls: HostCalls::default(),
        overruns: Vec::new(),
        story: sandglass_model::Story::default(),
        time_split_us: TimeSplit::default(),
        wall_us: 0,
        cpu_us: 0,
        peak_memory_bytes: 0,
        peak_host_memory_bytes: 0,
        telemetry_dropped: None,
        recording: None,
    }
}

/// Why a run has to end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// What ends it.
    pub cause: Cause,
    /// The reason that was given; may be empty.
    pub reason: String,
}

/// Says when a run has to end, and before that, that it should. The first request holds.
#[derive(Clone, Default)]
pub struct Stop(Arc<StopState>);

#[derive(Default)]
struct StopState {
    asked: Mutex<Asked>,
    woken: Notify,
}

#[derive(Default)]
struct Asked {
    is_asked: bool,
    asking: Vec<Box<dyn FnOnce() + Send>>,
    request: Option<StopRequest>,
    /// Why the session is over that the run belongs to, where it is by a stop.
    over: Option<Arc<str>>,
    callbacks: Vec<Box<dyn FnOnce(StopRequest) + Send>>,
}

impl Stop {
    /// Asks the run to end; a second request is too late.
    pub fn request(&self, cause: Cause, reason: impl Into<String>) {
        let request = StopRequest { cause, reason: reason.into() };
        let callbacks = {
            let mut asked = self.lock();
            if asked.request.is_some() {
                return;
            }
            asked.request = Some(request.clone());
            std::mem::take(&mut asked.callbacks)
        };
        self.0.woken.notify_waiters();
        for callback in callbacks {
            // Whoever asks is no part of what the run does about it.
            if caught(|| callback(request.clone())).is_none() {
                tracing::error!(cause = ?request.cause, "a callback of a stop request panicked");
            }
        }
    }

    /// Asks the run to end by itself while there is time.
    pub fn ask(&self) {
        let asking = {
            let mut asked = self.lock();
            asked.is_asked = true;
            std::mem::take(&mut asked.asking)
        };
        self.0.woken.notify_waiters();
        for callback in asking {
            if caught(callback).is_none() {
                tracing::error!("a callback that asks a run to end panicked");
            }
        }
    }

    /// Whether the run was asked to end by itself.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.lock().is_asked
    }

    /// Calls `callback` when the run is asked to end by itself, at once where it was; on
    /// the thread of whoever asks, which its panic doesn't reach.
    pub fn on_ask(&self, callback: impl FnOnce() + Send + 'static) {
        let mut asked = self.lock();
        if asked.is_asked {
            drop(asked);
            callback();
        } else {
            asked.asking.push(Box::new(callback));
        }
    }

    /// Notes that the session is over that the run belongs to, and why: what it has asked
    /// others for is to know that. The first holds.
    pub(crate) fn session_is_over(&self, why: &Arc<str>) {
        self.lock().over.get_or_insert_with(|| Arc::clone(why));
    }

    /// Why the session is over that the run belongs to, where that was noted.
    pub(crate) fn over(&self) -> Option<Arc<str>> {
        self.lock().over.clone()
    }

    /// The request, if there was one.
    #[must_use]
    pub fn requested(&self) -> Option<StopRequest> {
        self.lock().request.clone()
    }

    /// Waits for the request.
    pub async fn wait(&self) -> StopRequest {
        loop {
            // Registered before the look, so that no request falls between.
            let woken = self.0.woken.notified();
            if let Some(request) = self.requested() {
                return request;
            }
            woken.await;
        }
    }

    /// Calls `callback` with the request, at once where there was one; on the
    /// thread of whoever requests, which its panic doesn't reach.
    pub fn on_request(&self, callback: impl FnOnce(StopRequest) + Send + 'static) {
        let mut asked = self.lock();
        match asked.request.clone() {
            None => asked.callbacks.push(Box::new(callback)),
            Some(request) => {
                drop(asked);
                callback(request);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        // Each change is made whole before anything can panic.
        self.0.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stop").field(&self.requested()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_request_holds_and_reaches_everybody() {
        let stop = Stop::default();
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.wait().await }
        });
        tokio::task::yield_now().await;
        let called = Arc::new(Mutex::new(Vec::new()));
        let note = |called: &Arc<Mutex<Vec<Cause>>>| {
            let called = Arc::clone(called);
            move |request: StopRequest| called.lock().expect("no panic").push(request.cause)
        };
        stop.on_request(note(&called));
        stop.request(Cause::Cancel, "enough");
        stop.request(Cause::Shutdown, "");
        stop.on_request(note(&called));
        let expected = StopRequest { cause: Cause::Cancel, reason: "enough".to_owned() };
        assert_eq!(waiting.await.expect("no panic"), expected);
        assert_eq!(stop.wait().await, expected);
        assert_eq!(*called.lock().expect("no panic"), [Cause::Cancel, Cause::Cancel]);
    }
}
