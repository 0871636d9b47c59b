//! The host sends what the protocol's schemas allow: events and their payloads, snapshots, discovery,
//! errors and decisions, for runs that end in every way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::LazyLock;

use jsonschema::{Registry, Validator};
use sandglass_model::{EntityRef, Partition};
use sandglass_openwop::{EventKind, RUN_TYPE};
use sandglass_telemetry::Tracer;
use sandglass_telemetry::trace::{CapturedSpan, names};
use serde_json::{Value, json};

use crate::host::{Make, World, is_terminal, samples};

/// The base of the ids of the protocol's schemas.
const SPEC: &str = "https://openwop.dev/spec/v1";

/// The schemas in this repository.
const SCHEMAS: [&str; 7] = [
    include_str!("../../data/schemas/capabilities.schema.json"),
    include_str!("../../data/schemas/error-envelope.schema.json"),
    include_str!("../../data/schemas/orchestrator-decision.schema.json"),
    include_str!("../../data/schemas/run-event.schema.json"),
    include_str!("../../data/schemas/run-event-payloads.schema.json"),
    include_str!("../../data/schemas/run-snapshot.schema.json"),
    include_str!("../../data/schemas/suspend-request.schema.json"),
];

/// Schemas that they refer to and that are not in this repository: they accept everything.
const STAND_INS: [&str; 4] = ["agent-ref", "channel-written-payload", "prompt-kind", "prompt-ref"];

static REGISTRY: LazyLock<Registry<'static>> = LazyLock::new(|| {
    let mut builder = Registry::new();
    for text in SCHEMAS {
        let schema: Value = serde_json::from_str(text).expect("JSON");
        let id = schema["$id"].as_str().expect("a name").to_owned();
        builder = builder.add(id, schema).expect("a resource");
    }
    for name in STAND_INS {
        let stand_in = json!({"$schema": "https://json-schema.org/draft/2020-12/schema"});
        builder = builder.add(format!("{SPEC}/{name}.schema.json"), stand_in).expect("a resource");
    }
    builder.prepare().expect("all references lead somewhere")
});

fn validator(place: &str) -> Validator {
    let options = jsonschema::options().with_registry(&REGISTRY).should_validate_formats(true);
    options.build(&json!({"$ref": format!("{SPEC}/{place}")})).expect("a schema")
}

/// The schemas of what the host sends.
struct Protocol {
    event: Validator,
    payloads: BTreeMap<&'static str, Validator>,
    snapshot: Validator,
    decision: Validator,
}

#[track_caller]
fn require(validator: &Validator, value: &Value) {
    if let Err(error) = validator.validate(value) {
        panic!("{error} at `{}` in {value:#}", error.instance_path());
    }
}

impl Protocol {
    fn new() -> Self {
        let index = "run-event-payloads.schema.json#/$defs/_typeIndex/properties";
        let payload = |kind: &EventKind| (kind.as_str(), validator(&format!("{index}/{kind}")));
        Self {
            event: validator("run-event.schema.json"),
            payloads: EventKind::ALL.iter().map(payload).collect(),
            snapshot: validator("run-snapshot.schema.json"),
            decision: validator("orchestrator-decision.schema.json"),
        }
    }

    /// Fails if an event violates the protocol, or its number is not the next.
    #[track_caller]
    fn check_events(&self, run: &str, events: &[Value]) {
        for (number, event) in (0_u64..).zip(events) {
            require(&self.event, event);
            let kind = event["type"].as_str().expect("a type");
            let payload = &event["payload"];
            require(&self.payloads[kind], payload);
            assert_eq!((&event["sequence"], &event["runId"]), (&json!(number), &json!(run)));
            assert_eq!(kind == "run.started", number == 0, "{events:#?}");
            if kind == "runOrchestrator.decided" {
                // Its own schema has no `iteration`, which RFC 0058 and the schema of payloads have.
                require(&self.decision, &payload["decision"]);
            }
            if kind == "cap.breached" {
                let number = |key: &str| payload[key].as_u64().expect("a number");
                assert!(number("observed") > number("limit"), "{payload}");
            }
        }
    }

