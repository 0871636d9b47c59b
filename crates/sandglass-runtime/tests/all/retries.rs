//! Retries by an operator: the same dispatch once more, also after a restart.

use std::time::Duration;

use sandglass_liveness::{Refusal, Spec};
use sandglass_model::{DispatchId, Event, Outcome, OutcomeKind};
use sandglass_runtime::{ActorError, ErrorClass, Retry};

use crate::world::{Act, SESSION, World, completed, counts, one, pass, settle, two};

/// A session that may be taken up again after a timeout.
fn forgiving() -> String {
    let source = SESSION.replace(", \"TimedOut\", \"Stopped\", \"Abandoned\"]\nallow", "]\nallow");
    let source = source.replace(
        "terminal = [\"Done\", \"Failed\"]",
        "terminal = [\"Done\", \"Failed\", \"Stopped\", \"Abandoned\"]",
    );
    let source = source.replace(
        "allow_indefinite_states = [\"Idle\"]",
        "allow_indefinite_states = [\"Idle\", \"TimedOut\"]",
    );
    ["Finish", "Fail", "HandlerTimedOut", "Interrupt", "Stop"].iter().fold(
        source,
        |source, action| {
            source.replace(
                &format!("name = \"{action}\"\nfrom = [\"Executing\"]"),
                &format!("name = \"{action}\"\nfrom = [\"Executing\", \"TimedOut\"]"),
            )
        },
    )
}

fn retry(budget: Option<Duration>) -> Retry {
    let (by, reason) = ("ops".to_owned(), "the partner is back".to_owned());
    Retry { budget, by, reason, expected_attempt: None }
}

async fn timed_out(acts: &[Act]) -> (World, DispatchId) {
    let world = World::with(&forgiving(), acts).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("TimedOut").await, 900);
    let dispatch = world.script.started.lock().expect("no panic")[0].dispatched.dispatch;
    (world, dispatch)
}

