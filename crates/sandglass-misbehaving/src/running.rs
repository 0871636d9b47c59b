//! Runs members against a host: each as entities of a runtime of its own, whose transitions are the
//! result that counts.
//!
//! ```text
//! member ── specs, modules ──▶ Runtime ── dispatches ──▶ the embedder's Host
//!                                 │                            │
//!            transitions ◀────────┴──────── reports ◀──────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::try_join_all;
use sandglass_host::{Context, Destination, Dispatch, DispatchDeadline, Host, Manifest, Outcome};
use sandglass_journal::MemoryJournal;
use sandglass_model::{
    Busy, Clock, DispatchId, Dispatched, EntityRef, Event, ModuleHash, Monotonic, Position,
    RunReport, SystemClock, TransitionCause,
};
use sandglass_runtime::{
    HandlerNow, HandlerRun, Handlers, HostHandlers, Module, Request, Reserved, RunFuture, Runtime,
};
use tokio::sync::Notify;

use crate::member::{Begins, Handler, Member};
use crate::peer::Server;
use crate::spec;
use crate::verdict::{Observed, Verdict, Verdicts};

/// How long a member may take in addition to its handlers' budgets. If the host does not end a
/// member by then, the kit gives up on it, and continues with the next.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long the kit's own runtime may take to end what is left.
const GRACE: Duration = Duration::from_secs(5);

/// Records of an entity that are read at a time.
const PAGE: usize = 500;

/// A handler that works: it must succeed on the host after every member.
const WORKS: &[u8] = include_bytes!("../../../guest-fixtures/wat/pointer_result.wat");

/// Runs each of `members` on `host`, one after the other, and judges for each whether the host did
/// what it must.
///
/// It needs a tokio runtime with I/O and time, whose clock is not paused, and a host that uses real
/// time. A host with the default [`Settings`](sandglass_host::Settings) is large enough for all
/// members. A smaller host needs 9 slots (`max_runs` and `max_asking` together, with 8 of them for
/// asks), 30 slots in its queue, and 128 MiB for a guest (`max_memory_bytes`). Handlers are
/// dispatched like any other, so they count in the host's metrics, with entity types of the kit.
pub async fn run(host: &Host, members: &[Member]) -> Verdicts {
    let mut verdicts = Vec::new();
    for member in members {
        verdicts.push(judge(host, member, PATIENCE).await);
    }
    Verdicts(verdicts)
}

async fn judge(host: &Host, member: &Member, patience: Duration) -> Verdict {
    let observed = match Stage::set(host, member).await {
        Ok(stage) => {
            let observed = stage.play(member, patience).await;
            stage.runtime.shutdown(GRACE.min(patience)).await;
            observed
        }
        Err(why) => Err(why),
    };
    let mut verdict = Verdict::of(member, observed.map_err(|why| why.to_string()));
    // The handler has a deadline, but a host that has no thread left cannot enforce it.
    let works = within(patience, works(host)).await;
    if let Err(why) = works {
        verdict
            .differs
            .push(format!("a handler that works, begun afterwards, did not complete: {why}"));
    }
    verdict
}

/// Awaits `ending`. Errors if it takes longer than `most`.
async fn within<T>(
    most: Duration,
    ending: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    #[allow(clippy::disallowed_methods, reason = "the host that is tried is in real time")]
    let ended = tokio::time::timeout(most, ending).await;
    ended.unwrap_or_else(|_| Err(format!("it has not ended after {} ms", most.as_millis()).into()))
}

/// Why something could not be done. It is only shown.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The entities of a member, ready to begin.
struct Stage {
    runtime: Runtime,
    reports: Arc<Reports>,
    host: Host,
    clock: Arc<SystemClock>,
    /// Stopped when the member has ended.
    _peer: Option<Server>,
}

impl Stage {
    async fn set(host: &Host, member: &Member) -> Result<Self, Failure> {
        let peer = match member.peer {
            Some(peer) => {
                let started = Server::start(peer).await;
                let refused = |error| format!("its peer got no socket on 127.0.0.1: {error}");
                Some(started.map_err(refused)?)
            }
            None => None,
        };
        let url = peer.as_ref().map(Server::url).unwrap_or_default();
        let allowed: Option<Destination> =
            peer.as_ref().and_then(|peer| peer.address().to_string().parse().ok());
        let modules = member.handlers.iter().map(|handler| {
            let manifest = handler.manifest().allow_hosts(allowed.clone());
            (handler.entity_type.to_string(), Module::new(&*handler.module, manifest))
        });
        let specs: Result<Vec<_>, _> =
            member.handlers.iter().map(|handler| spec::of(handler, &url)).collect();
        let clock = Arc::new(SystemClock::new());
        let handlers = HostHandlers::new(host.clone(), Arc::clone(&clock) as _, modules);
        // The kit judges how handlers end, which needs no recordings.
        let handlers = handlers.recording(None);
        // Compile before anything begins, so that all handlers begin together.
        handlers.compile().await;
        let reports = Arc::new(Reports::default());
        let handlers = Reporting { handlers, reports: Arc::clone(&reports) };
        let runtime = Runtime::builder(Arc::new(MemoryJournal::new()))
            .clock(Arc::clone(&clock) as _)
            .telemetry(host.telemetry().clone())
            .handlers(Arc::new(handlers))
            .specs(specs?);
        let runtime = runtime.build().await?;
        Ok(Self { runtime, reports, host: host.clone(), clock, _peer: peer })
    }

