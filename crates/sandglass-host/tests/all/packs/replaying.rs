//! Replays of recorded invocations, and their divergences.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay, Replayed};
use sandglass_host::{Host, Manifest, Outcome};
use sandglass_model::{GuestLimits, ModuleHash, OutcomeKind, Recording, RunReport};
use serde_json::json;

use super::kit::{LONG, Pack, SHORT, World, call, dispatch, host, limits, load};

/// A pack that returns everything that it reads, in this order: the time, random bytes, a channel, the
/// status of a write, and the value of its interrupt.
fn asks_for_everything() -> Pack {
    Pack::invoking(
        "(call $begin) (call $say_byte (i32.const 91))
         (call $say_number (call $now)) (call $say_byte (i32.const 44))
         (call $random (i32.const 512) (i32.const 16))
         (call $say_hex (i32.const 512) (i32.const 16)) (call $say_byte (i32.const 44))
         (call $say (call $channel_read (i32.const 32) (i32.const 8))) (call $say_byte (i32.const 44))
         (call $say_number (i64.extend_i32_u (call $channel_write
             (i32.const 32) (i32.const 8) (i32.const 256) (i32.const 11))))
         (call $say_byte (i32.const 44))
         (call $log (i32.const 2) (i32.const 32) (i32.const 8))
         (call $say (call $interrupt (i32.const 256) (i32.const 11)))
         (call $say_byte (i32.const 93)) (call $end)",
    )
    .with_text(r#"{"key":"k"}"#)
}

fn world() -> Arc<World> {
    let mut world = World { resumes_with: Some(json!({"ok": [true]})), ..World::default() };
    world.channels.get_mut().expect("no panic before").insert("test.one".to_owned(), json!("held"));
    Arc::new(world)
}

async fn recorded(
    host: &Host,
    pack: &Pack,
    (world, limits, budget): (&Arc<World>, GuestLimits, Duration),
) -> RunReport {
    let manifest = Manifest::named("pack").limits(limits);
    let pack = host.load(pack.text().as_bytes(), manifest).expect("a pack");
    host.run(&pack, dispatch(call(world), budget)).await.expect("it ran")
}

fn whole(report: &RunReport) -> Arc<[u8]> {
    match &report.recording {
        Some(Recording::Whole(bytes)) => Arc::clone(bytes),
        other => panic!("{other:?}"),
    }
}

/// Replays the recording of `report` with `pack` instead of the recorded pack.
async fn again(host: &Host, report: &RunReport, ran: &Pack, pack: &Pack) -> Replayed {
    let [ran, came] = [ran, pack].map(|pack| ModuleHash::of(pack.text().as_bytes()).to_string());
    let recording = whole(report);
    let at = recording.windows(ran.len()).position(|bytes| bytes == ran.as_bytes());
    let at = at.expect("the hash of what ran");
    let mut forged = recording.to_vec();
    forged[at..at + ran.len()].copy_from_slice(came.as_bytes());
    let run = RecordedRun::read(forged.into()).expect("a recording");
    let pack = host.load_for_replay(pack.text().as_bytes(), &run).expect("the pack");
    let end = RecordedEnd::from(report);
    host.replay(&pack, Replay::new(&run, &end)).await.expect("replayed")
}

#[tokio::test]
async fn an_invocation_is_replayed_with_everything_that_it_read() {
    let host = host();
    for pack in [asks_for_everything(), asks_for_everything().packed()] {
        let report = recorded(&host, &pack, (&world(), limits(), LONG)).await;
        let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
        let output = &completion.result["output"];
        assert_eq!(
            (&output[2], &output[3], &output[4]),
            (&json!("held"), &json!(0), &json!({"ok": [true]}))
        );
        let replayed = again(&host, &report, &pack, &pack).await;
        assert_eq!(replayed, Replayed { calls: 6, divergence: None });
    }
}

#[tokio::test]
async fn every_ending_is_replayed() {
    let host = host();
    let suspends = Pack::invoking("(call $interrupt (i32.const 256) (i32.const 11)) unreachable")
        .with_text(r#"{"key":"k"}"#);
    let after_a_call = |rest: &str| {
        Pack::invoking(&format!("(drop (call $now)) {rest} (i32.const 0) (i32.const 0)"))
    };
    let second = "(if (global.get $asked) (then (loop (br 0))))
        (global.set $asked (i32.const 1)) (i32.const 16384)";
    let spins_in_alloc = Pack {
        alloc: second,
        more: "(global $asked (mut i32) (i32.const 0))".to_owned(),
        ..Pack::invoking("(call $channel_read (i32.const 32) (i32.const 8))")
    };
    let fuel = GuestLimits { fuel: Some(100_000), ..limits() };
    for (pack, kind, limits, budget) in [
        (suspends.clone(), OutcomeKind::Completed, limits(), LONG),
        (suspends.packed(), OutcomeKind::Completed, limits(), LONG),
        (after_a_call(""), OutcomeKind::Failed, limits(), LONG),
        (after_a_call("unreachable"), OutcomeKind::Trapped, limits(), LONG),
        (
            after_a_call("(call $random (i32.const -1) (i32.const 1))"),
            OutcomeKind::Trapped,
            limits(),
            LONG,
        ),
        (
            after_a_call("(drop (memory.grow (i32.const 100))) unreachable"),
            OutcomeKind::Limit,
            limits(),
            LONG,
        ),
        (after_a_call("(loop (br 0))"), OutcomeKind::Limit, fuel, LONG),
        (after_a_call("(loop (br 0))"), OutcomeKind::TimedOut, limits(), SHORT),
        (spins_in_alloc, OutcomeKind::TimedOut, limits(), SHORT),
        (Pack { alloc: "(i32.const 0)", ..Pack::default() }, OutcomeKind::Trapped, limits(), LONG),
    ] {
        let world = World::default();
        world.channels.lock().expect("no panic before").insert("test.one".to_owned(), json!(1));
        let report = recorded(&host, &pack, (&Arc::new(world), limits, budget)).await;
        assert_eq!(report.outcome.kind(), kind, "{report:?}");
        let replayed = again(&host, &report, &pack, &pack).await;
        assert_eq!(replayed.divergence, None, "{kind}");
        assert_eq!(replayed.calls, report.host_calls.count, "{kind}");
    }
}

#[tokio::test]
async fn a_pack_that_behaves_differently_diverges_at_a_named_call_or_end() {
    let host = host();
    let ran = asks_for_everything();
    let report = recorded(&host, &ran, (&world(), limits(), LONG)).await;
    let changed = |from: &str, to: &str| {
        let mut other = ran.clone();
        other.invoke = other.invoke.replacen(from, to, 1);
        assert_ne!(other.invoke, ran.invoke, "{from}");
        other
    };
    let other_name = changed(
        "(call $say (call $channel_read (i32.const 32)",
        "(call $say (call $channel_read (i32.const 48)",
    );
    let other_call = changed("$channel_read", "$variable_get");
    let another_call = changed("(call $log", "(drop (call $now)) (call $log");
    let less = changed("(call $say (call $interrupt (i32.const 256) (i32.const 11)))", "");
    let other_end = changed(
        "(call $say_byte (i32.const 93))",
        "(call $say_byte (i32.const 44)) (call $say_byte (i32.const 48)) (call $say_byte (i32.const 93))",
    );
    for (pack, call, what) in [
        (other_name, Some(3), "other arguments of a host call"),
        (other_call, Some(3), "another host call"),
        (another_call, Some(5), "another host call"),
        (less, Some(6), "a host call that is missing"),
        (other_end, None, "another outcome"),
    ] {
        let divergence = again(&host, &report, &ran, &pack).await.divergence.expect(what);
        assert_eq!((divergence.call, &*divergence.what), (call, what), "{divergence:?}");
    }
}

#[tokio::test]
async fn a_replay_has_the_recorded_request_and_index() {
    let host = host();
    let pack = Pack::invoking(
        "(if (local.get $index) (then)) (call $completed (local.get $ptr) (local.get $len))",
    );
    let report = recorded(&host, &pack, (&Arc::default(), limits(), LONG)).await;
    let mut recording = whole(&report).to_vec();
    let at = recording.windows(8).position(|bytes| bytes == b"[1,null]").expect("the request");
    recording[at + 1] = b'2';
    let run = RecordedRun::read(recording.into()).expect("a recording");
    let guest = host.load_for_replay(pack.text().as_bytes(), &run).expect("the pack");
    let end = RecordedEnd::from(&report);
    let replayed = host.replay(&guest, Replay::new(&run, &end)).await.expect("replayed");
    let divergence = replayed.divergence.expect("it answers with its request");
    assert!(divergence.came.contains("[2,null]"), "{divergence:?}");
}

/// A damaged recording is refused, or diverges, or is replayed.
#[tokio::test]
async fn a_recording_of_any_bytes_does_no_harm() {
    let host = host();
    let pack = asks_for_everything();
    let report = recorded(&host, &pack, (&world(), limits(), LONG)).await;
    let (recording, end) = (whole(&report), RecordedEnd::from(&report));
    let mut diverged = 0;
    for at in 0..recording.len() {
        let mut flipped = recording.to_vec();
        flipped[at] ^= 0xff;
        for forged in [flipped, recording[..at].to_vec()] {
            let Ok(run) = RecordedRun::read(forged.into()) else { continue };
            // Its limits may have any value now.
            let Ok(guest) = host.load_for_replay(pack.text().as_bytes(), &run) else { continue };
            let replayed = host.replay(&guest, Replay::new(&run, &end)).await;
            diverged += u32::from(replayed.is_ok_and(|replayed| replayed.divergence.is_some()));
        }
    }
    assert!(diverged > 0);
    load(&host, &pack.text());
}