#[tokio::test(start_paused = true)]
async fn a_retry_runs_the_same_dispatch_with_a_larger_budget() {
    let (world, dispatch) = timed_out(&[Act::Hang, Act::Answer(1_500, completed())]).await;
    let wanted = retry(Some(Duration::from_secs(2_000)));
    let accepted = world.runtime.retry(&one(), dispatch, wanted).await.expect("it has ended");
    assert_eq!(accepted.dispatches, [dispatch]);
    let in_flight = world.runtime.retry(&one(), dispatch, retry(None)).await;
    assert_eq!(
        in_flight,
        Err(ActorError::Refused { entity: one(), refusal: Refusal::StillInFlight { dispatch } })
    );
    assert_eq!(world.until("Done").await, 1_500);
    let run = world.script.started.lock().expect("no panic")[1].clone();
    assert_eq!((run.dispatched.attempt, run.budget.as_secs()), (2, 2_000));
    assert_eq!((run.not_after, run.dispatched.state.as_str()), (None, "TimedOut"));
    let recorded = world.records().await.into_iter().find_map(|record| match record.event {
        Event::Dispatched(dispatched) => dispatched.retried,
        _ => None,
    });
    let recorded = recorded.expect("who and why");
    assert_eq!((&*recorded.by, &*recorded.reason), ("ops", "the partner is back"));
    let outcome = world.runtime.outcome(&one(), dispatch).await;
    assert!(
        outcome.is_err() || outcome.is_ok_and(|outcome| outcome.kind() == OutcomeKind::Completed)
    );
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_works_after_a_restart() {
    let (world, dispatch) = timed_out(&[Act::Hang, Act::Answer(1, completed())]).await;
    let world = world.restart_after(100).await;
    world.runtime.retry(&one(), dispatch, retry(None)).await.expect("it is in the journal");
    assert_eq!(world.until("Done").await, 1);
    let refused = world.runtime.retry(&one(), dispatch, retry(None)).await;
    let Err(ActorError::Refused { refusal, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!(*refusal, Refusal::RetryOfSuccess { dispatch });
    assert_eq!(refused.map_err(|error| error.class()), Err(ErrorClass::Permanent));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_lost_with_the_process_comes_back_as_interrupted() {
    let (world, dispatch) = timed_out(&[Act::Hang, Act::Hang]).await;
    world.runtime.retry(&one(), dispatch, retry(None)).await.expect("it has ended");
    pass(5).await;
    let world = world.restart_after(100).await;
    let state = world.now().await.state.clone();
    assert_eq!(state, "Waiting", "on_interrupted");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_refused_where_the_state_takes_not_every_ending() {
    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.until("TimedOut").await;
    let dispatch = world.script.started.lock().expect("no panic")[0].dispatched.dispatch;
    let before = world.records().await;
    let refused = world.runtime.retry(&one(), dispatch, retry(None)).await.expect_err("terminal");
    for ending in ["on_success = Finish", "on_failure = Fail", "on_cancelled = Stop", "`TimedOut`"]
    {
        assert!(refused.to_string().contains(ending), "{refused}");
    }
    assert_eq!(world.records().await, before);
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_a_dispatch_that_the_entity_never_had_is_refused() {
    let (world, dispatch) = timed_out(&[Act::Hang]).await;
    world.runtime.create(two()).await.expect("new");
    let unknown = DispatchId::from_bytes([9; 16]);
    for (entity, dispatch) in [(one(), unknown), (two(), dispatch)] {
        let refused = world.runtime.retry(&entity, dispatch, retry(None)).await;
        assert_eq!(refused, Err(ActorError::UnknownDispatch { entity, dispatch }));
    }
    let nobody = "Session/nobody".parse().expect("valid");
    assert!(world.runtime.retry(&nobody, dispatch, retry(None)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_retry_without_room_is_refused_and_records_nothing() {
    let (world, dispatch) = timed_out(&[Act::Hang]).await;
    world.script.is_full.store(true, std::sync::atomic::Ordering::SeqCst);
    let before = world.records().await;
    let refused = world.runtime.retry(&one(), dispatch, retry(None)).await;
    assert!(matches!(refused, Err(ActorError::Busy { .. })), "{refused:?}");
    settle().await;
    assert_eq!(world.records().await, before);
}

#[tokio::test(start_paused = true)]
async fn what_a_retry_came_to_is_the_outcome_of_its_dispatch() {
    let (world, dispatch) = timed_out(&[Act::Hang, Act::Answer(1, completed())]).await;
    world.runtime.retry(&one(), dispatch, retry(None)).await.expect("it has ended");
    let outcome = world.runtime.outcome(&one(), dispatch).await;
    assert!(matches!(outcome, Ok(Outcome::Completed(_))), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn of_two_who_saw_the_same_attempt_end_only_one_is_heard() {
    let (world, dispatch) = timed_out(&[Act::Hang, Act::Hang, Act::Answer(1, completed())]).await;
    let after = |attempt| Retry { expected_attempt: Some(attempt), ..retry(None) };
    world.runtime.retry(&one(), dispatch, after(1)).await.expect("attempt 1 was the last");
    // The first one's run is over before the second one is looked at.
    world.runtime.settled(&one()).await.expect("it times out");
    let refused = world.runtime.retry(&one(), dispatch, after(1)).await;
    let refusal = Refusal::NotTheLastAttempt { dispatch, expected: 1, last: 2 };
    assert_eq!(refused, Err(ActorError::Refused { entity: one(), refusal }));
    assert_eq!(counts(&world.script)["started"], 2);
    world.runtime.retry(&one(), dispatch, after(2)).await.expect("attempt 2 was the last");
    assert_eq!(world.until("Done").await, 1);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_retry_obeys_the_version_that_its_entity_has_gone_over_to() {
    let (world, dispatch) = timed_out(&[Act::Hang, Act::Answer(7, completed())]).await;
    let reload = async |source: &str| {
        let spec = Spec::parse(source).spec.expect("sound");
        world.runtime.reload([spec]).await.expect("it is taken");
        settle().await;
    };
    reload(&forgiving().replace("name = \"run_tools\"", "name = \"run_others\"")).await;
    let refused = world.runtime.retry(&one(), dispatch, retry(None)).await;
    let Err(ActorError::Refused { refusal, .. }) = &refused else { panic!("{refused:?}") };
    assert_eq!(*refusal, Refusal::UnknownIntegration { integration: "run_tools".to_owned() });
    let otherwise = "on_success = \"Interrupt\"";
    reload(&forgiving().replace("on_success = \"Finish\"", otherwise)).await;
    world.runtime.retry(&one(), dispatch, retry(None)).await.expect("it is known again");
    assert_eq!(world.until("Waiting").await, 7, "as the present version says");
    world.replays().await;
}
