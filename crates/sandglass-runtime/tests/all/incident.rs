//! The incident: a healthy slow handler, a hung one, and a state in which nothing
//! happens are three things, and each has its own end.

use sandglass_model::{Event, Limit, Outcome, TransitionCause};
use sandglass_runtime::{ActorError, ErrorClass, Request};
use serde_json::json;

use crate::world::{Act, World, completed, one, pass};

#[tokio::test(start_paused = true)]
async fn a_healthy_handler_outlives_the_state_timer() {
    let world = World::of(&[Act::Answer(372, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.state().await, "Executing");
    assert_eq!(world.until("Done").await, 372);
    assert_eq!(world.actions().await, ["ProcessToolCalls", "Finish"]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_hung_handler_ends_in_its_declared_transition() {
    let world = World::of(&[Act::Hang]).await;
    let request = Request::new("ProcessToolCalls");
    let error = world.runtime.send_and_settle(&one(), request).await.expect_err("it hangs");
    let ActorError::HandlerDeadlineExceeded(exceeded) = &error else { panic!("{error:?}") };
    assert!(exceeded.elapsed_ms > exceeded.budget_ms && exceeded.budget_ms == 900_000);
    assert_eq!(error.class(), ErrorClass::Transient);
    assert_eq!(world.state().await, "TimedOut");
    let records = world.records().await;
    let [.., warned, ended, cleared, transition] = &records[..] else { panic!("{records:?}") };
    let Event::LimitBreached(breach) = &warned.event else { panic!("{warned:?}") };
    assert_eq!((breach.limit, breach.observed), (Limit::InactivityWarn, 600_001));
    assert_eq!(cleared.event.kind(), "limit.cleared");
    let Event::Ended(ended) = &ended.event else { panic!("{ended:?}") };
    assert!(matches!(ended.outcome, Outcome::TimedOut(_)));
    let Event::Transition { action, params, cause, trace, .. } = &transition.event else {
        panic!("{transition:?}")
    };
    assert_eq!(action, "HandlerTimedOut");
    assert_eq!(*cause, TransitionCause::HandlerEnded { dispatch: ended.dispatch });
    assert_eq!(params["dying_span"], json!("host_http_call"));
    assert_eq!(trace.trace_id, exceeded.trace_id);
    pass(100_000).await;
    assert_eq!(world.actions().await, ["ProcessToolCalls", "HandlerTimedOut"], "nothing retries");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_state_with_nothing_in_flight_goes_idle() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    pass(299).await;
    world.send("Touch").await.expect("taken");
    assert_eq!(world.until("Abandoned").await, 300, "any action starts the time again");
    assert!(world.kinds().await.contains(&"state_idle"));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_idle_time_starts_in_full_when_the_handler_has_ended() {
    let source = crate::world::SESSION.replace("on_success = \"Finish\"", "on_success = \"Touch\"");
    let world = World::with(&source, &[Act::Answer(800, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("Abandoned").await, 800 + 300);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_entity_stays_responsive_while_a_handler_runs() {
    let world = World::of(&[Act::Answer(600, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    for _ in 0..50 {
        pass(10).await;
        world.send("Touch").await.expect("taken");
    }
    assert_eq!(world.until("Done").await, 100);
    assert_eq!(world.actions().await.len(), 52);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_scheduled_action_comes_a_virtual_day_later() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    world.send("Later").await.expect("taken");
    assert_eq!(world.until("Done").await, 86_401);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_month_of_rounds_passes_in_no_time_and_replays() {
    let source = crate::world::SESSION.replace("on_success = \"Finish\"", "on_success = \"Wait\"");
    let world = World::with(&source, &vec![Act::Answer(372, completed()); 500]).await;
    for _ in 0..500 {
        world.send("ProcessToolCalls").await.expect("taken");
        world.runtime.settled(&one()).await.expect("it lives");
        world.runtime.signal(&one(), crate::signals::partner()).await.expect("small");
        pass(200).await;
    }
    assert_eq!(world.state().await, "Waiting");
    assert_eq!(world.now().await.variables["rounds"], json!(500));
    assert_eq!(world.until("Abandoned").await, 100);
    world.replays().await;
}
