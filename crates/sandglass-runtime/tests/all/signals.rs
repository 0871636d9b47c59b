//! Signals: they bump no sequence, and only those from elsewhere restart a timer.

use std::sync::atomic::Ordering;

use sandglass_liveness::Refusal;
use sandglass_model::{Event, Sequence};
use sandglass_runtime::{ActorError, SIGNALS_RECORDED_PER_RUN_MAX, Signal};
use serde_json::json;

use crate::world::{Act, World, completed, one, pass, soon, two};

pub(crate) fn partner() -> Signal {
    Signal { name: "PartnerReplied".to_owned(), from: Some(two()), payload: json!("hello") }
}

fn outside() -> Signal {
    Signal { from: None, ..partner() }
}

#[tokio::test(start_paused = true)]
async fn a_listed_signal_from_elsewhere_restarts_the_state_timer() {
    for signal in [partner(), outside()] {
        let world = World::of(&[]).await;
        world.send("Wait").await.expect("taken");
        pass(200).await;
        world.runtime.signal(&one(), signal).await.expect("small");
        assert_eq!(world.now().await.sequence, Sequence(1));
        assert_eq!(world.until("Abandoned").await, 300);
        world.replays().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_other_signal_restarts_the_state_timer() {
    for signal in [
        Signal { from: Some(one()), ..partner() },
        Signal { name: "Heartbeat".to_owned(), ..partner() },
        Signal { name: "Heartbeat".to_owned(), ..outside() },
    ] {
        let world = World::of(&[]).await;
        world.send("Wait").await.expect("taken");
        pass(200).await;
        world.runtime.signal(&one(), signal).await.expect("small");
        assert_eq!(world.until("Abandoned").await, 100);
        world.replays().await;
    }
}

#[tokio::test(start_paused = true)]
async fn progress_is_recorded_without_a_sequence_and_its_handler_still_ends() {
    let world = World::of(&[Act::Tell(3)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    let before = world.now().await.sequence;
    let done = world.runtime.settled(&one()).await.expect("it lives");
    assert_eq!((&*done.state, done.sequence), ("Done", before.next()));
    let recorded: Vec<_> = world
        .records()
        .await
        .into_iter()
        .filter_map(|record| match record.event {
            Event::Signal { name, payload, resets_idle, dispatch, .. } => {
                assert!(!resets_idle && dispatch.is_some() && name == "progress");
                Some((payload, record.sequence))
            }
            _ => None,
        })
        .collect();
    assert_eq!(recorded, [(json!(0), before), (json!(1), before), (json!(2), before)]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn signals_are_recorded_up_to_a_bound_and_all_published() {
    let world = World::of(&[Act::Tell(500)]).await;
    let mut seen = world.runtime.subscribe();
    world.send("ProcessToolCalls").await.expect("taken");
    world.until("Done").await;
    let kinds = world.kinds().await;
    let recorded = kinds.iter().filter(|kind| **kind == "signal").count();
    assert_eq!(recorded, SIGNALS_RECORDED_PER_RUN_MAX as usize);
    let mut published = 0;
    while let Some(Some(event)) = soon(seen.next()).await {
        match event.expect("nothing was missed") {
            sandglass_runtime::Event::UnrecordedSignal { .. } => published += 1,
            sandglass_runtime::Event::Recorded(record) if record.event.kind() == "signal" => {
                published += 1;
            }
            _ => {}
        }
    }
    assert_eq!(published + world.script.refused_signals.load(Ordering::SeqCst), 500);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_is_too_large_is_refused() {
    let world = World::of(&[]).await;
    let large = Signal { payload: json!("x".repeat(100_000)), ..partner() };
    assert!(world.runtime.signal(&one(), large).await.is_err());
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_status_behind_the_bound_is_recorded_at_most_once_a_second() {
    let world = World::of(&[Act::StatusesAndAnswer { count: 2_000, each_ms: 50 }]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    // Five seconds for the first hundred, then 95 more.
    pass(99).await;
    let of_signals = async || {
        let records = world.records().await.into_iter();
        let signals = records.filter_map(|record| match record.event {
            Event::Signal { payload, .. } => Some(payload),
            _ => None,
        });
        signals.collect::<Vec<_>>()
    };
    let recorded = of_signals().await.len();
    let bound = SIGNALS_RECORDED_PER_RUN_MAX as usize;
    assert!((bound + 80..=bound + 96).contains(&recorded), "{recorded}");
    // It ends between two of these records, and the last status comes before its end.
    world.until("Done").await;
    assert_eq!(of_signals().await.last(), Some(&json!(1_999)));
    let kinds = world.kinds().await;
    let end = kinds.iter().position(|kind| *kind == "ended").expect("it ended");
    assert!(kinds[end..].iter().all(|kind| *kind != "signal"), "{kinds:?}");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_signal_from_outside_that_has_no_effect_is_refused() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    let reserved = Signal { name: "host_call".to_owned(), ..outside() };
    let refused = world.runtime.signal(&one(), reserved).await.expect_err("it is reserved");
    assert!(refused.to_string().contains("it is reserved"), "{refused}");
    world.send("ProcessToolCalls").await.expect("taken");
    world.runtime.signal(&one(), outside()).await.expect("it lives");
    world.until("Done").await;
    let refused = world.runtime.signal(&one(), outside()).await.expect_err("it has ended");
    let ActorError::Refused { refusal: Refusal::NotTaken { action, state }, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((&*action, &*state), ("PartnerReplied", "Done"));
    assert_eq!(world.kinds().await.iter().filter(|kind| **kind == "signal").count(), 1);
    world.replays().await;
}
