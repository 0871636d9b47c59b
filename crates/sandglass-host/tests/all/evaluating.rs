//! The evaluation of specs that guests pass. What decides is the embedder's; here it is a script.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, RecordingLimits, RunReport,
    Settings, SpecEvaluator, SpecQuery,
};
use sandglass_model::Recording;
use serde_json::{Value, json};

use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Evaluates a spec of so many bytes, and sets the result or the last error as its status.
fn evaluates(spec_len: u32) -> String {
    format!(
        r#"(module
        (import "env" "host_evaluate_spec"
            (func $evaluate (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 8)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 32) "Written")
        (data (i32.const 48) "Send")
        (data (i32.const 64) "{{\"a\":1}}")
        (data (i32.const 8192) "the spec")
        (func $call (param $state i32) (param $out_len i32) (result i32)
            (call $evaluate (i32.const 8192) (i32.const {spec_len}) (local.get $state) (i32.const 7)
                (i32.const 48) (i32.const 4) (i32.const 64) (i32.const 7)
                (i32.const 1024) (local.get $out_len)))
        (func (export "run") (param i32 i32) (result i32) (local $n i32)
            (if (i32.ne (call $call (i32.const -1) (i32.const 999)) (i32.const -1))
                (then unreachable))
            (local.set $n (call $call (i32.const 32) (i32.const 999)))
            (if (i32.eq (local.get $n) (i32.const -1))
                (then (local.set $n (call $error (i32.const 1024) (i32.const 1024))))
                (else (if (i32.ne (call $call (i32.const 32) (i32.const 5)) (i32.const -2))
                    (then unreachable))))
            (drop (call $status (i32.const 1024) (local.get $n)))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

/// Returns the query, panics, or waits forever.
#[derive(Debug)]
enum Script {
    Echo,
    Panic,
    /// Until the sender is dropped.
    Hang(Mutex<Receiver<()>>),
}

impl SpecEvaluator for Script {
    fn evaluate(&self, query: &SpecQuery) -> Value {
        let SpecQuery { spec, state, action, params } = query;
        match self {
            Self::Echo => {}
            Self::Panic => panic!("out of cheese"),
            Self::Hang(released) => {
                let released = released.lock().expect("no panic");
                released.recv().unwrap_or_default();
            }
        }
        json!([spec, state, action, params])
    }
}

fn host(evaluator: Option<Script>) -> Host {
    let builder = Host::builder().settings(Settings { max_runs: 2, ..Settings::default() });
    let builder = match evaluator {
        Some(evaluator) => builder.spec_evaluator(Arc::new(evaluator)),
        None => builder,
    };
    builder.build().expect("a host")
}

async fn run(host: &Host, guest: &str, budget: Duration) -> (RunReport, Arc<Received>) {
    let received = Received::new();
    let guest = host.load(guest.as_bytes(), Manifest::named("evaluates")).expect("a guest");
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
        .recorded(RecordingLimits::default())
        .signals(Arc::clone(&received) as _);
    (host.run(&guest, dispatch).await.expect("it ran"), received)
}

async fn status(evaluator: Option<Script>, spec_len: u32) -> String {
    let (report, received) = run(&host(evaluator), &evaluates(spec_len), LONG).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    received.status()
}

#[tokio::test]
async fn a_guest_gets_what_the_evaluator_decides_and_a_replay_what_it_decided() {
    let (host, guest) = (host(Some(Script::Echo)), evaluates(8));
    let (report, received) = run(&host, &guest, LONG).await;
    assert_eq!(received.status(), r#"["the spec","Written","Send","{\"a\":1}"]"#);
    let Some(Recording::Whole(recording)) = &report.recording else { panic!("{report:?}") };
    let recorded = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    let elsewhere = self::host(None);
    let guest = elsewhere.load_for_replay(guest.as_bytes(), &recorded).expect("the guest");
    let end = RecordedEnd::from(&report);
    let replayed = elsewhere.replay(&guest, Replay::new(&recorded, &end)).await;
    assert_eq!(replayed.expect("it is replayed").divergence, None);
}

#[tokio::test]
async fn a_spec_that_cannot_be_evaluated_is_a_result_that_says_why() {
    for (evaluator, why) in [
        (None, "this host evaluates no specs, because its embedder provides no evaluator"),
        (Some(Script::Panic), "the evaluation of the spec failed inside the host"),
    ] {
        let result: Value = serde_json::from_str(&status(evaluator, 8).await).expect("JSON");
        assert_eq!(result, json!({ "success": false, "error": why }));
    }
}

#[tokio::test]
async fn a_spec_of_more_than_256_kib_is_refused_before_it_is_read() {
    let most = status(Some(Script::Panic), 256 << 10).await;
    assert!(most.contains("failed inside the host"), "{most}");
    let refused = status(Some(Script::Panic), (256 << 10) + 1).await;
    assert!(refused.contains("the spec") && refused.contains("262144"), "{refused}");
}

#[tokio::test]
async fn an_evaluation_that_takes_too_long_delays_no_deadline() {
    let (release, released) = mpsc::channel();
    let host = host(Some(Script::Hang(Mutex::new(released))));
    let (report, _) = run(&host, &evaluates(8), Duration::from_millis(100)).await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "host_evaluate_spec");
    drop(release);
}

/// Counts the evaluations that have begun, and lets none end until the sender is dropped.
#[derive(Debug)]
struct Crowd {
    begun: Arc<AtomicUsize>,
    released: Mutex<Receiver<()>>,
}

impl SpecEvaluator for Crowd {
    fn evaluate(&self, _: &SpecQuery) -> Value {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.released.lock().expect("no panic").recv().unwrap_or_default();
        json!("released")
    }
}

#[tokio::test]
async fn at_most_four_specs_are_evaluated_at_a_time_and_others_wait_until_their_deadlines() {
    let (release, released) = mpsc::channel();
    let begun = Arc::new(AtomicUsize::new(0));
    let crowd = Crowd { begun: Arc::clone(&begun), released: Mutex::new(released) };
    // Evaluations are no blocking calls of the embedder's functions.
    let settings = Settings { max_runs: 8, max_blocking_calls: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).spec_evaluator(Arc::new(crowd));
    let (host, guest) = (host.build().expect("a host"), evaluates(8));
    let budget = Duration::from_secs(2);
    let runs = std::iter::repeat_with(|| run(&host, &guest, budget)).take(6);
    for (report, _) in futures_util::future::join_all(runs).await {
        let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(exceeded.dying_span, "host_evaluate_spec");
    }
    assert_eq!(begun.load(Ordering::SeqCst), 4);
    drop(release);
    let (report, received) = run(&host, &guest, LONG).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(received.status(), "\"released\"");
}

#[tokio::test]
async fn a_spec_that_would_need_more_memory_than_the_host_may_hold_is_not_evaluated() {
    let guest = evaluates(8).replace("\"the spec\"", &format!("\"{}\"", "[".repeat(20_000)));
    let guest =
        guest.replace("(i32.const 8192) (i32.const 8)", "(i32.const 8192) (i32.const 20000)");
    let (report, received) = run(&host(Some(Script::Panic)), &guest, LONG).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let status = received.status();
    assert!(status.contains("`limits.host_memory`"), "{status}");
}