    async fn play(&self, member: &Member, patience: Duration) -> Result<Vec<Observed>, Failure> {
        for handler in &member.handlers {
            self.runtime.create(entity(handler)).await?;
        }
        let begun = self.clock.now();
        for handler in &member.handlers {
            if handler.begins == Begins::AtOnce {
                let request = Request::new(spec::BEGIN);
                let accepted = self.runtime.request(&entity(handler), request).await;
                accepted.map_err(|error| format!("it was not dispatched: {error}"))?;
            }
        }
        let longest =
            member.handlers.iter().map(|handler| handler.budget).max().unwrap_or_default();
        within(longest + patience, async {
            // A handler that is asked is in flight before the asking handler has ended, or never.
            // So after the first wait, every asked handler that will ever begin has begun.
            let first = self.observe_all(member, Begins::AtOnce, begun).await?;
            let asked = self.observe_all(member, Begins::WhenAsked, begun).await?;
            Ok([first, asked].concat())
        })
        .await
    }

    async fn observe_all(
        &self,
        member: &Member,
        begins: Begins,
        begun: Monotonic,
    ) -> Result<Vec<Observed>, Failure> {
        let handlers = member.handlers.iter().filter(|handler| handler.begins == begins);
        try_join_all(handlers.map(|handler| self.observe(handler, begun))).await
    }

    /// Waits until the handler has settled, and observes how it ended.
    async fn observe(&self, handler: &Handler, begun: Monotonic) -> Result<Observed, Failure> {
        let entity = entity(handler);
        self.runtime.settled(&entity).await?;
        let took = self.clock.now().since(begun);
        let report = self.reports.of(&entity);
        let is_left = report.as_ref().is_some_and(|report| {
            let live = self.host.live_runs(usize::MAX);
            live.runs.iter().any(|run| run.dispatch == report.dispatch_id)
        });
        let (transitions, state) = self.transitions(&entity).await?;
        Ok(Observed { entity, report, transitions, state, took, is_left })
    }

    /// The actions that the entity took because a handler had ended, and its present state.
    async fn transitions(&self, entity: &EntityRef) -> Result<(Vec<String>, String), Failure> {
        let mut taken = Vec::new();
        let mut from = Some(Position(0));
        while let Some(at) = from {
            let page = self.runtime.history(entity, at, PAGE).await?;
            from = page.next;
            for entry in page.entries {
                let record = entry.into_record()?;
                if let Event::Transition { action, cause, .. } = record.event
                    && matches!(cause, TransitionCause::HandlerEnded { .. })
                {
                    taken.push(action);
                }
            }
        }
        Ok((taken, self.runtime.entity(entity).await?.state.clone()))
    }
}

fn entity(handler: &Handler) -> EntityRef {
    EntityRef::new(&*handler.entity_type, "1").expect("the types of the kit are names")
}

/// Checks that the host executes a handler that works.
async fn works(host: &Host) -> Result<(), Failure> {
    let works = host.load_async(WORKS, Manifest::named("works")).await;
    let works = works.map_err(|rejection| rejection.to_string())?;
    let entity = EntityRef::new("Works", "1")?;
    let dispatch = Dispatch::new(entity, spec::BEGIN, Context::default())
        .deadline(DispatchDeadline::after(PATIENCE));
    match host.dispatch(&works, dispatch).await? {
        Outcome::Completed(_) => Ok(()),
        other => Err(other.error().map_or_else(String::new, |(_, message)| message).into()),
    }
}

/// The reports of the handlers that have ended, by entity.
#[derive(Debug, Default)]
struct Reports(Mutex<BTreeMap<EntityRef, RunReport>>);

impl Reports {
    fn of(&self, entity: &EntityRef) -> Option<RunReport> {
        self.lock().get(entity).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EntityRef, RunReport>> {
        // Each change is complete before anything can panic, so the data of a poisoned lock is
        // valid.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Executes handlers in a host, and retains their reports.
struct Reporting {
    handlers: HostHandlers,
    reports: Arc<Reports>,
}

impl Handlers for Reporting {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let entity = run.entity.clone();
        let (running, reports) = (self.handlers.start(run), Arc::clone(&self.reports));
        Box::pin(async move {
            let report = running.await;
            reports.lock().insert(entity, report.clone());
            report
        })
    }

    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        self.handlers.reserve(dispatched, tenant)
    }

    fn doing(&self, dispatch: DispatchId) -> Option<HandlerNow> {
        self.handlers.doing(dispatch)
    }

    fn on_activity(&self, dispatch: DispatchId, waiter: &Arc<Notify>) {
        self.handlers.on_activity(dispatch, waiter);
    }

    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        self.handlers.module_hash(module)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use sandglass_host::{HostCall, HostError, HostFunction, Settings};

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_host_that_never_ends_a_handler_fails_after_the_wait() {
        let (release, released) = mpsc::channel::<()>();
        let released = Mutex::new(released);
        let hangs = move |_: HostCall, _: String| -> Result<(), HostError> {
            // It blocks until the test drops the sender.
            let _ = released.lock().expect("no panic").recv();
            Ok(())
        };
        let settings = Settings { max_runs: 2, guest_threads: 1, ..Settings::default() };
        let host = Host::builder()
            .settings(settings)
            .function(HostFunction::instant("acme:crm/contacts", "hangs", hangs))
            .build()
            .expect("a host");
        let member = &crate::against(&host.functions())[0];
        let verdict = judge(&host, member, Duration::from_millis(300)).await;
        let [not_ended, nothing_works] = verdict.differs.as_slice() else { panic!("{verdict}") };
        assert_eq!(not_ended, "it has not ended after 500 ms");
        let begun_afterwards =
            "a handler that works, begun afterwards, did not complete: it has not ended";
        assert!(nothing_works.starts_with(begun_afterwards), "{nothing_works}");
        drop(release);
        host.shutdown().await;
    }
}
