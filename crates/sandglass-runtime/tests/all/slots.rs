//! Room for handlers: kept before anything is recorded, and given back.

use std::sync::atomic::Ordering;

use sandglass_model::{BusyScope, DEFAULT_TENANT, Event, Outcome, RejectionKind};
use sandglass_runtime::{ActorError, ErrorClass};

use crate::world::{
    AGAIN, Act, SESSION, World, completed, counts, failed, one, pass_ms, settle, two,
};

fn places(world: &World) -> usize {
    world.script.places.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn a_request_without_slots_for_its_handlers_records_nothing() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    world.script.places.store(0, Ordering::SeqCst);
    let before = world.records().await;
    let refused = world.send("ProcessToolCalls").await.expect_err("no room");
    let ActorError::Busy { entity, busy } = &refused else { panic!("{refused:?}") };
    assert_eq!((entity, busy.scope), (&one(), BusyScope::Host));
    assert_eq!(refused.class(), ErrorClass::Transient);
    assert_eq!(world.records().await, before);
    world.send("Touch").await.expect("it starts no handler");
    world.script.places.store(1, Ordering::SeqCst);
    world.send("ProcessToolCalls").await.expect("there is room");
    assert_eq!(world.until("Done").await, 1);
    assert_eq!(places(&world), 1, "given back with the end of the run");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn slots_are_reserved_for_all_handlers_of_an_action_or_none() {
    let two = "[[integration]]\nname = \"second\"\ntrigger = \"run_tools\"\nmodule = \"m\"\n\
               deadline = \"9s\"\non_failure = \"Fail\"\non_success = \"Touch\"\n";
    let world = World::with(&(SESSION.to_owned() + two), &[Act::Hang, Act::Hang]).await;
    world.script.places.store(1, Ordering::SeqCst);
    assert!(matches!(world.send("ProcessToolCalls").await, Err(ActorError::Busy { .. })));
    assert_eq!((places(&world), counts(&world.script)["started"]), (1, 0));
    world.script.places.store(2, Ordering::SeqCst);
    world.send("ProcessToolCalls").await.expect("room for both");
    assert_eq!(places(&world), 0);
}

#[tokio::test(start_paused = true)]
async fn slots_are_released_if_the_append_fails() {
    let world = World::of(&[]).await;
    world.journal.set_failing(Some("disk full".to_owned()));
    let refused = world.send("ProcessToolCalls").await;
    assert!(matches!(refused, Err(ActorError::JournalUnavailable { .. })), "{refused:?}");
    assert_eq!(places(&world), 1_000);
}

#[tokio::test(start_paused = true)]
async fn an_ending_without_slots_for_its_handlers_rejects_them() {
    let source = SESSION.replace("on_success = \"Finish\"", "on_success = \"Again\"") + AGAIN;
    let world = World::with(&source, &[Act::Answer(1, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.script.is_full.store(true, Ordering::SeqCst);
    assert_eq!(world.until("Failed").await, 1);
    settle().await;
    let rejected = world.records().await.into_iter().find_map(|record| match record.event {
        Event::Ended(ended) => match &ended.outcome {
            Outcome::Rejected(rejection) => Some(rejection.clone()),
            _ => None,
        },
        _ => None,
    });
    let rejection = rejected.expect("the second run");
    assert_eq!(rejection.kind, RejectionKind::HostUnavailable);
    assert!(rejection.message.contains("try again in 5 ms"), "{rejection}");
    assert_eq!(counts(&world.script)["started"], 1);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_a_slot_is_rejected_after_the_proposed_wait_and_can_be_stopped_before() {
    let source = SESSION.replace("on_success = \"Finish\"", "on_success = \"Again\"") + AGAIN;
    let world = World::with(&source, &[Act::Answer(1, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.script.is_full.store(true, Ordering::SeqCst);
    pass_ms(1_002).await;
    assert_eq!((world.state().await.as_str(), world.now().await.in_flight.len()), ("Executing", 1));
    assert_eq!(world.runtime.cancel(&one(), None, "enough").await, Ok(1));
    settle().await;
    assert_eq!(world.state().await, "Stopped", "cancelled, and not rejected");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_ending_that_starts_a_handler_again_and_again_waits_for_a_slot_each_time() {
    let source = SESSION.replace("on_failure = \"Fail\"", "on_failure = \"Again\"") + AGAIN;
    let world = World::with(&source, &[Act::Answer(1, failed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.script.is_full.store(true, Ordering::SeqCst);
    pass_ms(1_100).await;
    let ends = world.records().await.into_iter().filter_map(|record| match record.event {
        Event::Ended(_) => Some(record.at),
        _ => None,
    });
    let ends: Vec<_> = ends.collect();
    assert!(ends.len() >= 10, "{ends:?}");
    assert!(ends.windows(2).all(|two| two[1].since(two[0]).as_millis() >= 5), "{ends:?}");
    world.send("Stop").await.expect("it listens meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_tenant_belongs_to_its_entity_and_is_passed_to_its_handlers() {
    let world = World::of(&[Act::Answer(1, failed()), Act::Hang]).await;
    assert_eq!(world.now().await.tenant, DEFAULT_TENANT);
    let created = world.runtime.create_for(two(), "small").await.expect("a new entity");
    assert_eq!(created.tenant, "small");
    let unprintable = world.runtime.create_for("Session/three".parse().expect("valid"), "a\u{7}");
    assert!(matches!(unprintable.await, Err(ActorError::Refused { .. })));
    world.script.places.store(0, Ordering::SeqCst);
    let refused = world.runtime.send(&two(), "ProcessToolCalls", Default::default()).await;
    let Err(ActorError::Busy { busy, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(busy.scope, BusyScope::Tenant);
    let world = world.restart_after(1).await;
    world.script.places.store(1, Ordering::SeqCst);
    world.runtime.send(&two(), "ProcessToolCalls", Default::default()).await.expect("taken");
    settle().await;
    assert_eq!(world.script.started.lock().expect("no panic")[0].tenant, "small");
    world.replays().await;
}
