//! A runtime in virtual time, over a journal in memory, with handlers that follow a
//! script. Real handlers hold themselves to their deadlines; so do these.

#![allow(clippy::disallowed_methods, reason = "the script waits in virtual time")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_journal::{Journal, MemoryJournal, PAGE_MAX_ENTRIES};
use sandglass_liveness::{Replay, Spec};
use sandglass_model::{
    Answered, Ask, AskError, AskUntil, Busy, BusyScope, Cancellation, CancelledBy, Cause, Clock,
    Completion, DeadlineOwner, DeadlineReport, DispatchId, Dispatched, EntityRef, Event, Failure,
    FailureKind, HandlerDeadlineExceeded, Limit, Monotonic, Object, Outcome, Overrun, Position,
    Record, RunReport, TimeSplit, WallTime,
};
use sandglass_runtime::{
    ActorError, HandlerNow, HandlerRun, Handlers, Reserved, RunFuture, Runtime, SimClock, Snapshot,
    StopRequest,
};
use sandglass_telemetry::Telemetry;
use serde_json::json;
use tokio::sync::Notify;

/// The session of the incident, with room for a second round.
pub(crate) const SESSION: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Executing", "Waiting", "Done", "Failed", "TimedOut", "Stopped", "Abandoned"]
initial = "Idle"
terminal = ["Done", "Failed", "TimedOut", "Stopped", "Abandoned"]
allow_indefinite_states = ["Idle"]

[[state]]
name = "rounds"
type = "counter"

[[action]]
name = "ProcessToolCalls"
from = ["Idle", "Waiting"]
to = "Executing"
effect = ["trigger run_tools", "increment rounds"]

[[action]]
name = "Wait"
from = ["Executing", "Idle"]
to = "Waiting"

[[action]]
name = "Later"
from = ["Idle"]
effect = [{ type = "schedule", action = "ProcessToolCalls", delay_seconds = 86400 }]

[[action]]
name = "Touch"
from = ["Idle", "Executing", "Waiting"]

[[action]]
name = "Finish"
from = ["Executing"]
to = "Done"

[[action]]
name = "Fail"
from = ["Executing"]
to = "Failed"

[[action]]
name = "HandlerTimedOut"
from = ["Executing"]
to = "TimedOut"

[[action]]
name = "Interrupt"
from = ["Executing"]
to = "Waiting"

[[action]]
name = "Stop"
from = ["Executing"]
to = "Stopped"

[[action]]
name = "Abandon"
from = ["Executing", "Waiting"]
to = "Abandoned"

[[integration]]
name = "run_tools"
trigger = "run_tools"
module = "run_tools"
deadline = "900s"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "HandlerTimedOut"
on_interrupted = "Interrupt"
on_cancelled = "Stop"

[[state_timeout]]
state = "Executing"
after_seconds = 300
on_timeout = "Abandon"

[[state_timeout]]
state = "Waiting"
after_seconds = 300
on_timeout = "Abandon"
reset_on = ["PartnerReplied"]
"#;

/// Why a journal takes nothing whose disk is full.
pub(crate) fn disk_full() -> Option<String> {
    Some("disk full".to_owned())
}

/// The records that `seen` still publishes: up to the end of the runtime, if it has ended.
pub(crate) async fn published(seen: &mut sandglass_runtime::Subscription) -> Vec<Arc<Record>> {
    let mut records = Vec::new();
    while let Some(Some(Ok(event))) = soon(seen.next()).await {
        if let sandglass_runtime::Event::Recorded(record) = event {
            records.push(record);
        }
    }
    records
}

/// An action of the session that runs one more handler beside the first.
pub(crate) const AGAIN: &str =
    "[[action]]\nname = \"Again\"\nfrom = [\"Executing\"]\neffect = \"trigger run_tools\"\n";

