//! Hosts that share a store, whose journals refuse appends of all but their owners.

#![allow(clippy::disallowed_methods, reason = "handlers take virtual time")]

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_journal::{
    Answer, Around, Batch, Error, Journal, Journals, MemoryJournal, Pending, Positions, Resting,
};
use sandglass_liveness::Spec;
use sandglass_model::{
    Answered, Ask, AskError, AskUntil, Cancellation, CancelledBy, Cause, Clock, Completion,
    EntityRef, EntitySignal, Event, Object, Outcome, Partition, RunReport, SignalError, WallTime,
};
use sandglass_runtime::{
    ActorError, BuildError, HandlerRun, Handlers, RunFuture, Runtime, SimClock, Snapshot,
};
use serde_json::{Value, json};

use crate::partitions::records;

/// A job that counts, works, waits, and spawns others.
pub(super) const JOB: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Working", "Waiting", "WaitingLong", "Rung", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Rung"]

[[state]]
name = "count"
type = "counter"

[[action]]
name = "Count"
from = ["Idle", "Working", "Waiting", "WaitingLong", "Rung"]
effect = "increment count"

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
params = ["seconds", "ask", "action", "until", "budget", "then", "signal"]
effect = "trigger work"

[[action]]
name = "Worked"
from = ["Working"]
to = "Idle"

[[action]]
name = "Interrupted"
from = ["Working"]
to = "Idle"

[[action]]
name = "Split"
from = ["Idle"]
params = ["id"]
effect = { type = "spawn", entity_type = "Job", entity_id_source = "id", initial_action = "Count" }

[[action]]
name = "Wait"
from = ["Idle"]
to = "Waiting"

[[action]]
name = "WaitLong"
from = ["Idle"]
to = "WaitingLong"

[[action]]
name = "Ring"
from = ["Waiting", "WaitingLong"]
to = "Rung"

[[action]]
name = "End"
from = ["Idle"]
to = "Done"

[[integration]]
name = "work"
trigger = "work"
module = "work"
deadline = "2h"
on_success = "Worked"
on_failure = "Worked"
on_timeout = "Worked"
on_interrupted = "Interrupted"
on_cancelled = "Interrupted"

[[state_timeout]]
state = "Waiting"
after_seconds = 60
on_timeout = "Ring"

[[state_timeout]]
state = "WaitingLong"
after_seconds = 3600
on_timeout = "Ring"
"#;

pub(super) fn spec(source: &str) -> Spec {
    Spec::parse(source).spec.expect("sound")
}

/// A job of the partition, whose name contains `name`.
pub(super) fn job_in(partition: Partition, name: &str) -> EntityRef {
    let names = (0..).map(|number| format!("Job/{name}-{number}"));
    let mut names = names.map(|name| name.parse::<EntityRef>().expect("a valid name"));
    names.find(|name| Partition::of(name) == partition).expect("there are more names")
}

pub(super) fn params(name: &str, value: impl Into<Value>) -> Object {
    Object::from([(name.to_owned(), value.into())])
}

pub(super) fn elsewhere<T>(entity: &EntityRef) -> Result<T, ActorError> {
    Err(ActorError::Elsewhere(entity.clone()))
}

/// The journals that the hosts share, and their owners.
pub(super) struct Store {
    pub(super) journals: Vec<Arc<MemoryJournal>>,
    owners: Vec<Arc<AtomicU8>>,
    clock: SimClock,
}

impl Store {
    pub(super) fn new() -> Self {
        let journals = Partition::all().map(|_| Arc::new(MemoryJournal::new())).collect();
        let owners = Partition::all().map(|_| Arc::default()).collect();
        let clock = SimClock::starting_at(WallTime::from_millis(1_700_000_000_000));
        Self { journals, owners, clock }
    }

    /// From now on, only `host` appends.
    pub(super) fn give(&self, partition: Partition, host: u8) {
        self.owners[partition.index()].store(host, Ordering::SeqCst);
    }

    pub(super) fn is_owner(&self, partition: Partition, host: u8) -> bool {
        self.owners[partition.index()].load(Ordering::SeqCst) == host
    }

    /// The actions of a job, with their times.
    pub(super) async fn transitions(&self, job: &EntityRef) -> Vec<(String, i64)> {
        let records = records(&self.journals[Partition::of(job).index()]).await;
        let of_job = records.into_iter().filter(|record| record.entity.as_ref() == Some(job));
        of_job
            .filter_map(|record| match record.event {
                Event::Transition { action, .. } => Some((action, record.at.as_millis())),
                _ => None,
            })
            .collect()
    }
}

/// A journal as one host sees it.
#[derive(Debug)]
struct Owned {
    journal: Arc<MemoryJournal>,
    owner: Arc<AtomicU8>,
    host: u8,
}

impl Owned {
    fn check(&self) -> Result<(), Error> {
        if self.owner.load(Ordering::SeqCst) == self.host {
            return Ok(());
        }
        Err(Error::Disowned { what: "another host has it".to_owned() })
    }
}

impl Around for Owned {
    fn inner(&self) -> &dyn Journal {
        &*self.journal
    }

    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        Box::pin(async move {
            self.check()?;
            self.journal.append(batch).await
        })
    }

    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        Box::pin(async move {
            self.check()?;
            self.journal.rest(entities).await
        })
    }

    /// Other hosts go on with it.
    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async {})
    }
}

/// What was seen of the handlers of a host.
#[derive(Debug, Default)]
pub(super) struct Seen {
    killed: Mutex<Vec<Cause>>,
    recoveries: Mutex<Vec<bool>>,
    answers: Mutex<Vec<Result<Answered, AskError>>>,
    signals: Mutex<Vec<Result<(), SignalError>>>,
}

