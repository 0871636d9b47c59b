//! An agent that does what its params or its configuration tell it, step by step, as a
//! model would: it calls tools, tells how far it is, and reads what went wrong before.

use sandglass_guest::{Context, Failure, Value, handler, http, json, progress};
use serde::Deserialize;

/// Most rounds of one step.
const ROUNDS_MAX: u64 = 10_000;

#[derive(Deserialize)]
struct Input {
    steps: Option<Vec<Step>>,
}

/// One step: what it has of these it does, the first of them.
#[derive(Deserialize)]
struct Step {
    call: Option<String>,
    #[serde(default)]
    ignore_errors: bool,
    status: Option<String>,
    repeat: Option<Vec<Self>>,
    times: Option<u64>,
    progress: Option<Value>,
    #[serde(default)]
    heed_preamble: bool,
    #[serde(flatten)]
    other: serde_json::Map<String, Value>,
}

#[derive(Deserialize)]
struct State {
    #[serde(default)]
    recovery: Value,
}

#[handler(action = "Finish")]
fn agent(input: Input, context: &Context) -> Result<Value, Failure> {
    let Some(steps) = input.steps.map_or_else(|| configured(context), |steps| Ok(Some(steps)))?
    else {
        return Err(Failure::plain("params or configuration must have `steps`, a list"));
    };
    // What a model would find at the head of its prompt.
    let preamble = context.state::<State>()?.recovery["preamble"].take();
    let heeds = steps.iter().any(|step| step.heed_preamble);
    if !(heeds && preamble.is_string()) {
        all(&steps)?;
    }
    Ok(json!({ "preamble": preamble }))
}

fn configured(context: &Context) -> Result<Option<Vec<Step>>, Failure> {
    Ok(context.config("steps").map(serde_json::from_str).transpose()?)
}

fn all(steps: &[Step]) -> Result<(), Failure> {
    steps.iter().try_for_each(one)
}

fn one(step: &Step) -> Result<(), Failure> {
    if let Some(url) = &step.call {
        let called = http::Request::get(url).send();
        return if step.ignore_errors { Ok(()) } else { Ok(called.map(drop)?) };
    }
    if let Some(text) = &step.status {
        progress::status(text);
        return Ok(());
    }
    if let Some(steps) = &step.repeat {
        let times = step.times.unwrap_or(ROUNDS_MAX).min(ROUNDS_MAX);
        return (0..times).try_for_each(|_| all(steps));
    }
    match &step.progress {
        Some(progress) => Ok(progress::emit(progress)?),
        // Heeded before the first step.
        None if step.heed_preamble => Ok(()),
        None => Err(Failure::plain(format!("no step: {}", Value::Object(step.other.clone())))),
    }
}
