//! Works in small steps for as long as its budget lasts, stops in time, and
//! answers a typed failure that says how far it came.

use std::time::Duration;

use sandglass_guest::{Failure, deadline, handler};
use serde::Serialize;

/// Kept for answering: more than a step, and than a busy host takes to collect the answer.
const RESERVE: Duration = Duration::from_millis(100);
/// Length of one step of its work.
const STEP: Duration = Duration::from_millis(10);

#[derive(Serialize)]
struct Done {
    steps: u32,
    deadline_remaining_ms: u128,
}

#[handler]
fn work() -> Result<(), Failure> {
    let deadline_remaining_ms = deadline::remaining().as_millis();
    let mut steps: u32 = 0;
    while deadline::remaining() > RESERVE {
        step();
        steps += 1;
    }
    Err(Failure::typed("budget", "stopped_before_deadline")
        .retryable()
        .outcome("partial")
        .details(Done { steps, deadline_remaining_ms }))
}

fn step() {
    let end = deadline::remaining().saturating_sub(STEP);
    while deadline::remaining() > end {}
}