    /// Fails if the events or the snapshot of a run that is over violate the protocol. Returns the
    /// types of its events.
    #[track_caller]
    fn check_run(&self, world: &World, run: &str) -> BTreeSet<String> {
        let list = world.get(&format!("/v1/runs/{run}/events")).is(200).json();
        let events = list["events"].as_array().expect("a list");
        self.check_events(run, events);
        let last = events.len().checked_sub(1);
        let ends: Vec<usize> =
            (0..events.len()).filter(|number| is_terminal(&events[*number])).collect();
        assert_eq!(ends, Vec::from_iter(last), "{run} ends once, and last: {events:#?}");
        let snapshot = world.snapshot(run);
        require(&self.snapshot, &snapshot);
        let status = snapshot["status"].as_str().expect("text");
        let ended = events.last().and_then(|event| event["type"].as_str());
        assert_eq!(ended, Some(format!("run.{status}").as_str()), "{snapshot:#}");
        assert_eq!(snapshot["error"].is_object(), status == "failed", "{snapshot:#}");
        events.iter().map(|event| event["type"].as_str().expect("a type").to_owned()).collect()
    }
}

fn node(id: &str, type_id: &str, config: Value, inputs: Value) -> Value {
    json!({
        "id": id, "typeId": type_id, "name": id, "position": {"x": 0, "y": 0},
        "config": config, "inputs": inputs,
    })
}

fn definition(id: &str, nodes: &[Value], edges: &[(&str, &str)], settings: Value) -> Value {
    let edge = |(from, to): &(&str, &str)| json!({"id": format!("{from}-{to}"), "sourceNodeId": from, "targetNodeId": to});
    json!({
        "id": id, "name": id, "version": "1", "nodes": nodes,
        "edges": edges.iter().map(edge).collect::<Vec<_>>(),
        "triggers": [{"id": "manual", "type": "manual"}],
        "variables": [], "metadata": {}, "settings": settings,
    })
}

/// A run with three child runs: one completes, one fails, and one cannot be started.
fn parent() -> Value {
    let worker = |id: &str| json!({"kind": "next-worker", "nextWorkerIds": [id]});
    let plan = ["conformance-identity", "conformance-failure", "no-such-workflow"].map(worker);
    let mapping = json!({
        "inputMapping": {"payload": "payload"}, "outputMapping": {"echoed": "payload"},
    });
    let nodes = [
        node("boss", "core.orchestrator.supervisor", json!({ "plan": plan }), json!({})),
        node("send", "core.dispatch", mapping, json!({})),
    ];
    definition("parent", &nodes, &[("boss", "send"), ("send", "boss")], json!({}))
}

/// A run whose child is cancelled with it.
fn waiting_parent() -> Value {
    let plan = [json!({"kind": "next-worker", "nextWorkerIds": ["conformance-cancellable"]})];
    let nodes = [
        node("boss", "core.orchestrator.supervisor", json!({ "plan": plan }), json!({})),
        node("send", "core.dispatch", json!({}), json!({})),
    ];
    let edges = [("boss", "send"), ("send", "boss")];
    definition("waiting-parent", &nodes, &edges, json!({}))
}

/// A loop without an orchestrator.
fn rounds() -> Value {
    let nodes = ["a", "b"].map(|id| node(id, "core.noop", json!({}), json!({})));
    let edges = [("a", "b"), ("b", "a")];
    definition("rounds", &nodes, &edges, json!({"maxLoopbackIterations": 2}))
}

/// A node that is retried, and fails again.
fn retried() -> Value {
    let nodes = [node("fail", "core.fail", json!({}), json!({}))];
    definition("retried", &nodes, &[], json!({"maxRetries": 2}))
}

/// A node of a pack with a missing input.
fn input_missing() -> Value {
    let input = json!({"a": {"type": "variable", "variableName": "nowhere"}});
    let nodes = [node("add", "vendor.sandglass.samples.add", json!({}), input)];
    let mut definition = definition("input-missing", &nodes, &[], json!({}));
    definition["variables"] = json!([{"name": "nowhere", "type": "number"}]);
    definition
}

