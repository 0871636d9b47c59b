//! Guests on the real host: asks in one trace and under one deadline, signals to other entities, and a
//! handler that is cancelled before it has its place.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{Host, Manifest, Settings};
use sandglass_journal::{Journal, MemoryJournal, PAGE_MAX_ENTRIES};
use sandglass_liveness::{Replay, Spec};
use sandglass_model::{
    Cause, Clock, DeadlineOwner, Ended, EntityRef, Event, Monotonic, Object, Position, SystemClock,
    WallTime,
};
use sandglass_runtime::{
    ActorError, HandlerRun, Handlers, HostHandlers, Module, NewEntity, Request, RunFuture, Runtime,
    SIGNALS_SENT_PER_RUN_MAX,
};
use sandglass_telemetry::{Telemetry, Tracer};

/// A guest that asks once, and fails where that fails.
fn asks(target: &str, until: &str) -> String {
    let ask = format!(r#"{{"entity":"{target}","action":"Begin","until":"{until}"}}"#);
    let (length, data) = (ask.len(), ask.replace('"', "\\\""));
    format!(
        r#"(module
        (import "env" "host_ask" (func $ask (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 64) "{data}")
        (func (export "run") (param i32 i32) (result i32)
            (if (i32.lt_s
                    (call $ask
                        (i32.const 64) (i32.const {length}) (i32.const 4096) (i32.const 4096))
                    (i32.const 0))
                (then unreachable))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

/// A guest that sends `Ready` to `target` so many times, and fails where the last one fails.
fn signals(target: &str, times: u32) -> String {
    let signal = format!(r#"{{"entity":"{target}","name":"Ready","payload":{{"by":"a guest"}}}}"#);
    let (length, data) = (signal.len(), signal.replace('"', "\\\""));
    format!(
        r#"(module
        (import "env" "host_signal" (func $signal (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 64) "{data}")
        (func (export "run") (param i32 i32) (result i32) (local $n i32) (local $last i32)
            (loop $again
                (local.set $last (call $signal (i32.const 64) (i32.const {length})))
                (local.set $n (i32.add (local.get $n) (i32.const 1)))
                (br_if $again (i32.lt_u (local.get $n) (i32.const {times}))))
            (if (i32.lt_s (local.get $last) (i32.const 0)) (then unreachable))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

const ANSWERS: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 16))
        i32.const 0))"#;

const SPINS: &str = r#"(module
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop $ever br $ever) i32.const 0))"#;

const TELLS_AND_SPINS: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "begun")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 8) (i32.const 5)))
        (loop $ever br $ever) i32.const 0))"#;

/// A type of entity whose one handler is the module of the same name.
fn spec(name: &str, deadline: &str) -> Spec {
    spec_of(name, &format!("module = \"{name}\"\ndeadline = \"{deadline}\""))
}

/// A type of entity with one handler, whose integration has these `keys`.
fn spec_of(name: &str, keys: &str) -> Spec {
    let endings = [
        ("Finish", "Done"),
        ("Fail", "Failed"),
        ("HandlerTimedOut", "TimedOut"),
        ("Stop", "Stopped"),
    ];
    let endings = endings.map(|(action, to)| {
        format!("[[action]]\nname = \"{action}\"\nfrom = [\"Busy\"]\nto = \"{to}\"\n")
    });
    let source = format!(
        r#"[automaton]
name = "{name}"
states = ["Idle", "Busy", "Done", "Failed", "TimedOut", "Stopped"]
initial = "Idle"
terminal = ["Done", "Failed", "TimedOut", "Stopped"]
allow_indefinite_states = ["Idle", "Busy"]
[[action]]
name = "Begin"
from = ["Idle"]
to = "Busy"
effect = "trigger {name}"
[[integration]]
name = "{name}"
{keys}
on_success = "Finish"
on_failure = "Fail"
on_cancelled = "Stop"
{}"#,
        endings.concat()
    );
    let parsed = Spec::parse(&source);
    parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics))
}