/// What a handler does.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Answers after so many seconds.
    Answer(u64, Outcome),
    /// Never answers.
    Hang,
    /// Tells so many signals, one a millisecond, and answers with the last.
    Tell(usize),
    /// Tells so many signals, one a millisecond, and never answers.
    TellAndHang(usize),
    /// Panics.
    Panic,
    /// Asks that entity for that action, and then does the next.
    Ask(EntityRef, &'static str, AskUntil, Box<Act>),
    /// Takes so many seconds to end once it is stopped.
    Linger(u64),
    /// Returns as soon as a graceful stop is requested.
    HeedWhenAsked,
    /// Tells that it is alive every so many seconds, and never answers.
    TellEvery(u64, &'static str),
    /// Sets so many statuses, numbered from 0, each after so many milliseconds, and ends.
    StatusesAndAnswer { count: u64, each_ms: u64 },
    /// Sends a signal after so many seconds, and never returns.
    TellAfterAndHang(u64),
    /// Answers at once, and so many of its host calls took too long.
    SlowCalls(u64),
    /// So many of its host calls are ended by their time limit, at once, and then does the next.
    CallsTimeOut(u64, Box<Act>),
    /// Makes a host call every so many seconds, as often as stated, and then does the next.
    CallEvery(u64, u64, Box<Act>),
}

/// What each next handler does, and what was seen of them.
pub(crate) struct Script {
    acts: Mutex<Vec<Act>>,
    clock: SimClock,
    pub(crate) started: Mutex<Vec<HandlerRun>>,
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) refused_signals: AtomicUsize,
    /// What asks came to.
    pub(crate) answers: Mutex<Vec<Result<Answered, AskError>>>,
    /// How many runs there is room for.
    pub(crate) places: Arc<AtomicUsize>,
    /// Whether there is none, whatever is given back.
    pub(crate) is_full: AtomicBool,
    /// When the handlers made their last host calls.
    calls: Mutex<BTreeMap<DispatchId, Monotonic>>,
    /// Who waits for the next host call of which handler.
    waiters: Mutex<Vec<(DispatchId, Arc<Notify>)>>,
}

/// Room for one run, given back when it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn completed() -> Outcome {
    Outcome::Completed(Completion {
        action: None,
        params: Object::from([("answer".to_owned(), json!(42))]),
        result: json!({ "success": true }),
    })
}

pub(crate) fn failed() -> Outcome {
    let message = "no luck".to_owned();
    Outcome::Failed(Failure { kind: FailureKind::GuestFailure, message, result: None })
}

/// The script, as the runtime sees it.
struct Scripted(Arc<Script>);

impl Handlers for Scripted {
    fn reserve(&self, _: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        let places = &self.0.places;
        let scope = if tenant == "small" { BusyScope::Tenant } else { BusyScope::Host };
        let taken = |left: usize| left.checked_sub(1);
        let is_full = self.0.is_full.load(Ordering::SeqCst);
        if is_full || places.fetch_update(Ordering::SeqCst, Ordering::SeqCst, taken).is_err() {
            return Err(Busy { scope, limit: 0, retry_after_ms: 5 });
        }
        Ok(Reserved::of(Place(Arc::clone(places))))
    }

    fn start(&self, run: HandlerRun) -> RunFuture {
        let place: Option<Place> = run.reserved.take();
        assert!(place.is_some(), "no run without room");
        let script = Arc::clone(&self.0);
        let act = script.acts.lock().expect("no panic").pop().unwrap_or(Act::Hang);
        script.started.lock().expect("no panic").push(run.clone());
        script.running.fetch_add(1, Ordering::SeqCst);
        let running = Running(Arc::clone(&script.running));
        Box::pin(async move {
            let report = script.run(run, act).await;
            drop((running, place));
            report
        })
    }

    fn doing(&self, dispatch: DispatchId) -> Option<HandlerNow> {
        let called = *self.0.calls.lock().expect("no panic").get(&dispatch)?;
        let active = Some((self.0.clock.now().since(called), called));
        Some(HandlerNow { place: "guest".to_owned(), since: Duration::ZERO, active })
    }

    fn on_activity(&self, dispatch: DispatchId, waiter: &Arc<Notify>) {
        self.0.waiters.lock().expect("no panic").push((dispatch, Arc::clone(waiter)));
    }
}

impl Script {
    /// The handler makes a host call now.
    fn call(&self, run: &HandlerRun) {
        let dispatch = run.dispatched.dispatch;
        self.calls.lock().expect("no panic").insert(dispatch, self.clock.now());
        let mut waiters = self.waiters.lock().expect("no panic");
        waiters.retain(|(of, waiter)| {
            if *of == dispatch {
                waiter.notify_one();
            }
            *of != dispatch
        });
    }

