//! What a guest on the real host learns of its entity, and what the journal records of that.

use std::sync::Arc;

use sandglass_host::{FixedSecrets, Host, Manifest, Secret, Settings};
use sandglass_journal::{Journal, MemoryJournal, PAGE_MAX_ENTRIES};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Event, Object, Outcome, Position, Record, SystemClock};
use sandglass_runtime::{HandlerRun, Handlers, HostHandlers, Module, RunFuture, Runtime};
use serde_json::{Value, json};

/// Returns its context as params.
const ECHO: &str = include_str!("../../../../guest-fixtures/wat/echo.wat");

const KEY: &str = "correct-horse";

const ORDER: &str = r#"[automaton]
name = "Order"
states = ["Open", "Busy", "Done", "Failed"]
initial = "Open"
terminal = ["Done", "Failed"]
allow_indefinite_states = ["Open", "Busy"]

[[state]]
name = "attempts"
type = "counter"
initial = "2"

[[state]]
name = "paid"
type = "bool"
initial = "true"

[[state]]
name = "note"
type = "string"
initial = "fragile"

[[action]]
name = "Touch"
from = ["Open"]
to = "Open"

[[action]]
name = "Ship"
from = ["Open"]
to = "Busy"
effect = ["increment attempts", "trigger ship"]

[[action]]
name = "Finish"
from = ["Busy"]
to = "Done"

[[action]]
name = "Fail"
from = ["Busy"]
to = "Failed"

[[integration]]
name = "ship"
module = "shipper"
deadline = "100s"
on_failure = "Fail"
on_timeout = "Fail"
config = { auth = "Bearer {secret:API_KEY}", path = "/{field:city}/{field:attempts}/{field:Id}" }
"#;

/// Adds the parameters of earlier actions to each handler.
struct WithFields(HostHandlers);

impl Handlers for WithFields {
    fn start(&self, mut run: HandlerRun) -> RunFuture {
        let earlier = json!({ "city": "Oslo", "weight": 3, "note": "earlier" });
        let mut fields: Object = serde_json::from_value(earlier).expect("an object");
        fields.extend(run.fields.to_object());
        run.fields = fields.into();
        self.0.start(run)
    }
}

/// Takes `Touch` and then `Ship` with `params`; returns the records.
async fn records(overlay: Value, params: Value, secrets: FixedSecrets) -> Vec<Record> {
    records_of(ORDER, overlay, params, secrets).await
}

/// The same with another spec. The module is an adapter, too.
async fn records_of(
    spec: &str,
    overlay: Value,
    params: Value,
    secrets: FixedSecrets,
) -> Vec<Record> {
    let object = |value: Value| -> Object { serde_json::from_value(value).expect("an object") };
    let host = Host::builder().settings(Settings { max_runs: 1, ..Settings::default() });
    let clock = Arc::new(SystemClock::new());
    let manifest = Manifest::named("shipper").secrets(Arc::new(secrets));
    let module = Module::new(ECHO.as_bytes(), manifest);
    let modules = ["shipper", "adapter:post"].map(|name| (name.to_owned(), module.clone()));
    let handlers =
        HostHandlers::new(host.build().expect("a host"), Arc::clone(&clock) as _, modules);
    let handlers = handlers.entity_state(object(overlay));
    let journal = Arc::new(MemoryJournal::new());
    let parsed = Spec::parse(spec);
    let spec = parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics));
    let runtime = Runtime::builder(Arc::clone(&journal) as _)
        .clock(clock)
        .handlers(Arc::new(WithFields(handlers)))
        .specs([spec]);
    let runtime = runtime.build().await.expect("an empty journal");
    let order: EntityRef = "Order/7".parse().expect("valid");
    runtime.create(order.clone()).await.expect("new");
    runtime.send(&order, "Touch", Object::new()).await.expect("taken");
    runtime.send(&order, "Ship", object(params)).await.expect("taken");
    runtime.settled(&order).await.expect("it ends");
    let page = journal.read(Position(0), PAGE_MAX_ENTRIES).await.expect("readable");
    page.into_records().expect("whole")
}

fn outcome(records: &[Record]) -> &Outcome {
    let ended = records.iter().find_map(|record| match &record.event {
        Event::Ended(ended) => Some(&ended.outcome),
        _ => None,
    });
    ended.expect("a handler")
}

