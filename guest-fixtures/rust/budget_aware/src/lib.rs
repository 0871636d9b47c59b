//! Works in small steps for as long as its budget lasts, stops in time, and
//! answers a typed failure that says how far it came.

use abi::{Answer, Value, json};

/// Kept for answering, in milliseconds: more than a step, and than a busy host
/// takes to collect the answer.
const RESERVE_MS: i64 = 100;
/// Length of one step of its work, in milliseconds.
const STEP_MS: i64 = 10;

abi::guest!(work);

fn work(context: &Value) -> Answer {
    let started = abi::time_millis();
    let Some(remaining) = context["deadline_remaining_ms"].as_i64() else {
        return Answer::Failure("the context has no `deadline_remaining_ms`".into());
    };
    let stop_at = started + remaining - RESERVE_MS;
    let mut steps: u32 = 0;
    while abi::time_millis() < stop_at {
        step();
        steps += 1;
    }
    Answer::TypedFailure(json!({
        "version": 1,
        "category": "budget",
        "code": "stopped_before_deadline",
        "retryability": "retryable",
        "outcome": "partial",
        "details": { "steps": steps, "deadline_remaining_ms": remaining },
    }))
}

fn step() {
    let end = abi::time_millis() + STEP_MS;
    while abi::time_millis() < end {}
}