/// An orchestrator with an invalid plan.
fn bad_plan() -> Value {
    let nodes =
        [node("boss", "core.orchestrator.supervisor", json!({"plan": ["no decision"]}), json!({}))];
    definition("bad-plan", &nodes, &[], json!({}))
}

/// An orchestrator that is not sure of its decision.
fn unsure() -> Value {
    let plan = json!([{"kind": "next-worker", "nextWorkerIds": ["end"], "confidence": 0.5}]);
    let nodes = [
        node("boss", "core.orchestrator.supervisor", json!({ "plan": plan }), json!({})),
        node("end", "core.noop", json!({}), json!({})),
    ];
    definition("unsure", &nodes, &[("boss", "end")], json!({}))
}

fn own() -> Vec<Value> {
    vec![parent(), waiting_parent(), rounds(), retried(), input_missing(), bad_plan(), unsure()]
}

/// Runs that end on their own: the request, the status at the end, and the code of the error.
fn ending_by_themselves() -> Vec<(Value, &'static str, Option<&'static str>)> {
    let mut runs = Vec::new();
    let mut add = |workflow: &str, status, code| {
        runs.push((json!({ "workflowId": workflow }), status, code));
    };
    for workflow in [
        "linear",
        "diamond",
        "diamond-one-fails",
        "conditions",
        "channels",
        "log",
        "sensitive",
        "wat-variable",
        "failure-handled",
        "replay",
        "replay-effects",
        "loop",
        "loop-fan-out",
        "conformance-noop",
        "conformance-multi-node",
        "conformance-dispatch-loop",
        "conformance-wasm-pack-roundtrip",
    ] {
        add(workflow, "completed", None);
    }
    for (workflow, code) in [
        ("failure-unhandled", "sample_failure"),
        ("retried", "conformance_test_failure"),
        ("input-missing", "input_missing"),
        ("bad-plan", "invalid_decision"),
        ("rounds", "loopback_limit_exceeded"),
        ("approval-with-timeout", "interrupt_timeout"),
        ("loop-bad-decision", "invalid_decision"),
        ("conformance-failure", "conformance_test_failure"),
        ("conformance-capability-missing", "capability_not_provided"),
        ("conformance-wasm-pack-abi-mismatch", "capability_not_provided"),
        ("conformance-wasm-pack-memory-cap-breach", "wasm_memory_exceeded"),
        ("misbehaving-grower", "wasm_memory_exceeded"),
        ("misbehaving-fuel-burner", "wasm_fuel_exhausted"),
        ("misbehaving-spinner", "wasm_execution_timeout"),
        ("misbehaving-trapper", "wasm_trap"),
        ("misbehaving-not-loaded", "capability_not_provided"),
    ] {
        add(workflow, "failed", Some(code));
    }
    for workflow in [
        "misbehaving-liar",
        "misbehaving-no-json",
        "misbehaving-no-outcome",
        "misbehaving-wild-alloc",
    ] {
        add(workflow, "failed", None);
    }
    let bounded = |workflow: &str, bound: &str, at: u64| json!({ "workflowId": workflow, "configurable": { bound: at }, "tags": ["bounded"] });
    for (body, code) in [
        (bounded("conformance-run-duration-breach", "runTimeoutMs", 300), "run_timeout"),
        (bounded("spin", "runTimeoutMs", 300), "run_timeout"),
        (bounded("approval", "runTimeoutMs", 300), "run_timeout"),
        (bounded("conformance-cap-breach", "recursionLimit", 3), "recursion_limit_exceeded"),
        (bounded("loop-endless", "maxLoopIterations", 3), "loop_limit_exceeded"),
    ] {
        runs.push((body, "failed", Some(code)));
    }
    let with_inputs = |workflow: &str, inputs: Value| json!({ "workflowId": workflow, "inputs": inputs, "metadata": {"why": "a test"} });
    for body in [
        with_inputs("parent", json!({"payload": {"deep": [1, null, "é"]}})),
        with_inputs("conformance-identity", json!({"payload": {"a": {"b": []}}})),
        with_inputs("conformance-idempotent", json!({"nonce": ""})),
        with_inputs("conformance-delay", json!({"delayMs": 1})),
    ] {
        runs.push((body, "completed", None));
    }
    runs
}