fn entity(name: &str) -> EntityRef {
    EntityRef::new(name, "1").expect("a valid name")
}

/// A runtime with one entity of each type, whose module and deadline are given. One
/// handler runs at a time, besides those that wait for an answer.
async fn world(
    types: &[(&str, &str, String)],
    telemetry: Telemetry,
) -> (Runtime, Arc<MemoryJournal>) {
    // Not the host's: their points mean nothing to each other.
    world_at(Arc::new(SystemClock::new()), types, telemetry).await
}

async fn world_at(
    clock: Arc<impl Clock + 'static>,
    types: &[(&str, &str, String)],
    telemetry: Telemetry,
) -> (Runtime, Arc<MemoryJournal>) {
    let settings = Settings { max_runs: 1, max_asking: 4, ..Settings::default() };
    let host = Host::builder().settings(settings).telemetry(telemetry.clone());
    let host = host.build().expect("a host");
    let modules = types.iter().map(|(name, _, text)| {
        let targets = ["A", "B", "C"].map(|name| format!("{name}.*").parse().expect("a target"));
        let manifest = Manifest::named(*name).ask_targets(targets.clone()).signal_targets(targets);
        ((*name).to_owned(), Module::new(text.as_bytes(), manifest))
    });
    let handlers = HostHandlers::new(host, Arc::clone(&clock) as _, modules);
    handlers.compile().await;
    let journal = Arc::new(MemoryJournal::new());
    let runtime = Runtime::builder(Arc::clone(&journal) as _)
        .clock(clock)
        .telemetry(telemetry)
        .handlers(Arc::new(handlers))
        .specs(types.iter().map(|(name, deadline, _)| spec(name, deadline)));
    let runtime = runtime.build().await.expect("an empty journal");
    for (name, ..) in types {
        runtime.create(entity(name)).await.expect("new");
    }
    (runtime, journal)
}

