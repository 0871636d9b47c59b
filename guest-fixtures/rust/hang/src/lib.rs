//! Sleeps for an hour with its standard library, which is a WASI poll.

use std::thread;
use std::time::Duration;

use abi::{Answer, Value, json};

abi::guest!(hang);

#[allow(clippy::disallowed_methods, reason = "waiting for nothing is the point")]
fn hang(_context: &Value) -> Answer {
    thread::sleep(Duration::from_secs(3600));
    Answer::Success(json!({ "slept_seconds": 3600 }))
}