#[test]
fn events_snapshots_and_decisions_are_valid_by_the_protocol() {
    are_valid(&World::of(Make { workflows: own(), ..Make::default() }));
}

#[test]
fn a_family_of_runs_shares_a_partition() {
    let world = World::of(Make { workflows: own(), is_partitioned: true, ..Make::default() });
    are_valid(&world);
    let partition_of = |run: &str| Partition::of(&EntityRef::new(RUN_TYPE, run).expect("a name"));
    for _ in 0..8 {
        let parent = world.run(&json!({ "workflowId": "waiting-parent" }));
        let started = |event: &Value| event["payload"]["phase"] == "dispatch.succeeded";
        let events = world.until(&parent, started);
        let child = events.iter().find(|event| started(event)).expect("it was found");
        let child = child["payload"]["childRunId"].as_str().expect("an id");
        assert_eq!(partition_of(child), partition_of(&parent));
        world.post(&format!("/v1/runs/{parent}/cancel"), "").is(200);
    }
}

/// Checks events, snapshots and decisions of runs that reach everything in the protocol.
fn are_valid(world: &World) {
    let protocol = Protocol::new();
    let mut seen = BTreeSet::new();
    let mut over = Vec::new();
    let started: Vec<_> = ending_by_themselves()
        .into_iter()
        .map(|(body, status, code)| (world.run(&body), body, status, code))
        .collect();
    for (run, body, status, code) in started {
        world.until_over(&run);
        seen.extend(protocol.check_run(world, &run));
        let snapshot = world.snapshot(&run);
        assert_eq!(snapshot["status"], status, "{body}: {snapshot:#}");
        if let Some(code) = code {
            assert_eq!(snapshot["error"]["code"], code, "{body}: {snapshot:#}");
        }
        over.push(run);
    }
    over.extend(cancels(world, &protocol, &mut seen));
    over.extend(suspends_and_resumes(world, &protocol, &mut seen));
    for run in &over {
        forks(world, &protocol, run, &mut seen);
    }
    // Another test causes this event.
    seen.insert(EventKind::ReplayDiverged.to_string());
    let all = EventKind::ALL.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(seen, all);
}