/// The context that the guest had.
fn context(records: &[Record]) -> Value {
    match outcome(records) {
        Outcome::Completed(completion) => json!(completion.params),
        other => panic!("{other:?}"),
    }
}

fn key() -> FixedSecrets {
    [("API_KEY".to_owned(), Secret::new(KEY))].into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_sees_the_whole_state_of_its_entity() {
    let params = json!({ "city": "Bergen", "attempts_made": 1 });
    let context = context(&records(json!({}), params, key()).await);
    assert_eq!(
        context["entity_state"],
        json!({
            "entity_type": "Order",
            "entity_id": "7",
            "status": "Busy",
            "sequence_nr": 2,
            "fields": {
                "Id": "7",
                "Status": "Busy",
                "attempts": 3,
                "attempts_made": 1,
                "city": "Bergen",
                "note": "fragile",
                "paid": true,
                "weight": 3,
            },
            "counters": { "attempts": 3 },
            "booleans": { "paid": true },
            "lists": {},
        })
    );
    assert_eq!(context["wasm_module"], "shipper");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_journal_has_the_template_and_the_guest_the_value() {
    let records = records(json!({}), json!({}), key()).await;
    let config = &context(&records)["integration_config"];
    assert_eq!(*config, json!({ "auth": "Bearer [redacted]", "path": "/Oslo/3/7" }));
    let recorded = format!("{records:?}");
    assert!(recorded.contains("Bearer {secret:API_KEY}") && !recorded.contains(KEY));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_without_a_grant_rejects_the_dispatch() {
    let records = records(json!({}), json!({}), FixedSecrets::default()).await;
    let Outcome::Rejected(rejection) = outcome(&records) else { panic!("{records:?}") };
    assert_eq!(rejection.kind.as_str(), "unresolved_template");
    assert!(rejection.message.contains("`auth`: `{secret:API_KEY}`"), "{rejection}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_given_state_overlays_that_of_the_entity() {
    let given = json!({
        "status": "Packed",
        "sequence_nr": 40,
        "fields": { "city": "Tromsø", "note": null },
        "counters": { "boxes": 4 },
        "lists": { "tags": ["a"] },
        "item_count": 4,
    });
    let context = context(&records(given, json!({ "city": "Bergen" }), key()).await);
    let state = &context["entity_state"];
    assert_eq!((&state["status"], &state["sequence_nr"]), (&"Packed".into(), &40.into()));
    assert_eq!((&state["item_count"], &state["entity_id"]), (&4.into(), &"7".into()));
    assert_eq!(state["counters"], json!({ "attempts": 3, "boxes": 4 }));
    let fields = &state["fields"];
    assert_eq!((&fields["city"], &fields["note"]), (&"Tromsø".into(), &Value::Null));
    assert_eq!((&fields["Status"], &fields["boxes"]), (&"Packed".into(), &4.into()));
    assert_eq!((&fields["tags"], &fields["weight"]), (&json!(["a"]), &3.into()));
    assert_eq!(context["integration_config"]["path"], "/Tromsø/3/7");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_may_be_named_by_a_field() {
    let adapter = "type = \"adapter\"\nadapter = \"{field:carrier}\"";
    let spec = ORDER.replace("module = \"shipper\"", adapter);
    let by = |params: Value| records_of(&spec, json!({}), params, key());
    let records = by(json!({ "carrier": "post" })).await;
    assert_eq!(context(&records)["integration_config"]["adapter"], "post");
    let dispatched = records.iter().find_map(|record| match &record.event {
        Event::Dispatched(dispatched) => Some(dispatched.module.as_str()),
        _ => None,
    });
    assert_eq!(dispatched, Some("adapter:{field:carrier}"), "the record has the template");

    for (params, kind, says) in [
        (json!({ "carrier": "rail" }), "unknown_module", "no adapter `rail`"),
        (json!({}), "unresolved_template", "`adapter`: `{field:carrier}`"),
    ] {
        let records = by(params).await;
        let Outcome::Rejected(rejection) = outcome(&records) else { panic!("{records:?}") };
        assert_eq!(rejection.kind.as_str(), kind);
        assert!(rejection.message.contains(says), "{rejection}");
    }
}