async fn ends(journal: &MemoryJournal) -> Vec<(EntityRef, Ended)> {
    let page = journal.read(Position(0), PAGE_MAX_ENTRIES).await.expect("readable");
    let records = page.into_records().expect("whole");
    let mut replay = Replay::new();
    records.iter().for_each(|record| replay.feed(record));
    let summary = replay.finish();
    assert_eq!(summary.divergence_count, 0, "{:#?}", summary.divergences);
    let end = |record: sandglass_model::Record| match (record.entity, record.event) {
        (Some(entity), Event::Ended(ended)) => Some((entity, *ended)),
        _ => None,
    };
    records.into_iter().filter_map(end).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_in_the_config_of_an_integration_are_enforced() {
    let cases = [
        ("Fuel", "module = \"spins\"\ndeadline = \"100s\"\nmax_fuel = \"1000\"", "wasm-fuel"),
        // The same module, without a limit.
        ("Free", "module = \"spins\"\ndeadline = \"200ms\"", "handler_deadline_exceeded"),
        (
            "Memory",
            "module = \"spins\"\ndeadline = \"100s\"\nmax_memory = \"1000\"",
            "needs_too_much",
        ),
        (
            "Response",
            "module = \"answers\"\ndeadline = \"100s\"\nmax_response_bytes = \"15\"",
            "result_too_large",
        ),
    ];
    let host = Host::builder().settings(Settings { max_runs: 4, ..Settings::default() });
    let clock = Arc::new(SystemClock::new());
    let modules = [("spins", SPINS), ("answers", ANSWERS)]
        .map(|(name, text)| (name.to_owned(), Module::new(text.as_bytes(), Manifest::named(name))));
    let host = host.build().expect("a host");
    let handlers = HostHandlers::new(host, Arc::clone(&clock) as _, modules);
    let journal = Arc::new(MemoryJournal::new());
    let runtime = Runtime::builder(Arc::clone(&journal) as _)
        .clock(clock)
        .handlers(Arc::new(handlers))
        .specs(cases.map(|(name, keys, _)| spec_of(name, keys)));
    let runtime = runtime.build().await.expect("an empty journal");
    for (name, ..) in cases {
        runtime.create(entity(name)).await.expect("new");
        runtime.send(&entity(name), "Begin", Object::new()).await.expect("taken");
        runtime.settled(&entity(name)).await.expect("it lives");
    }
    let ends = ends(&journal).await;
    runtime.shutdown(Duration::from_secs(60)).await;
    for (name, _, expected) in cases {
        let (_, end) = ends.iter().find(|(of, _)| of.entity_type() == name).expect("it ended");
        let kind = end.outcome.error().map(|(kind, _)| kind);
        assert_eq!(kind.as_deref(), Some(expected), "{name}: {end:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_of_asks_is_one_trace_of_dispatch_ask_transition_dispatch() {
    let (tracer, captured) = Tracer::capturing();
    let types = [
        ("A", "100s", asks("B/1", "settled")),
        ("B", "100s", asks("C/1", "settled")),
        ("C", "100s", ANSWERS.to_owned()),
    ];
    let telemetry = Telemetry { tracer, ..Telemetry::disabled() };
    let (runtime, journal) = world(&types, telemetry).await;
    let request = Request::new("Begin");
    let settled = runtime.send_and_settle(&entity("A"), request).await.expect("taken");
    assert_eq!(settled.state, "Done");
    for name in ["B", "C"] {
        assert_eq!(runtime.entity(&entity(name)).await.expect("there").state, "Done");
    }
    assert_eq!(ends(&journal).await.len(), 3);
    runtime.shutdown(Duration::from_secs(60)).await;
    let spans = captured.spans();
    let of_type = |span: &sandglass_telemetry::trace::CapturedSpan| {
        span.attributes.get("sandglass.entity.type").cloned().unwrap_or_default()
    };
    let is_last = |span: &&_| of_type(span) == "C" && span.name == "sandglass.dispatch";
    let mut at = spans.iter().find(is_last).unwrap_or_else(|| panic!("{spans:#?}"));
    let (trace, mut path) = (at.trace_id, vec![(at.name.clone(), of_type(at))]);
    while let Some(above) = at.parent.and_then(|id| spans.iter().find(|span| span.span_id == id)) {
        assert_eq!(above.trace_id, trace);
        path.push((above.name.clone(), of_type(above)));
        at = above;
    }
    let path: Vec<(&str, &str)> = path.iter().map(|(name, of)| (&**name, &**of)).collect();
    let expected = [
        ("sandglass.dispatch", "C"),
        ("sandglass.transition", "C"),
        ("sandglass.host_call", "C"),
        ("sandglass.dispatch", "B"),
        ("sandglass.transition", "B"),
        ("sandglass.host_call", "B"),
        ("sandglass.dispatch", "A"),
        ("sandglass.transition", "A"),
        ("sandglass.request", "A"),
    ];
    assert_eq!(path, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asked_guest_that_spins_is_killed_at_its_askers_deadline() {
    let types = [("A", "500ms", asks("B/1", "settled")), ("B", "100s", SPINS.to_owned())];
    let (runtime, journal) = world(&types, Telemetry::disabled()).await;
    runtime.send(&entity("A"), "Begin", Object::new()).await.expect("taken");
    for name in ["A", "B"] {
        let settled = runtime.settled(&entity(name)).await.expect("it lives");
        assert_eq!(settled.state, "TimedOut", "{name}");
    }
    for (of, end) in ends(&journal).await {
        let (cause, owner, span) = match of.entity_type() {
            "A" => (Cause::Deadline, DeadlineOwner::Handler, "ask:B.Begin"),
            _ => (Cause::ParentDeadline, DeadlineOwner::Parent, "guest"),
        };
        assert_eq!((end.cause, end.deadline.owner), (cause, owner), "{of}");
        assert_eq!(end.dying_span.as_deref(), Some(span), "{of}");
        assert!(end.deadline.budget_ms <= 500, "{of}");
    }
    runtime.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_that_is_cancelled_while_it_waits_for_its_slot_never_starts() {
    let types = [("A", "100s", TELLS_AND_SPINS.to_owned()), ("B", "100s", SPINS.to_owned())];
    let (runtime, journal) = world(&types, Telemetry::disabled()).await;
    let mut events = runtime.subscribe();
    runtime.send(&entity("A"), "Begin", Object::new()).await.expect("taken");
    // From here on A has the only place.
    while !matches!(
        events.next().await.expect("it lives").expect("few happen"),
        sandglass_runtime::Event::Recorded(record) if record.event.kind() == "signal"
    ) {}
    runtime.send(&entity("B"), "Begin", Object::new()).await.expect("taken");
    for name in ["B", "A"] {
        assert_eq!(runtime.cancel(&entity(name), None, "enough").await, Ok(1));
        let settled = runtime.settled(&entity(name)).await.expect("it lives");
        assert_eq!(settled.state, "Stopped", "{name}");
    }
    let ends = ends(&journal).await;
    let [(first, queued), (second, _)] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!((first.entity_type(), second.entity_type()), ("B", "A"));
    assert_eq!((queued.cause, queued.started_at), (Cause::Cancel, None));
    runtime.shutdown(Duration::from_secs(60)).await;
}

/// A clock that panics where a guest's thread asks it.
#[derive(Debug)]
struct NotForGuests(SystemClock);

impl Clock for NotForGuests {
    fn now(&self) -> Monotonic {
        let thread = std::thread::current();
        assert!(
            !thread.name().is_some_and(|name| name.starts_with("sandglass-guest")),
            "a clock's defect"
        );
        self.0.now()
    }

    fn wall(&self) -> WallTime {
        self.0.wall()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ask_that_panics_is_an_error_for_the_guest_which_continues() {
    let types = [("A", "100s", asks("B/1", "settled")), ("B", "100s", ANSWERS.to_owned())];
    let clock = Arc::new(NotForGuests(SystemClock::new()));
    let (runtime, journal) = world_at(clock, &types, Telemetry::disabled()).await;
    let request = Request::new("Begin");
    let settled = runtime.send_and_settle(&entity("A"), request).await.expect("taken");
    assert_eq!(settled.state, "Failed", "the guest fails where its ask does");
    let ends = ends(&journal).await;
    let [(_, end)] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!(end.cause, Cause::Trap, "by itself, and not with its host");
    assert_eq!(end.host_calls.count, 1);
    runtime.shutdown(Duration::from_secs(60)).await;
}

/// Guests whose asker's deadline comes as soon as they are started.
struct AskedTooLate(HostHandlers, Arc<SystemClock>);

impl Handlers for AskedTooLate {
    fn start(&self, run: HandlerRun) -> RunFuture {
        self.0.start(HandlerRun { not_after: Some(self.1.now()), ..run })
    }
}

#[tokio::test]
async fn a_handler_whose_askers_deadline_passes_during_compilation_is_timed_out() {
    let clock = Arc::new(SystemClock::new());
    let host = Host::builder().settings(Settings::default()).build().expect("a host");
    let module = Module::new(SPINS.as_bytes(), Manifest::named("A"));
    let handlers = HostHandlers::new(host, Arc::clone(&clock) as _, [("A".to_owned(), module)]);
    let runtime = Runtime::builder(Arc::new(MemoryJournal::new()))
        .handlers(Arc::new(AskedTooLate(handlers, Arc::clone(&clock))))
        .clock(clock)
        .specs([spec("A", "60s")])
        .build();
    let runtime = runtime.await.expect("an empty journal");
    runtime.create(entity("A")).await.expect("a new entity");
    let settled = runtime.send_and_settle(&entity("A"), Request::new("Begin")).await;
    let Err(ActorError::HandlerDeadlineExceeded(exceeded)) = settled else { panic!("{settled:?}") };
    assert_eq!(exceeded.owner, DeadlineOwner::Parent);
    assert_eq!((exceeded.budget_ms, &*exceeded.dying_span), (0, "instantiate"));
    assert!(exceeded.elapsed_ms > exceeded.budget_ms, "{exceeded:?}");
    assert_eq!(runtime.entity(&entity("A")).await.expect("it lives").state, "TimedOut");
}

/// The signals in the journal, each with the entity that recorded it.
async fn recorded_signals(journal: &MemoryJournal) -> Vec<(EntityRef, Event)> {
    let page = journal.read(Position(0), PAGE_MAX_ENTRIES).await.expect("readable");
    let records = page.into_records().expect("whole");
    let signal = |record: sandglass_model::Record| match (record.entity, record.event) {
        (Some(entity), event @ Event::Signal { .. }) => Some((entity, event)),
        _ => None,
    };
    records.into_iter().filter_map(signal).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_signals_another_entity_whose_sequence_stays() {
    let types = [("A", "100s", signals("B/1", 1)), ("B", "100s", ANSWERS.to_owned())];
    let (runtime, journal) = world(&types, Telemetry::disabled()).await;
    let before = runtime.entity(&entity("B")).await.expect("there").sequence;
    let settled = runtime.send_and_settle(&entity("A"), Request::new("Begin")).await;
    assert_eq!(settled.expect("taken").state, "Done");
    let recorded = recorded_signals(&journal).await;
    let expected = Event::Signal {
        name: "Ready".to_owned(),
        from: Some(entity("A")),
        dispatch: None,
        payload: serde_json::json!({ "by": "a guest" }),
        resets_idle: false,
    };
    assert_eq!(recorded, [(entity("B"), expected)]);
    assert_eq!(runtime.entity(&entity("B")).await.expect("there").sequence, before);
    assert_eq!(ends(&journal).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_may_signal_its_own_entity_but_no_absent_one() {
    for (target, state, count) in [("A/1", "Done", 1), ("A/absent", "Failed", 0)] {
        let types = [("A", "100s", signals(target, 1))];
        let (runtime, journal) = world(&types, Telemetry::disabled()).await;
        let settled = runtime.send_and_settle(&entity("A"), Request::new("Begin")).await;
        assert_eq!(settled.expect("taken").state, state, "{target}");
        assert_eq!(recorded_signals(&journal).await.len(), count, "{target}");
        ends(&journal).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entity_of_another_tenant_does_not_exist_for_a_signal() {
    let types = [("A", "100s", signals("B/other", 1)), ("B", "100s", ANSWERS.to_owned())];
    let (runtime, journal) = world(&types, Telemetry::disabled()).await;
    let other = EntityRef::new("B", "other").expect("valid");
    let new = NewEntity { tenant: Some("other".to_owned()), ..NewEntity::default() };
    runtime.create_as(other, new).await.expect("new");
    let settled = runtime.send_and_settle(&entity("A"), Request::new("Begin")).await;
    assert_eq!(settled.expect("taken").state, "Failed");
    assert_eq!(recorded_signals(&journal).await, []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_sends_a_bounded_number_of_signals() {
    for (times, state) in
        [(SIGNALS_SENT_PER_RUN_MAX, "Done"), (SIGNALS_SENT_PER_RUN_MAX + 1, "Failed")]
    {
        let types = [("A", "600s", signals("B/1", times)), ("B", "100s", ANSWERS.to_owned())];
        let (runtime, _) = world(&types, Telemetry::disabled()).await;
        let settled = runtime.send_and_settle(&entity("A"), Request::new("Begin")).await;
        assert_eq!(settled.expect("taken").state, state, "{times}");
    }
}
