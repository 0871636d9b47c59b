//! New versions of modules, while handlers of the old ones run.

use std::sync::Arc;

use sandglass_host::{Host, Manifest, Settings};
use sandglass_journal::MemoryJournal;
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, ModuleHash, Object, RejectionKind, SystemClock};
use sandglass_runtime::{Event, Handlers, HostHandlers, Module, Runtime, Subscription};

use crate::world::SESSION;

const WAITS: &str = include_str!("../../../../guest-fixtures/wat/sleeps_in_wasi_poll.wat");
const FINISHES: &str = include_str!("../../../../guest-fixtures/wat/echo.wat");

fn module(text: &str) -> Module {
    Module::new(text.as_bytes(), Manifest::named("run_tools"))
}

fn handlers() -> HostHandlers {
    let settings = Settings { max_runs: 4, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let first = ("run_tools".to_owned(), module(WAITS));
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
async fn a_new_version_takes_new_dispatches_and_those_in_flight_finish_on_theirs() {
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
    runtime.cancel(&old, None, "enough").expect("it lives");
    assert_eq!(ran(&mut events, &old).await, Some(ModuleHash::of(WAITS.as_bytes())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_run_replaces_nothing() {
    let handlers = handlers();
    let refused = handlers.put("run_tools", module("(module)")).await.expect_err("no `run`");
    assert_eq!(refused.kind, RejectionKind::MissingExport);
    let both = [("new".to_owned(), module(FINISHES)), ("run_tools".to_owned(), module("?"))];
    let (name, refused) = handlers.put_all(both).await.expect_err("no module");
    assert_eq!((name.as_str(), refused.kind), ("run_tools", RejectionKind::InvalidModule));
    assert_eq!(handlers.module_hash("run_tools"), Some(ModuleHash::of(WAITS.as_bytes())));
    assert_eq!(handlers.module_hash("new"), None);
}
