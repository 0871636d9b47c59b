//! New versions of modules, while handlers of the old ones run.

use std::sync::Arc;

use sandglass_host::{Host, Manifest, Settings};
use sandglass_journal::MemoryJournal;
use sandglass_liveness::Spec;
use sandglass_model::{
    Busy, Dispatched, EntityRef, ModuleHash, Object, OutcomeKind, RejectionKind, SystemClock,
};
use sandglass_runtime::{
    Event, HandlerRun, Handlers, HostHandlers, Module, Reserved, RunFuture, Runtime, Subscription,
};

use crate::world::SESSION;

const WAITS: &str = include_str!("../../../../guest-fixtures/wat/sleeps_in_wasi_poll.wat");
const TRAPS: &str = include_str!("../../../../guest-fixtures/wat/divides_by_zero.wat");
const FINISHES: &str = include_str!("../../../../guest-fixtures/wat/echo.wat");

fn module(text: &str) -> Module {
    Module::new(text.as_bytes(), Manifest::named("run_tools"))
}

fn handlers() -> HostHandlers {
    handlers_of(WAITS)
}

fn handlers_of(first: &str) -> HostHandlers {
    let settings = Settings { max_runs: 4, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let first = ("run_tools".to_owned(), module(first));
    HostHandlers::new(host, Arc::new(SystemClock::new()), [first])
}

/// The module that the next run of `entity` to end had.
async fn ran(events: &mut Subscription, of: &EntityRef) -> Option<ModuleHash> {
    loop {
        match events.next().await.expect("the runtime lives").expect("none is missed") {
            Event::RunEnded { entity, report } if entity == *of => return report.module,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_version_gets_new_dispatches_and_handlers_in_flight_finish_with_theirs() {
    let handlers = handlers();
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let runtime = Runtime::builder(Arc::new(MemoryJournal::new()))
        .handlers(Arc::new(handlers.clone()))
        .specs([spec])
        .build()
        .await
        .expect("an empty journal");
    let mut events = runtime.subscribe();
    let [old, new]: [EntityRef; 2] =
        ["Session/old", "Session/new"].map(|name| name.parse().expect("valid"));
    runtime.create(old.clone()).await.expect("new");
    runtime.send(&old, "ProcessToolCalls", Object::new()).await.expect("taken");
    let hash = handlers.put("run_tools", module(FINISHES)).await.expect("sound");
    assert_eq!(hash, ModuleHash::of(FINISHES.as_bytes()));
    runtime.create(new.clone()).await.expect("new");
    runtime.send(&new, "ProcessToolCalls", Object::new()).await.expect("taken");
    assert_eq!(ran(&mut events, &new).await, Some(hash));
    assert_eq!(runtime.settled(&new).await.expect("it lives").state, "Done");
    runtime.cancel(&old, None, "enough").await.expect("it lives");
    assert_eq!(ran(&mut events, &old).await, Some(ModuleHash::of(WAITS.as_bytes())));
}

/// Puts two other versions between the record of a run and its start.
struct PutsTwo {
    handlers: HostHandlers,
    /// Whether they are asked for room, as those that stand before others should.
    asks_for_room: bool,
}

impl Handlers for PutsTwo {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let handlers = self.handlers.clone();
        Box::pin(async move {
            for other in [WAITS, TRAPS] {
                handlers.put("run_tools", module(other)).await.expect("sound");
            }
            handlers.start(run).await
        })
    }

    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        match self.asks_for_room {
            true => self.handlers.reserve(dispatched, tenant),
            false => Ok(Reserved::default()),
        }
    }

    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        self.handlers.module_hash(module)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_has_the_version_that_its_record_names_or_none() {
    for (asks_for_room, expected) in
        [(true, OutcomeKind::Completed), (false, OutcomeKind::Rejected)]
    {
        let runtime = Runtime::builder(Arc::new(MemoryJournal::new()))
            .handlers(Arc::new(PutsTwo { handlers: handlers_of(FINISHES), asks_for_room }))
            .specs([Spec::parse(SESSION).spec.expect("sound")])
            .build()
            .await
            .expect("an empty journal");
        let mut events = runtime.subscribe();
        let entity: EntityRef = "Session/one".parse().expect("valid");
        runtime.create(entity.clone()).await.expect("new");
        let accepted = runtime.send(&entity, "ProcessToolCalls", Object::new()).await;
        let dispatch = accepted.expect("taken").dispatches[0];
        assert_eq!(ran(&mut events, &entity).await, Some(ModuleHash::of(FINISHES.as_bytes())));
        let outcome = runtime.outcome(&entity, dispatch).await.expect("it has ended");
        assert_eq!(outcome.kind(), expected, "{outcome:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_module_that_cannot_be_executed_replaces_nothing() {
    let handlers = handlers();
    let refused = handlers.put("run_tools", module("(module)")).await.expect_err("no `run`");
    assert_eq!(refused.kind, RejectionKind::MissingExport);
    let both = [("new".to_owned(), module(FINISHES)), ("run_tools".to_owned(), module("?"))];
    let (name, refused) = handlers.put_all(both).await.expect_err("no module");
    assert_eq!((name.as_str(), refused.kind), ("run_tools", RejectionKind::InvalidModule));
    assert_eq!(handlers.module_hash("run_tools"), Some(ModuleHash::of(WAITS.as_bytes())));
    assert_eq!(handlers.module_hash("new"), None);
}
