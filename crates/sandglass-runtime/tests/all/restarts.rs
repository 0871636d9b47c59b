//! A restart loses nothing: no entity, no timer, no handler's end.

use sandglass_model::{Event, Outcome, OutcomeKind, Record};
use sandglass_runtime::ActorError;

use crate::world::{Act, SESSION, World, completed, counts, failed, one, pass};

#[tokio::test(start_paused = true)]
async fn what_was_in_flight_ends_as_interrupted() {
    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    let before = world.now().await;
    pass(60).await;
    let world = world.restart_after(10).await;
    assert_eq!(world.state().await, "Waiting", "before anything is accepted");
    assert_eq!(world.now().await.incarnation, before.incarnation);
    assert_eq!(world.actions().await, ["ProcessToolCalls", "Interrupt"]);
    let dispatch = before.in_flight[0].dispatch;
    assert_eq!(world.runtime.outcome(&one(), dispatch).await, Ok(Outcome::Interrupted));
    assert_eq!(counts(&world.script)["started"], 1, "it isn't run again");
    assert_eq!(world.until("Abandoned").await, 300);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_handler_is_started_again_if_the_spec_allows_it() {
    let source =
        SESSION.replace("on_success = \"Finish\"", "on_crash = \"rerun\"\non_success = \"Finish\"");
    let world = World::with(&source, &[Act::Hang, Act::Answer(5, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(60).await;
    let world = world.restart_after(10).await;
    assert_eq!(world.until("Done").await, 5);
    let started = world.script.started.lock().expect("no panic").clone();
    assert_eq!(started[0].dispatched.dispatch, started[1].dispatched.dispatch);
    assert_eq!((started[0].dispatched.attempt, started[1].dispatched.attempt), (1, 2));
    assert_ne!(started[0].dispatched.trace, started[1].dispatched.trace);
    let dispatch = started[0].dispatched.dispatch;
    assert_eq!(world.runtime.outcome(&one(), dispatch).await, Ok(completed()));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_another_process_runs_again_is_not_ended_by_the_first_one() {
    let source =
        SESSION.replace("on_success = \"Finish\"", "on_crash = \"rerun\"\non_success = \"Finish\"");
    let acts = [Act::Answer(100, failed()), Act::Answer(500, completed())];
    let world = World::with(&source, &acts).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(60).await;
    let another = world.start_another().await;
    let sequence = another.entity(&one()).await.expect("there").sequence;
    assert_eq!(sequence, world.now().await.sequence, "its records do not advance the sequence");
    pass(60).await;
    assert_eq!(world.send("Touch").await, Err(ActorError::Fenced { entity: one() }));
    let done = another.wait_until(&one(), |snapshot| snapshot.state == "Done").await;
    assert!(done.is_ok(), "{done:?}");
    let ended = |record: Record| match record.event {
        Event::Ended(ended) => Some((ended.attempt, ended.outcome.kind())),
        _ => None,
    };
    let ends: Vec<_> = world.records().await.into_iter().filter_map(ended).collect();
    assert_eq!(ends, [(1, OutcomeKind::Interrupted), (2, OutcomeKind::Completed)]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_state_timer_continues_with_its_remaining_time() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    pass(100).await;
    let world = world.restart_after(50).await;
    assert_eq!(world.until("Abandoned").await, 150);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_overdue_timer_fires_at_once() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    let world = world.restart_after(100_000).await;
    assert_eq!(world.until("Abandoned").await, 0);
    let records = world.records().await;
    let idle = records.iter().find_map(|record| match record.event {
        Event::StateIdle { idle_ms, .. } => Some(idle_ms),
        _ => None,
    });
    assert_eq!(idle.map(|idle_ms| idle_ms / 1_000), Some(100_000));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_schedule_survives_and_comes_when_it_was_due() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    world.send("Later").await.expect("taken");
    pass(6_400).await;
    let world = world.restart_after(10_000).await;
    assert_eq!(world.until("Done").await, 70_001);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn many_restarts_lose_nothing_and_double_nothing() {
    let mut world = World::of(&vec![Act::Hang; 20]).await;
    for round in 1..=10u64 {
        world.send("ProcessToolCalls").await.expect("taken in Idle and Waiting");
        pass(7).await;
        world = world.restart_after(3).await;
        assert_eq!(world.state().await, "Waiting");
        assert_eq!(world.now().await.sequence.0, round * 2);
    }
    let specs = world.kinds().await.iter().filter(|kind| **kind == "spec_registered").count();
    assert_eq!(specs, 1, "a spec is registered once");
    world.replays().await;
}