    /// Runs one handler inside its budget, as a host would.
    async fn run(&self, run: HandlerRun, act: Act) -> RunReport {
        let begun = self.clock.now();
        let own = begun.after(run.budget);
        let (ends_at, owner) = match run.not_after {
            Some(parent) if parent < own => (parent, DeadlineOwner::Parent),
            _ => (own, DeadlineOwner::Handler),
        };
        let budget = ends_at.since(begun);
        let at_deadline = match owner {
            DeadlineOwner::Handler => Cause::Deadline,
            DeadlineOwner::Parent => Cause::ParentDeadline,
        };
        let budget_ms = u64::try_from(budget.as_millis()).expect("short");
        let overruns = match &act {
            Act::SlowCalls(times) | Act::CallsTimeOut(times, _) => slow_calls(*times),
            _ => Vec::new(),
        };
        let linger = if let Act::Linger(seconds) = act { seconds } else { 0 };
        let (outcome, cause) = tokio::select! {
            biased;
            outcome = self.perform(&run, ends_at, act) => (outcome, Cause::Returned),
            request = run.stop.killed() => {
                tokio::time::sleep(Duration::from_secs(linger)).await;
                (cancelled(&request), request.cause)
            }
            () = tokio::time::sleep(budget) => (Outcome::Interrupted, at_deadline),
        };
        let elapsed = self.clock.now().since(begun);
        let elapsed_ms = u64::try_from(elapsed.as_millis()).expect("short");
        let (outcome, elapsed_ms) = match cause {
            Cause::Deadline | Cause::ParentDeadline => {
                (exceeded(&run, owner, budget_ms, elapsed_ms + 1), elapsed_ms + 1)
            }
            _ => (outcome, elapsed_ms),
        };
        let (dispatch, trace) = (run.dispatched.dispatch, run.dispatched.trace);
        RunReport {
            started_at: Some(self.clock.wall()),
            deadline: DeadlineReport { budget_ms, elapsed_ms, overrun_us: 0, owner },
            overruns,
            ..RunReport::new(dispatch, trace, outcome, cause)
        }
    }

