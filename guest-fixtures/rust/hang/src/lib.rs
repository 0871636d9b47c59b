//! Sleeps for an hour with its standard library, which is a WASI poll.

use std::thread;
use std::time::Duration;

use sandglass_guest::{Failure, Value, handler, json};

#[handler(action = "Finish")]
#[allow(clippy::disallowed_methods, reason = "waiting for nothing is the point")]
fn hang() -> Result<Value, Failure> {
    thread::sleep(Duration::from_secs(3600));
    Ok(json!({ "slept_seconds": 3600 }))
}
