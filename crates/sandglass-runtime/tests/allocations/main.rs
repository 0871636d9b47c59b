//! How much memory one dispatch allocates between its handler's report and the journal. It prints
//! the figures; see them by `cargo test -p sandglass-runtime --test allocations -- --nocapture`.
//!
//! It is a process of its own, because it counts the allocations of all threads.

#![allow(clippy::print_stdout, reason = "the figures are for people")]

mod counting;

use std::sync::Arc;

use sandglass_journal::MemoryJournal;
use sandglass_liveness::Spec;
use sandglass_model::{Cause, Completion, EntityRef, Object, Outcome, Rejection, RejectionKind};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture, Runtime, not_run};

use counting::counted;

/// Dispatches before those that are counted: what is allocated once is allocated by then.
const WARM_UP: u64 = 10;
/// Dispatches that are counted.
const COUNTED: u64 = 20;
/// The size of each result.
const RESULT_BYTES: usize = 1 << 20;

const SPEC: &str = r#"
[automaton]
name = "Worker"
states = ["Idle", "Busy"]
initial = "Idle"
allow_indefinite_states = ["Idle", "Busy"]

[[action]]
name = "Work"
from = ["Idle"]
to = "Busy"
effect = "trigger work"

[[action]]
name = "Finish"
from = ["Busy"]
to = "Idle"

[[integration]]
name = "work"
trigger = "work"
module = "work"
deadline = "10s"
on_success = "Finish"
on_failure = "Finish"
on_timeout = "Finish"
on_interrupted = "Finish"
on_cancelled = "Finish"
"#;

/// Handlers that return a result of this many bytes at once.
struct Returning(usize);

impl Handlers for Returning {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let rejection = Rejection { kind: RejectionKind::HostUnavailable, message: String::new() };
        let mut report = not_run(&run.dispatched, rejection);
        report.outcome = Outcome::Completed(Completion {
            action: None,
            params: Object::new(),
            result: "x".repeat(self.0).into(),
        });
        report.cause = Cause::Returned;
        Box::pin(std::future::ready(report))
    }
}

/// Allocations and bytes of each dispatch whose result has `result_bytes`.
async fn each(result_bytes: usize, is_watched: bool) -> [u64; 2] {
    let spec = Spec::parse(SPEC).spec.expect("a valid spec");
    let builder = Runtime::builder(Arc::new(MemoryJournal::new())).specs([spec]);
    let runtime = builder.handlers(Arc::new(Returning(result_bytes))).build().await;
    let runtime = runtime.expect("an empty journal");
    let subscription = is_watched.then(|| runtime.subscribe());
    let worker: EntityRef = "Worker/1".parse().expect("a name");
    runtime.create(worker.clone()).await.expect("created");
    let mut before = [0; 2];
    for dispatch in 0..WARM_UP + COUNTED {
        if dispatch == WARM_UP {
            before = counted();
        }
        runtime.send(&worker, "Work", Object::new()).await.expect("taken");
        runtime.settled(&worker).await.expect("it is there");
    }
    let after = counted();
    drop(subscription);
    [0, 1].map(|at| (after[at] - before[at]) / COUNTED)
}

#[tokio::test]
async fn a_result_is_not_copied_between_its_handler_and_the_journal() {
    // One is the handler's own, and three are the buffer of the record's JSON, which grows by
    // doubling. A subscriber gets the report, and so one more.
    for (is_watched, copies_max) in [(false, 4), (true, 5)] {
        let small = each(1, is_watched).await;
        let large = each(RESULT_BYTES, is_watched).await;
        println!("allocations and bytes of one dispatch (watched: {is_watched})");
        println!("  with a result of 1 byte: {small:?}");
        println!("  with a result of {RESULT_BYTES} bytes: {large:?}");
        let copies = (large[1] - small[1]) / RESULT_BYTES as u64;
        assert!(copies <= copies_max, "{copies} copies (watched: {is_watched})");
    }
}
