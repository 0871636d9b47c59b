//! Hashing large streams, during which other guests must be executed.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Outcome, Settings, Streams,
};
use sandglass_model::Cause;

use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(120);

/// Reports its start, and hashes the stream `given`.
const HASHES: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "env" "host_hash_stream"
        (func $hash (param i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "given")
    (data (i32.const 16) "sha256")
    (data (i32.const 32) "{\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 16) (i32.const 6)))
        (drop (call $hash (i32.const 8) (i32.const 5) (i32.const 16) (i32.const 6)
            (i32.const 1024) (i32.const 100)))
        (call $set (i32.const 32) (i32.const 16))
        i32.const 0))"#;

const FINISHES: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 32) "{\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 32) (i32.const 16)) i32.const 0))"#;

fn load(host: &Host, guest: &str) -> Integration {
    host.load(guest.as_bytes(), Manifest::default()).expect("a guest")
}

fn dispatch(budget: Duration) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
}

/// More bytes than can be hashed in the time of a handler: pages of zeros, which take no memory until
/// they are written.
fn large() -> Streams {
    let streams = Streams::new();
    streams.put("given", vec![0; 2 << 30]);
    streams
}

#[tokio::test]
async fn hashing_a_large_stream_yields_to_others_and_can_be_stopped() {
    let settings = Settings { max_runs: 2, guest_threads: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let (hashes, finishes) = (load(&host, HASHES), load(&host, FINISHES));
    let received = Received::new();
    let hashing = dispatch(LONG).streams(large()).signals(Arc::clone(&received) as _);
    let stop = hashing.stop_handle();
    let (report, ()) = tokio::join!(host.run(&hashes, hashing), async {
        received.wait().await;
        // The only thread is hashing by now.
        let other = host.dispatch(&finishes, dispatch(LONG)).await.expect("it ran");
        assert!(matches!(other, Outcome::Completed(_)), "{other:?}");
        stop.stop(Cause::Cancel, "");
    });
    let report = report.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Cancelled(_)), "it hashed first: {report:?}");
    assert_eq!(report.dying_span.as_deref(), Some("host_hash_stream"));
}

#[tokio::test]
async fn a_handler_is_killed_in_the_hashing_of_a_large_stream() {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let hashing = dispatch(Duration::from_millis(50)).streams(large());
    let report = host.run(&load(&host, HASHES), hashing).await.expect("it ran");
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "host_hash_stream");
}