/// Cancels runs while a node executes, a guest spins, a child run executes, and a node waits.
fn cancels(world: &World, protocol: &Protocol, seen: &mut BTreeSet<String>) -> Vec<String> {
    let mut runs = Vec::new();
    for (workflow, node) in [
        ("conformance-cancellable", "wait"),
        ("spin", "spin"),
        ("waiting-parent", "send"),
        ("approval", "ask"),
    ] {
        let run = world.run(&json!({ "workflowId": workflow }));
        world.until(&run, |event| event["type"] == "node.started" && event["nodeId"] == node);
        require(&protocol.snapshot, &world.snapshot(&run));
        let cancel = format!("/v1/runs/{run}/cancel");
        world.post(&cancel, r#"{"reason": "enough"}"#).is(200);
        let events = world.until_over(&run);
        let reason = &events.last().expect("an end")["payload"]["reason"];
        assert_eq!(reason, "enough");
        seen.extend(protocol.check_run(world, &run));
        assert_eq!(world.snapshot(&run)["status"], "cancelled");
        // Cancelling it again returns the same status.
        assert_eq!(world.post(&cancel, "").is(200).json()["status"], "cancelled");
        runs.push(run);
    }
    runs
}

fn suspends_and_resumes(
    world: &World,
    protocol: &Protocol,
    seen: &mut BTreeSet<String>,
) -> Vec<String> {
    let mut runs = Vec::new();
    for (workflow, status, answer) in [
        ("approval", "waiting-approval", json!({"action": "accept"})),
        ("approval", "waiting-approval", json!({"action": "reject", "comment": "no"})),
        ("approval-by-response", "waiting-approval", json!({"action": "accept"})),
        ("loop-ask-user", "waiting-input", json!("go on")),
        ("unsure", "waiting-approval", json!({"kind": "terminate", "confidence": 0.1})),
    ] {
        let run = world.run(&json!({ "workflowId": workflow }));
        let node = world.until_waiting(&run);
        let waiting = world.snapshot(&run);
        require(&protocol.snapshot, &waiting);
        assert_eq!((&waiting["status"], &waiting["currentNodeId"]), (&json!(status), &json!(node)));
        let answer = json!({ "resumeValue": answer }).to_string();
        world.post(&format!("/v1/runs/{run}/interrupts/{node}"), &answer).is(200);
        let events = world.until_over(&run);
        assert!(events.iter().any(|event| event["type"] == "node.resumed"), "{events:#?}");
        seen.extend(protocol.check_run(world, &run));
        assert_eq!(world.snapshot(&run)["status"], "completed");
        runs.push(run);
    }
    runs
}

/// Replays the run, and branches from several of its events, however these branches end.
fn forks(world: &World, protocol: &Protocol, run: &str, seen: &mut BTreeSet<String>) {
    let source = world.until_over(run);
    let fork = |body: &Value| {
        let forked = world.post(&format!("/v1/runs/{run}:fork"), &body.to_string()).is(201).json();
        assert_eq!(forked["sourceRunId"], run);
        forked["runId"].as_str().expect("an id").to_owned()
    };
    let replayed = fork(&json!({"mode": "replay"}));
    let again = world.until_over(&replayed);
    seen.extend(protocol.check_run(world, &replayed));
    let inner = |events: &[Value]| -> Vec<(Value, Value)> {
        // The first and the last event contain the source and the duration.
        let behind = events.get(1..events.len() - 1).unwrap_or_default();
        behind.iter().map(|event| (event["type"].clone(), event["payload"].clone())).collect()
    };
    assert_eq!(inner(&again), inner(&source), "{run}");
    for from in [0, source.len() / 3, source.len() - 1] {
        // Higher limits than those that the source breached.
        let room = json!({"recursionLimit": 100, "maxLoopIterations": 100, "runTimeoutMs": 60_000});
        let branch = fork(&json!({
            "mode": "branch", "fromSeq": from, "runOptionsOverlay": {"configurable": room},
        }));
        // Branches of other runs may wait or take long.
        if source.last().is_some_and(|event| event["type"] == "run.completed") {
            world.until(&branch, |event| {
                let waits = event["type"] == "interrupt.requested";
                is_terminal(event) || (waits && event["sequence"].as_u64() >= Some(from as u64))
            });
        }
        let cancelled = world.post(&format!("/v1/runs/{branch}/cancel"), "");
        cancelled.is(200);
        world.until_over(&branch);
        seen.extend(protocol.check_run(world, &branch));
    }
}

#[test]
fn a_replay_that_differs_reports_valid_divergences() {
    let folder = tempfile::tempdir().expect("a folder");
    let (journal, packs) = (folder.path().join("runs.db"), folder.path().join("packs"));
    let world = World::of(Make { journal: Some(journal.clone()), ..Make::default() });
    let run = world.ended("linear");
    world.shutdown();
    // A pack with an additional custom section has another digest.
    fs::create_dir(&packs).expect("a folder");
    for pack in ["vendor.sandglass.samples", "vendor.sandglass.wat-echo"] {
        let (from, to) = (samples("packs").join(pack), packs.join(pack));
        fs::create_dir(&to).expect("a folder");
        fs::copy(from.join("pack.json"), to.join("pack.json")).expect("a copy");
        let mut module = fs::read(from.join("module.wasm")).expect("a module");
        module.extend_from_slice(b"\0\x03\x01xy");
        fs::write(to.join("module.wasm"), module).expect("a module");
    }
    let world = World::of(Make { journal: Some(journal), packs: Some(packs), ..Make::default() });
    let protocol = Protocol::new();
    let replay = world.post(&format!("/v1/runs/{run}:fork"), r#"{"mode": "replay"}"#).is(201);
    let replay = replay.json()["runId"].as_str().expect("an id").to_owned();
    let events = world.until_over(&replay);
    let diverged: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "replay.diverged").collect();
    assert_eq!(diverged.len(), 3, "{events:#?}");
    for event in diverged {
        assert_eq!(event["payload"]["sourceRunId"], *run);
    }
    protocol.check_run(&world, &replay);
    assert_eq!(world.snapshot(&replay)["status"], "completed");
}

#[test]
fn spans_of_runs_name_the_bound_that_was_breached() {
    /// Most requests until a span appears that is exported while the run is read.
    const REQUESTS_MAX: usize = 1_000;
    let (tracer, captured) = Tracer::capturing();
    let world = World::of(Make { tracer, ..Make::default() });
    let bounds = json!({ "recursionLimit": 3 });
    let bounded = json!({ "workflowId": "conformance-cap-breach", "configurable": bounds });
    for (body, name, kind) in [
        (json!({ "workflowId": "misbehaving-grower" }), names::DISPATCH, "wasm-memory"),
        (json!({ "workflowId": "misbehaving-spinner" }), names::DISPATCH, "wasm-execution-time"),
        (bounded, names::CAP_BREACHED, "node-executions"),
    ] {
        let run = world.run(&body);
        world.until_over(&run);
        let is_it = |span: &CapturedSpan| {
            let found = span.attributes.get(names::CAP_KIND);
            span.name == name && found.is_some_and(|found| found == kind)
        };
        let mut requests = 0;
        while !captured.spans().iter().any(is_it) {
            requests += 1;
            assert!(requests < REQUESTS_MAX, "{kind}: {:#?}", captured.spans());
            world.discovery();
        }
    }
    world.ended("linear");
    let named = captured.spans().into_iter();
    let named = named.filter(|span| span.attributes.contains_key(names::CAP_KIND));
    let named: Vec<CapturedSpan> = named.collect();
    assert_eq!(named.len(), 3, "only breaches have a kind: {named:#?}");
    for span in named {
        let [limit, observed] = [names::CAP_LIMIT, names::CAP_OBSERVED]
            .map(|name| span.attributes[name].parse::<u64>().expect("a number"));
        assert!(observed > limit, "{span:#?}");
    }
}

#[test]
fn discovery_and_errors_are_valid_by_the_protocol() {
    let world = World::new();
    let discovery = world.discovery();
    let capabilities = validator("capabilities.schema.json");
    require(&capabilities, &discovery);
    for (family, value) in discovery["capabilities"].as_object().expect("families") {
        assert_eq!(&discovery[family.as_str()], value, "{family}");
    }
    let envelope = validator("error-envelope.schema.json");
    let run = world.ended("conformance-noop");
    let unknown = format!("/v1/runs/run-{}", "0".repeat(32));
    for (answer, status) in [
        (world.post("/v1/runs", "{}"), 400),
        (world.ask("GET", &unknown, &[], b""), 401),
        (world.get(&unknown), 404),
        (world.post(&unknown, "{}"), 405),
        (world.get_with(&format!("/v1/runs/{run}/events"), "accept", "image/png"), 406),
        (world.post(&format!("/v1/runs/{run}/interrupts/noop"), r#"{"resumeValue": 1}"#), 409),
        (world.post("/v1/runs", &" ".repeat(2 << 20)), 413),
        (world.post_with("/v1/runs", &[("content-type", "text/plain")], b"{}"), 415),
        (world.post(&format!("/v1/runs/{run}:fork"), r#"{"mode": "branch", "fromSeq": 99}"#), 422),
    ] {
        require(&envelope, &answer.is(status).json());
    }
}