/// One host.
pub(super) struct Host {
    pub(super) runtime: Runtime,
    pub(super) id: u8,
    owners: Vec<Arc<AtomicU8>>,
    seen: Arc<Seen>,
    clock: SimClock,
}

impl Host {
    /// A host that serves nothing yet.
    pub(super) async fn start(store: &Store, id: u8) -> Self {
        Self::of(store, id, 0, JOB).await
    }

    /// The same, with jobs that obey `source` and a clock that is ahead by `ahead_ms`.
    pub(super) async fn of(store: &Store, id: u8, ahead_ms: i64, source: &str) -> Self {
        let wall = store.clock.wall().as_millis() + ahead_ms;
        let clock = SimClock::starting_at(WallTime::from_millis(wall));
        let seen = Arc::new(Seen::default());
        let journals = Journals::partitioned(|partition| {
            let (journal, owner) =
                (&store.journals[partition.index()], &store.owners[partition.index()]);
            Arc::new(Owned { journal: Arc::clone(journal), owner: Arc::clone(owner), host: id })
        });
        let builder = Runtime::builder_over(journals).without_partitions();
        let builder = builder.clock(Arc::new(clock)).specs([spec(source)]);
        let builder = builder.handlers(Arc::new(Work { seen: Arc::clone(&seen), clock }));
        let runtime = builder.build().await.expect("nothing to read");
        Self { runtime, id, owners: store.owners.clone(), seen, clock }
    }

    /// Becomes the owner of a partition, and serves it.
    pub(super) async fn adopt(&self, partition: Partition) {
        self.owners[partition.index()].store(self.id, Ordering::SeqCst);
        self.runtime.adopt(partition).await.expect("a sound journal");
    }

    /// The same, unless another host takes it meanwhile.
    pub(super) async fn adopt_if_possible(&self, partition: Partition) {
        let before = self.owners[partition.index()].swap(self.id, Ordering::SeqCst);
        if before != self.id {
            // It may not have noticed that another host had it.
            self.runtime.lose(partition);
        }
        if let Err(error) = self.runtime.adopt(partition).await {
            assert_eq!(error, BuildError::Lost(partition));
        }
    }

    /// The causes of the handlers that were killed.
    pub(super) fn killed(&self) -> Vec<Cause> {
        self.seen.killed.lock().expect("no panic").clone()
    }

    /// Whether each handler that was started knows of a failure before it.
    pub(super) fn recoveries(&self) -> Vec<bool> {
        self.seen.recoveries.lock().expect("no panic").clone()
    }

    /// What asks came to.
    pub(super) fn answers(&self) -> Vec<Result<Answered, AskError>> {
        self.seen.answers.lock().expect("no panic").clone()
    }

    /// What signals came to.
    pub(super) fn signals(&self) -> Vec<Result<(), SignalError>> {
        self.seen.signals.lock().expect("no panic").clone()
    }

    pub(super) fn clock_ms(&self) -> i64 {
        self.clock.wall().as_millis()
    }

    /// A job as it is now.
    pub(super) async fn job(&self, job: &EntityRef) -> Arc<Snapshot> {
        self.runtime.entity(job).await.expect("it was created")
    }
}

/// Handlers that work for so many seconds, and then ask the job that their action names.
struct Work {
    seen: Arc<Seen>,
    clock: SimClock,
}

impl Handlers for Work {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let (seen, clock) = (Arc::clone(&self.seen), self.clock);
        seen.recoveries.lock().expect("no panic").push(run.recovery.is_some());
        Box::pin(async move {
            let work = async {
                let seconds = run.dispatched.params.get("seconds").and_then(Value::as_u64);
                tokio::time::sleep(Duration::from_secs(seconds.unwrap_or(0))).await;
                let Some(id) = run.dispatched.params.get("ask").and_then(Value::as_str) else {
                    return;
                };
                let target: EntityRef = format!("Job/{id}").parse().expect("a valid name");
                let text = |name: &str| run.dispatched.params.get(name).and_then(Value::as_str);
                if let Some(name) = text("signal") {
                    let (name, payload) = (name.to_owned(), json!({ "from": "work" }));
                    let signal = EntitySignal { target, name, payload };
                    let sent = run.asks.clone().signal(signal).await;
                    seen.signals.lock().expect("no panic").push(sent);
                    return;
                }
                let action = text("action").unwrap_or("Count").to_owned();
                let params = run.dispatched.params.get("then").and_then(Value::as_object);
                let params = params.cloned().unwrap_or_default().into_iter().collect();
                let budget = run.dispatched.params.get("budget").and_then(Value::as_u64);
                let not_after = clock.now().after(Duration::from_secs(budget.unwrap_or(100)));
                let until = match text("until") {
                    Some("transition") => AskUntil::Transition,
                    _ => AskUntil::Settled,
                };
                let trace = run.dispatched.trace;
                let ask = Ask { target, action, params, until, not_after, trace };
                let answer = run.asks.clone().ask(ask).await;
                seen.answers.lock().expect("no panic").push(answer);
            };
            let (outcome, cause) = tokio::select! {
                biased;
                request = run.stop.killed() => {
                    seen.killed.lock().expect("no panic").push(request.cause);
                    let by = CancelledBy::of(request.cause);
                    let cancelled = Cancellation { by, reason: request.reason, dying_span: None };
                    (Outcome::Cancelled(cancelled), request.cause)
                }
                () = work => {
                    let result = json!({ "success": true });
                    let completed = Completion { action: None, params: Object::new(), result };
                    (Outcome::Completed(completed), Cause::Returned)
                }
            };
            RunReport::unreported(&run.dispatched, outcome, cause)
        })
    }
}