    async fn perform(&self, run: &HandlerRun, not_after: Monotonic, act: Act) -> Outcome {
        match act {
            Act::Answer(seconds, outcome) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                outcome
            }
            Act::Hang | Act::Linger(_) => std::future::pending().await,
            Act::Panic => panic!("the script says so"),
            Act::Ask(target, action, until, then) => {
                let (action, params) = (action.to_owned(), Object::new());
                let asked = self.answers.lock().expect("no panic").len();
                let nth = 1_000 + u32::try_from(asked).expect("few");
                let trace = run.dispatched.trace.of_dispatch(run.dispatched.dispatch, nth);
                let ask = Ask { target, action, params, until, not_after, trace };
                let answer = run.asks.clone().ask(ask).await;
                self.answers.lock().expect("no panic").push(answer);
                Box::pin(self.perform(run, not_after, *then)).await
            }
            Act::SlowCalls(_) => completed(),
            Act::CallsTimeOut(times, then) => {
                for _ in 0..times {
                    time_out_a_call(run, self.clock.wall());
                }
                Box::pin(self.perform(run, not_after, *then)).await
            }
            Act::CallEvery(seconds, times, then) => {
                for _ in 0..times {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    self.call(run);
                }
                Box::pin(self.perform(run, not_after, *then)).await
            }
            Act::HeedWhenAsked => {
                let (asked, heard) = tokio::sync::oneshot::channel::<()>();
                run.stop.on_stop_request(move || drop(asked));
                let _ = heard.await;
                completed()
            }
            Act::TellEvery(seconds, name) => loop {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                let _ = run.signals.send(name, json!(null));
            },
            Act::StatusesAndAnswer { count, each_ms } => {
                for number in 0..count {
                    tokio::time::sleep(Duration::from_millis(each_ms)).await;
                    let _ = run.signals.send("status", json!(number));
                }
                completed()
            }
            Act::TellAfterAndHang(seconds) => {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                self.tell(run, 1).await;
                std::future::pending().await
            }
            Act::Tell(many) => {
                self.tell(run, many).await;
                completed()
            }
            Act::TellAndHang(many) => {
                self.tell(run, many).await;
                std::future::pending().await
            }
        }
    }

    async fn tell(&self, run: &HandlerRun, many: usize) {
        for number in 0..many {
            tokio::time::sleep(Duration::from_millis(1)).await;
            if !run.signals.send("progress", json!(number)) {
                self.refused_signals.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

/// A host call of `run` is ended by its time limit now.
pub(crate) fn time_out_a_call(run: &HandlerRun, now: WallTime) {
    let (allowed, took) = (Duration::from_secs(1), Duration::from_secs(2));
    run.signals.call_timed_out("host_http_call", allowed, took, now);
}

fn slow_calls(times: u64) -> Vec<Overrun> {
    let (allowed, took) = (Duration::from_secs(1), Duration::from_secs(2));
    let once = Overrun::once(Limit::HostCallTimeout, allowed, took);
    vec![Overrun { times, host_call: Some("host_http_call".into()), ..once }]
}

fn cancelled(request: &StopRequest) -> Outcome {
    let by = CancelledBy::of(request.cause);
    let reason = request.reason.clone();
    Outcome::Cancelled(Cancellation { by, reason, dying_span: None })
}

fn exceeded(run: &HandlerRun, owner: DeadlineOwner, budget_ms: u64, elapsed_ms: u64) -> Outcome {
    Outcome::TimedOut(Box::new(HandlerDeadlineExceeded {
        integration: run.dispatched.integration.clone(),
        entity_type: run.entity.entity_type().to_owned(),
        entity_id: run.entity.id().to_owned(),
        action: run.dispatched.action.clone(),
        attempt: run.dispatched.attempt,
        budget_ms,
        elapsed_ms,
        overrun_us: 1_000,
        owner,
        dying_span: "host_http_call".to_owned(),
        dying_call: None,
        backtrace: Vec::new(),
        host_calls: 1,
        time_split_us: TimeSplit::default(),
        trace_id: run.dispatched.trace.trace_id,
    }))
}

/// Stands between the specs of several types.
const NEXT_TYPE: &str = "\n# the next type\n";

/// A runtime, its journal and its script.
pub(crate) struct World {
    pub(crate) journal: Arc<MemoryJournal>,
    pub(crate) script: Arc<Script>,
    pub(crate) clock: SimClock,
    pub(crate) runtime: Runtime,
    source: String,
}

pub(crate) fn one() -> EntityRef {
    "Session/one".parse().expect("a valid name")
}

pub(crate) fn two() -> EntityRef {
    "Session/two".parse().expect("a valid name")
}

impl World {
    /// With one session, whose handlers do `acts` in this order, and then hang.
    pub(crate) async fn of(acts: &[Act]) -> Self {
        Self::with(SESSION, acts).await
    }

    /// With entities of several types, and one session.
    pub(crate) async fn of_types(sources: &[&str], acts: &[Act]) -> Self {
        Self::with(&sources.join(NEXT_TYPE), acts).await
    }

    pub(crate) async fn with(source: &str, acts: &[Act]) -> Self {
        Self::reporting(source, acts, Telemetry::disabled()).await
    }

    pub(crate) async fn reporting(source: &str, acts: &[Act], telemetry: Telemetry) -> Self {
        let clock = SimClock::starting_at(WallTime::from_millis(1_700_000_000_000));
        let script = Arc::new(Script {
            acts: Mutex::new(acts.iter().rev().cloned().collect()),
            clock,
            started: Mutex::new(Vec::new()),
            running: Arc::new(AtomicUsize::new(0)),
            refused_signals: AtomicUsize::new(0),
            answers: Mutex::new(Vec::new()),
            places: Arc::new(AtomicUsize::new(1_000)),
            is_full: AtomicBool::new(false),
            calls: Mutex::default(),
            waiters: Mutex::default(),
        });
        let journal = Arc::new(MemoryJournal::new());
        let runtime = build(source, &journal, &script, clock, telemetry).await;
        let world = Self { journal, script, clock, runtime, source: source.to_owned() };
        world.runtime.create(one()).await.expect("a new entity");
        world
    }

    /// Drops the runtime in mid-run, lets `seconds` pass, and starts another one.
    pub(crate) async fn restart_after(self, seconds: u64) -> Self {
        self.restart_reporting(seconds, Telemetry::disabled()).await
    }

    /// The same, with what it reports afterwards.
    pub(crate) async fn restart_reporting(mut self, seconds: u64, telemetry: Telemetry) -> Self {
        let last = self.journal.last().await;
        // In its place for a moment: a runtime of nothing.
        let nothing = Runtime::builder(Arc::new(MemoryJournal::new())).build().await;
        self.runtime = nothing.expect("nothing to recover");
        pass(seconds).await;
        assert_eq!(self.script.running.load(Ordering::SeqCst), 0, "its handlers are dropped");
        assert_eq!(self.journal.last().await, last, "a dropped runtime writes no more");
        let (source, journal, script) = (&self.source, &self.journal, &self.script);
        let runtime = build(source, journal, script, self.clock, telemetry).await;
        self.runtime = runtime;
        self
    }

    /// Starts another runtime over the same journal, as if this one were in a process that was paused.
    pub(crate) async fn start_another(&self) -> Runtime {
        let Self { source, journal, script, clock, .. } = self;
        build(source, journal, script, *clock, Telemetry::disabled()).await
    }

    pub(crate) async fn send(&self, action: &str) -> Result<(), ActorError> {
        self.runtime.send(&one(), action, Object::new()).await.map(|_| ())
    }

    pub(crate) async fn state(&self) -> String {
        self.now().await.state.clone()
    }

    pub(crate) async fn now(&self) -> Arc<Snapshot> {
        self.runtime.entity(&one()).await.expect("it was created")
    }

    /// Lets time pass until the session is in `state`, and answers how many seconds.
    pub(crate) async fn until(&self, state: &str) -> u64 {
        let begun = self.clock.now();
        let name = one();
        let there = self.runtime.wait_until(&name, |snapshot| snapshot.state == state);
        let late = Duration::from_secs(40 * 86_400);
        let found = tokio::time::timeout(late, there).await;
        let Ok(found) = found else { panic!("{}, not {state}", self.state().await) };
        found.expect("it lives");
        self.clock.now().since(begun).as_secs()
    }

    pub(crate) async fn records(&self) -> Vec<Record> {
        let (mut records, mut next) = (Vec::new(), Some(Position(0)));
        while let Some(from) = next {
            let page = self.journal.read(from, PAGE_MAX_ENTRIES).await.expect("readable");
            next = page.next;
            records.extend(page.into_records().expect("whole"));
        }
        records
    }

    pub(crate) async fn kinds(&self) -> Vec<&'static str> {
        self.records().await.iter().map(|record| record.event.kind()).collect()
    }

    pub(crate) async fn actions(&self) -> Vec<String> {
        let action = |record: Record| match record.event {
            Event::Transition { action, .. } => Some(action),
            _ => None,
        };
        self.records().await.into_iter().filter_map(action).collect()
    }

    /// Every journal that a test leaves replays.
    pub(crate) async fn replays(&self) {
        let mut replay = Replay::new();
        for record in self.records().await {
            replay.feed(&record);
        }
        let summary = replay.finish();
        assert_eq!(summary.divergence_count, 0, "{:#?}", summary.divergences);
    }
}

async fn build(
    source: &str,
    journal: &Arc<MemoryJournal>,
    script: &Arc<Script>,
    clock: SimClock,
    telemetry: Telemetry,
) -> Runtime {
    let specs = source.split(NEXT_TYPE).map(|source| {
        let parsed = Spec::parse(source);
        parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics))
    });
    let journal: Arc<dyn Journal> = Arc::clone(journal) as _;
    // They sleep whenever they can, so that each test is one of sleep and waking, too.
    let builder = Runtime::builder(journal).clock(Arc::new(clock)).linger(Duration::ZERO);
    let builder = builder.telemetry(telemetry);
    let builder = builder.handlers(Arc::new(Scripted(Arc::clone(script)))).specs(specs);
    builder.build().await.expect("a sound journal")
}

/// Lets so many seconds of virtual time pass.
pub(crate) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// What comes of `future` without time passing.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(Duration::from_millis(1), future).await.ok()
}

/// Lets so many milliseconds of virtual time pass.
pub(crate) async fn pass_ms(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

/// Lets everything happen that can happen without time passing.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) fn counts(script: &Script) -> BTreeMap<&'static str, usize> {
    let started = script.started.lock().expect("no panic").len();
    BTreeMap::from([("started", started), ("running", script.running.load(Ordering::SeqCst))])
}
