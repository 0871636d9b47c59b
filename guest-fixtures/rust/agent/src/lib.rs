//! An agent that does what its params or its configuration tell it, step by step, as a
//! model would: it calls tools, tells how far it is, and reads what went wrong before.

use abi::{Answer, Value, json};

abi::guest!(agent);

/// Most rounds of one step.
const ROUNDS_MAX: u64 = 10_000;

fn agent(context: &Value) -> Answer {
    let configured = context["integration_config"]["steps"].as_str();
    let configured: Option<Value> = configured.and_then(|text| serde_json::from_str(text).ok());
    let steps = context["trigger_params"]["steps"].as_array();
    let steps = steps.or_else(|| configured.as_ref().and_then(Value::as_array));
    let Some(steps) = steps else {
        return Answer::Failure("params or configuration must have `steps`, a list".into());
    };
    // What a model would find at the head of its prompt.
    let preamble = &context["entity_state"]["recovery"]["preamble"];
    let heeds = steps.iter().any(|step| step["heed_preamble"] == true);
    if heeds && preamble.is_string() {
        return Answer::Success(json!({ "preamble": preamble }));
    }
    match all(steps) {
        Ok(()) => Answer::Success(json!({ "preamble": preamble })),
        Err(reason) => Answer::Failure(reason),
    }
}

fn all(steps: &[Value]) -> Result<(), String> {
    steps.iter().try_for_each(one)
}

fn one(step: &Value) -> Result<(), String> {
    if let Some(url) = step["call"].as_str() {
        let called = abi::http("GET", url, &[], "").map(drop);
        return if step["ignore_errors"] == true { Ok(()) } else { called };
    }
    if let Some(text) = step["status"].as_str() {
        return abi::status(text);
    }
    if let Some(steps) = step["repeat"].as_array() {
        let times = step["times"].as_u64().unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX);
        return (0..times).try_for_each(|_| all(steps));
    }
    match step.get("progress") {
        Some(progress) => abi::progress(progress),
        // Heeded before the first step.
        None if step["heed_preamble"] == true => Ok(()),
        None => Err(format!("no step: {step}")),
    }
}
