//! Recordings: their content and bounds, and what a replay finds. The tests of fixtures replay each
//! sample guest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::replay::{
    NotReplayed, RecordedEnd, RecordedRun, Replay, Replayed, ReplayedCall, Watcher,
};
use sandglass_host::{
    Context, Dispatch, DispatchDeadline, FixedSecrets, Host, KeepArguments, Manifest,
    RecordingLimits, Secret, Settings,
};
use sandglass_model::{Outcome, Recording, RunReport};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry};

/// Stores the time twice under a key, and returns.
const KEEPS_THE_TIME: &str = r#"(module
    (import "env" "host_get_time_millis" (func $time (result i64)))
    (import "env" "host_scratch_set" (func $set (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_set_result" (func $answer (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
    (data (i32.const 128) "key")
    (func $keep
        (i64.store (i32.const 256) (call $time))
        (drop (call $set (i32.const 128) (i32.const 3) (i32.const 256) (i32.const 8))))
    (func (export "run") (param i32 i32) (result i32)
        (call $keep)
        (call $keep)
        (call $answer (i32.const 16) (i32.const 46))
        (i32.const 0)))"#;
const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;
const READS_A_SECRET: &str = include_str!("../../../../guest-fixtures/wat/reads_a_secret.wat");

/// The secret whose first and last letters the guest looks for.
const SECRET: &str = "correct-hors";

fn host() -> Host {
    let settings = Settings { max_runs: 4, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

async fn recorded(host: &Host, guest: &str, limits: RecordingLimits) -> RunReport {
    let secrets: FixedSecrets = [("API_KEY".to_owned(), Secret::new(SECRET))].into_iter().collect();
    let manifest = Manifest::named("guest").scratch_bytes(1000).secrets(Arc::new(secrets));
    let guest = host.load(guest.as_bytes(), manifest).expect("a guest");
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_millis(300)))
        .recorded(limits);
    host.run(&guest, dispatch).await.expect("the host did its work")
}

fn whole(report: &RunReport) -> Arc<[u8]> {
    match &report.recording {
        Some(Recording::Whole(bytes)) => Arc::clone(bytes),
        other => panic!("{other:?}"),
    }
}

/// Replays a handler run of `guest`.
async fn again(
    host: &Host,
    guest: &str,
    recording: Arc<[u8]>,
    end: &RecordedEnd,
) -> Result<Replayed, NotReplayed> {
    let run = RecordedRun::read(recording).expect("a recording");
    let guest = host.load_for_replay(guest.as_bytes(), &run).expect("the guest");
    host.replay(&guest, Replay::new(&run, end)).await
}

#[tokio::test]
async fn the_first_call_with_other_arguments_is_named() {
    let host = host();
    let report = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    let end = RecordedEnd::from(&report);
    let recording = whole(&report);
    let same = again(&host, KEEPS_THE_TIME, Arc::clone(&recording), &end).await.expect("replayed");
    assert_eq!(same, Replayed { calls: 5, divergence: None });

    // Another time: the first byte after CBOR's mark of a long number.
    let mut forged = recording.to_vec();
    let answer = b"\x82\xf5\x1b";
    let at = forged.windows(3).position(|bytes| bytes == answer).expect("the time") + 10;
    forged[at] ^= 1;
    let other = again(&host, KEEPS_THE_TIME, forged.into(), &end).await.expect("replayed");
    let divergence = other.divergence.expect("the guest stores the time that it read");
    assert_eq!(divergence.call, Some(2));
    assert_eq!(divergence.what, "other arguments of a host call");
    assert!(divergence.recorded.contains("host_scratch_set"), "{divergence:?}");
    assert!(divergence.came.contains("\"key\""), "{divergence:?}");
}

/// Passes the same 32 MiB a thousand times in each call, and then too often.
const WRITES_OVERLAPPING_BUFFERS: &str = r#"(module
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_set_result" (func $answer (param i32 i32)))
    (memory (export "memory") 520)
    (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
    (func $name (param $buffer i32)
        (i32.store (i32.add (i32.const 33600000) (i32.mul (local.get $buffer) (i32.const 8)))
            (i32.const 0))
        (i32.store (i32.add (i32.const 33600004) (i32.mul (local.get $buffer) (i32.const 8)))
            (i32.const 33554432)))
    (func (export "run") (param i32 i32) (result i32)
        (local $i i32)
        (loop $buffers
            (call $name (local.get $i))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $buffers (i32.lt_u (local.get $i) (i32.const 1024))))
        (local.set $i (i32.const 0))
        (loop $calls
            ;; A file that is not open, so that only the arguments are read.
            (drop (call $write
                (i32.const 77) (i32.const 33600000) (i32.const 1024) (i32.const 0)))
            (drop (call $write
                (i32.const 1) (i32.const 33600000) (i32.const 50000) (i32.const 0)))
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (br_if $calls (i32.lt_u (local.get $i) (i32.const 20))))
        (call $answer (i32.const 16) (i32.const 46))
        (i32.const 0)))"#;

#[tokio::test]
async fn repeated_arguments_are_recorded_within_bounds() {
    let host = host();
    for arguments in [KeepArguments::No, KeepArguments::Yes] {
        let limits = RecordingLimits { arguments, ..RecordingLimits::default() };
        let guest = WRITES_OVERLAPPING_BUFFERS.as_bytes();
        let guest = host.load(guest, Manifest::named("guest")).expect("a guest");
        let entity = "Session/1".parse().expect("valid");
        // All arguments together have 670 GiB, which nothing could read in that time.
        let dispatch = Dispatch::new(entity, "Begin", Context::default())
            .deadline(DispatchDeadline::after(Duration::from_secs(20)))
            .recorded(limits);
        let report = host.run(&guest, dispatch).await.expect("the host did its work");
        let recording = whole(&report);
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{:?}", report.outcome);
        assert!(recording.len() < 8 << 20, "{}", recording.len());
        let end = RecordedEnd::from(&report);
        let same = again(&host, WRITES_OVERLAPPING_BUFFERS, recording, &end).await;
        assert_eq!(same.expect("replayed"), Replayed { calls: 41, divergence: None });
    }
}

#[tokio::test]
async fn a_divergence_shows_recorded_arguments_if_they_are_kept() {
    let host = host();
    let limits = RecordingLimits { arguments: KeepArguments::Yes, ..RecordingLimits::default() };
    let report = recorded(&host, KEEPS_THE_TIME, limits).await;
    let recording = whole(&report);
    let kept = recording.windows(5).filter(|bytes| bytes == b"\"key\"").count();
    assert_eq!(kept, 2, "once for each call");
}

#[tokio::test]
async fn an_end_that_is_not_the_recorded_one_is_a_divergence() {
    let host = host();
    let report = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    let end = RecordedEnd::from(&report);
    let failed = RecordedEnd { outcome: Outcome::Interrupted, ..end.clone() };
    let replayed = again(&host, KEEPS_THE_TIME, whole(&report), &failed).await.expect("replayed");
    assert_eq!(replayed.divergence.expect("it completes").what, "another outcome");

    let spun = recorded(&host, SPINS, RecordingLimits::default()).await;
    let end = RecordedEnd::from(&spun);
    let replayed = again(&host, SPINS, whole(&spun), &end).await.expect("replayed");
    assert_eq!(replayed, Replayed { calls: 0, divergence: None }, "it is stopped there");
}

#[tokio::test]
async fn a_recording_that_exceeds_its_bounds_is_dropped_with_a_reason() {
    let host = host();
    let few = RecordingLimits { calls: 4, ..RecordingLimits::default() };
    let report = recorded(&host, KEEPS_THE_TIME, few).await;
    let why = "it made more than 4 host calls".to_owned();
    assert_eq!(report.recording, Some(Recording::DecisionOnly { reason: why }));
    let small = RecordingLimits { bytes: 400, ..RecordingLimits::default() };
    let report = recorded(&host, KEEPS_THE_TIME, small).await;
    let why = "its host calls passed more than 400 bytes".to_owned();
    assert_eq!(report.recording, Some(Recording::DecisionOnly { reason: why }));
}

#[tokio::test]
async fn secrets_are_not_in_recordings_and_a_replay_needs_them_again() {
    let host = host();
    let limits = RecordingLimits { arguments: KeepArguments::Yes, ..RecordingLimits::default() };
    let report = recorded(&host, READS_A_SECRET, limits).await;
    let recording = whole(&report);
    assert!(!recording.windows(SECRET.len()).any(|bytes| bytes == SECRET.as_bytes()));
    let run = RecordedRun::read(recording).expect("a recording");
    assert_eq!(run.secrets().into_iter().collect::<Vec<_>>(), ["API_KEY"]);

    let guest = host.load_for_replay(READS_A_SECRET.as_bytes(), &run).expect("the guest");
    let end = RecordedEnd::from(&report);
    let given = |value: Option<&str>| {
        let secret = value.map(|value| ("API_KEY".to_owned(), Secret::new(value)));
        Replay::new(&run, &end).secrets(secret)
    };
    for wrong in [None, Some("another one")] {
        let refused = host.replay(&guest, given(wrong)).await;
        assert!(matches!(refused, Err(NotReplayed::Secret(_))), "{refused:?}");
    }
    let replayed = host.replay(&guest, given(Some(SECRET))).await.expect("replayed");
    assert_eq!(replayed, Replayed { calls: 2, divergence: None });
}

#[tokio::test]
async fn a_replay_can_be_watched_and_ended_early() {
    let host = host();
    let report = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    let run = RecordedRun::read(whole(&report)).expect("a recording");
    let guest = host.load_for_replay(KEEPS_THE_TIME.as_bytes(), &run).expect("the guest");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let watcher: Watcher = Arc::new(move |call: &ReplayedCall| {
        kept.lock().expect("no panic before").push((call.number, call.function.clone()));
    });
    let end = RecordedEnd::from(&report);
    let replay = Replay::new(&run, &end).until(3).watched_by(watcher);
    let replayed = host.replay(&guest, replay).await.expect("replayed");
    assert_eq!(replayed, Replayed { calls: 3, divergence: None });
    let seen = seen.lock().expect("no panic before").clone();
    let time = "host_get_time_millis".to_owned();
    assert_eq!(seen, [(1, time.clone()), (2, "host_scratch_set".to_owned()), (3, time)]);
}

#[tokio::test]
async fn another_module_is_refused() {
    let host = host();
    let report = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    let refused = again(&host, SPINS, whole(&report), &RecordedEnd::from(&report)).await;
    assert!(matches!(refused, Err(NotReplayed::Module { .. })), "{refused:?}");
}

#[tokio::test]
async fn a_replay_emits_no_telemetry_and_no_signals() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let settings = Settings { max_runs: 4, ..Settings::default() };
    let host = Host::builder().settings(settings).telemetry(telemetry).build().expect("a host");
    let report = recorded(&host, SPINS, RecordingLimits::default()).await;
    let dispatches = |exporter: &Exporter| {
        let scraped = exporter.render();
        let of_handlers = scraped.lines().filter(|line| line.contains("entity_type="));
        of_handlers.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let before = dispatches(&exporter);
    assert!(before.iter().any(|line| line.contains("deadline_exceeded")), "{before:?}");
    let end = RecordedEnd::from(&report);
    let replayed = again(&host, SPINS, whole(&report), &end).await.expect("replayed");
    assert_eq!(replayed.divergence, None);
    assert_eq!(dispatches(&exporter), before);
}

/// A damaged recording is refused, or diverges, or is replayed.
#[tokio::test]
async fn a_recording_of_any_bytes_does_no_harm() {
    let host = host();
    let report = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    let (recording, end) = (whole(&report), RecordedEnd::from(&report));
    let mut came: BTreeMap<&str, u32> = BTreeMap::new();
    for at in 0..recording.len() {
        let mut flipped = recording.to_vec();
        flipped[at] ^= 0xff;
        for forged in [flipped, recording[..at].to_vec()] {
            let Ok(run) = RecordedRun::read(forged.into()) else {
                *came.entry("refused").or_default() += 1;
                continue;
            };
            // Its limits may have any value now.
            let Ok(guest) = host.load_for_replay(KEEPS_THE_TIME.as_bytes(), &run) else { continue };
            let replayed = host.replay(&guest, Replay::new(&run, &end)).await;
            let kind = match replayed {
                Ok(Replayed { divergence: None, .. }) => "played",
                Ok(_) => "diverged",
                Err(_) => "refused",
            };
            *came.entry(kind).or_default() += 1;
        }
    }
    assert!(came["refused"] > 0 && came["diverged"] > 0, "{came:?}");
}

#[tokio::test]
async fn handlers_are_not_recorded_while_there_is_no_memory_for_recordings() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    // What one recording takes at its beginning.
    let settings = Settings { max_runs: 4, recording_bytes: 64 << 10, ..Settings::default() };
    let host = Host::builder().settings(settings).telemetry(telemetry).build().expect("a host");
    let first = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    assert!(!whole(&first).is_empty());
    for _ in 0..2 {
        let next = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
        assert!(matches!(next.outcome, Outcome::Completed(_)), "it runs all the same");
        let Some(Recording::DecisionOnly { reason }) = next.recording else { panic!("{next:?}") };
        assert!(reason.contains("recordings of other runs"), "{reason}");
    }
    let scraped = exporter.render();
    assert!(scraped.contains("temper_handler_recordings_refused_total 2"), "{scraped}");
    let kept = first.clone();
    drop(first);
    let next = recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await;
    assert!(matches!(next.recording, Some(Recording::DecisionOnly { .. })), "a clone has it");
    drop((kept, next));
    whole(&recorded(&host, KEEPS_THE_TIME, RecordingLimits::default()).await);
}
