//! Panics of the embedder's code: they end what they are part of, and nothing else.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use sandglass_journal::MemoryJournal;
use sandglass_liveness::Spec;
use sandglass_model::{
    Busy, Clock, Dispatched, ModuleHash, Monotonic, Object, Outcome, Rejection, RejectionKind,
    RunReport, WallTime,
};
use sandglass_runtime::{
    ActorError, HandlerRun, Handlers, Reserved, RunFuture, Runtime, SimClock, not_run,
};

use crate::world::{SESSION, one, pass, settle, soon};

/// Handlers, and a clock, that panic at a given place.
#[derive(Debug, Default)]
struct Faults {
    reserve: AtomicBool,
    module_hash: AtomicBool,
    /// The callback of a stop request.
    callback: AtomicBool,
    /// The drop of a run that has ended.
    drop: AtomicBool,
    /// The next look at the wall clock.
    wall: AtomicBool,
}

struct Faulty(Arc<Faults>);

impl Handlers for Faulty {
    fn reserve(&self, _: &Dispatched, _: &str) -> Result<Reserved, Busy> {
        assert!(!self.0.reserve.load(Ordering::SeqCst), "no room, and no manners");
        Ok(Reserved::default())
    }

    fn module_hash(&self, _: &str) -> Option<ModuleHash> {
        assert!(!self.0.module_hash.load(Ordering::SeqCst), "a poisoned table");
        None
    }

    fn start(&self, run: HandlerRun) -> RunFuture {
        if self.0.callback.load(Ordering::SeqCst) {
            run.stop.on_kill(|_| panic!("a receiver that is gone"));
        }
        let rejection = Rejection { kind: RejectionKind::HostUnavailable, message: String::new() };
        let report = not_run(&run.dispatched, rejection);
        if self.0.drop.load(Ordering::SeqCst) {
            return Box::pin(PanicsWhenDropped(Some(report)));
        }
        Box::pin(async move {
            run.stop.killed().await;
            report
        })
    }
}

struct PanicsWhenDropped(Option<RunReport>);

impl Future for PanicsWhenDropped {
    type Output = RunReport;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<RunReport> {
        Poll::Ready(self.0.take().expect("polled once"))
    }
}

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("a lock that was poisoned");
    }
}

#[derive(Debug)]
struct FaultyClock(SimClock, Arc<Faults>);

impl Clock for FaultyClock {
    fn now(&self) -> Monotonic {
        self.0.now()
    }

    fn wall(&self) -> WallTime {
        assert!(!self.1.wall.swap(false, Ordering::SeqCst), "the clock is out of order");
        self.0.wall()
    }
}

/// A runtime with one session, and its faults.
async fn faulty() -> (Runtime, Arc<Faults>) {
    let faults = Arc::new(Faults::default());
    let clock = SimClock::starting_at(WallTime::from_millis(1_700_000_000_000));
    let builder = Runtime::builder(Arc::new(MemoryJournal::new()))
        .clock(Arc::new(FaultyClock(clock, Arc::clone(&faults))))
        .handlers(Arc::new(Faulty(Arc::clone(&faults))))
        .specs(Spec::parse(SESSION).spec);
    let runtime = builder.build().await.expect("an empty journal");
    runtime.create(one()).await.expect("a new entity");
    (runtime, faults)
}

async fn state(runtime: &Runtime) -> String {
    runtime.entity(&one()).await.expect("it can be reached").state.clone()
}

#[tokio::test(start_paused = true)]
async fn keeping_room_that_panics_is_no_room() {
    let (runtime, faults) = faulty().await;
    faults.reserve.store(true, Ordering::SeqCst);
    let refused = runtime.send(&one(), "ProcessToolCalls", Object::new()).await;
    assert!(matches!(refused, Err(ActorError::Busy { .. })), "{refused:?}");
    faults.reserve.store(false, Ordering::SeqCst);
    runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    assert_eq!(state(&runtime).await, "Executing");
}

#[tokio::test(start_paused = true)]
async fn a_module_whose_hash_panics_has_none() {
    let (runtime, faults) = faulty().await;
    faults.module_hash.store(true, Ordering::SeqCst);
    runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    assert_eq!(state(&runtime).await, "Executing");
}

#[tokio::test(start_paused = true)]
async fn a_callback_that_panics_stops_the_run_and_not_the_entity() {
    let (runtime, faults) = faulty().await;
    faults.callback.store(true, Ordering::SeqCst);
    runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    settle().await;
    // Leaving the state stops the handler, on the entity's own task.
    runtime.send(&one(), "Abandon", Object::new()).await.expect("taken");
    let settled = soon(runtime.settled(&one())).await.expect("the run has ended");
    assert_eq!(settled.expect("it can be reached").state, "Abandoned");
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_task_is_lost_ends_as_interrupted() {
    let (runtime, faults) = faulty().await;
    faults.drop.store(true, Ordering::SeqCst);
    let accepted = runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    let outcome = soon(runtime.outcome(&one(), accepted.dispatches[0])).await;
    assert_eq!(outcome.expect("it has settled"), Ok(Outcome::Interrupted));
    assert_eq!(state(&runtime).await, "Waiting", "as on_interrupted says");
    let stopped = runtime.cancel(&one(), None, "").await.expect("there is such an entity");
    assert_eq!(stopped, 0, "nothing is in flight");
}

#[tokio::test(start_paused = true)]
async fn an_entity_whose_task_is_lost_is_woken_by_the_next_request() {
    let (runtime, faults) = faulty().await;
    let accepted = runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    faults.wall.store(true, Ordering::SeqCst);
    let lost = runtime.send(&one(), "Touch", Object::new()).await;
    assert_eq!(lost.err(), Some(ActorError::Closed));
    settle().await;
    runtime.send(&one(), "Touch", Object::new()).await.expect("it is back");
    assert_eq!(state(&runtime).await, "Waiting", "what was in flight is interrupted");
    let outcome = runtime.outcome(&one(), accepted.dispatches[0]).await;
    assert_eq!(outcome, Ok(Outcome::Interrupted));
}

#[tokio::test(start_paused = true)]
async fn an_entity_whose_task_is_lost_comes_back_by_itself() {
    let (runtime, faults) = faulty().await;
    runtime.send(&one(), "Wait", Object::new()).await.expect("taken");
    faults.wall.store(true, Ordering::SeqCst);
    let _lost = runtime.send(&one(), "Touch", Object::new()).await;
    let mut events = runtime.subscribe();
    pass(400).await;
    // No caller asks it before this.
    assert!(soon(events.next()).await.is_some(), "its state's timer rang");
    assert_eq!(state(&runtime).await, "Abandoned");
}
