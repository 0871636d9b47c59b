//! What the host sends, held against the protocol's schemas.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Value, json};

macro_rules! schema {
    ($name:literal) => {
        read(include_str!(concat!(
            "../../crates/sandglass-openwop/data/schemas/",
            $name,
            ".schema.json"
        )))
    };
}

static EVENT: LazyLock<Validator> = LazyLock::new(|| validator(&schema!("run-event")));
static SNAPSHOT: LazyLock<Validator> = LazyLock::new(|| validator(&schema!("run-snapshot")));
static ENVELOPE: LazyLock<Validator> = LazyLock::new(|| validator(&schema!("error-envelope")));
static DISCOVERY: LazyLock<Validator> = LazyLock::new(|| validator(&schema!("capabilities")));
/// By the types of events.
static PAYLOADS: LazyLock<BTreeMap<String, Validator>> = LazyLock::new(|| {
    let schema = schema!("run-event-payloads");
    let index = &schema["$defs"]["_typeIndex"]["properties"];
    let types = index.as_object().expect("an object").iter();
    let of = |(event, named): (&String, &Value)| {
        let whole = json!({ "$ref": named["$ref"], "$defs": schema["$defs"] });
        (event.clone(), validator(&whole))
    };
    types.map(of).collect()
});

/// A schema; what it says of files elsewhere is taken from those beside it, or holds for all.
fn read(text: &str) -> Value {
    let mut schema = serde_json::from_str(text).expect("JSON");
    settle(&mut schema);
    schema
}

fn settle(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            let named = fields.get("$ref").and_then(Value::as_str).unwrap_or("#").to_owned();
            if named.contains("orchestrator-decision") {
                *schema = schema!("orchestrator-decision");
            } else if named.contains("suspend-request") {
                *schema = schema!("suspend-request");
            } else if named.starts_with('#') {
                fields.values_mut().for_each(settle);
            } else {
                *schema = json!(true);
            }
        }
        Value::Array(all) => all.iter_mut().for_each(settle),
        _ => {}
    }
}

fn validator(schema: &Value) -> Validator {
    jsonschema::validator_for(schema).expect("a schema")
}

#[track_caller]
fn check(validator: &Validator, sent: &Value) {
    if let Err(error) = validator.validate(sent) {
        panic!("the protocol's schema refuses what was sent: {error}\n{sent:#}");
    }
}

#[track_caller]
pub(crate) fn event(sent: &Value) {
    check(&EVENT, sent);
    let kind = sent["type"].as_str().expect("a text");
    if let Some(validator) = PAYLOADS.get(kind) {
        check(validator, &sent["payload"]);
    }
}

#[track_caller]
pub(crate) fn snapshot(sent: &Value) {
    check(&SNAPSHOT, sent);
}

#[track_caller]
pub(crate) fn envelope(sent: &Value) {
    check(&ENVELOPE, sent);
}

#[track_caller]
pub(crate) fn discovery(sent: &Value) {
    check(&DISCOVERY, sent);
}
