//! Every ending of a handler is a transition, and only one in its own state's time.

use sandglass_model::{
    Cause, Clock, Decision, Event, LimitBreach, LimitKind, Outcome, Rejection, RejectionKind, Trap,
    TrapKind,
};

use crate::world::{
    AGAIN, Act, SESSION, World, completed, counts, failed, one, pass, published, settle,
};

fn decisions(records: &[sandglass_model::Record]) -> Vec<Decision> {
    let decision = |record: &sandglass_model::Record| match &record.event {
        Event::Ended(ended) => Some(ended.decision.clone()),
        _ => None,
    };
    records.iter().filter_map(decision).collect()
}

#[tokio::test(start_paused = true)]
async fn each_outcome_becomes_its_action() {
    let trap = Trap { kind: TrapKind::Unreachable, message: "abort".to_owned() };
    let breach = LimitBreach { kind: LimitKind::WasmFuel, limit: 1, observed: 2 };
    let rejection = Rejection { kind: RejectionKind::UnknownModule, message: "none".to_owned() };
    for (act, state) in [
        (Act::Answer(1, completed()), "Done"),
        (Act::Answer(1, failed()), "Failed"),
        (Act::Answer(1, Outcome::Trapped(trap)), "Failed"),
        (Act::Answer(1, Outcome::Limit(breach)), "Failed"),
        (Act::Answer(0, Outcome::Rejected(rejection)), "Failed"),
        (Act::Hang, "TimedOut"),
        (Act::Panic, "Waiting"),
    ] {
        let world = World::of(std::slice::from_ref(&act)).await;
        world.send("ProcessToolCalls").await.expect("taken");
        let settled = world.runtime.settled(&one()).await.expect("it lives");
        assert_eq!(settled.state, state, "{act:?}");
        world.replays().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_handler_takes_on_cancelled_with_the_reason() {
    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(5).await;
    let dispatch = world.now().await.in_flight[0].dispatch;
    assert_eq!(world.runtime.cancel(&one(), Some(dispatch), "maintenance").await, Ok(1));
    assert_eq!(world.until("Stopped").await, 0);
    let Ok(Outcome::Cancelled(cancellation)) = world.runtime.outcome(&one(), dispatch).await else {
        panic!("cancelled")
    };
    assert_eq!(cancellation.reason, "maintenance");
    assert_eq!(
        world.runtime.cancel(&one(), None, "").await,
        Ok(0),
        "nothing is in flight any more"
    );
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn leaving_the_state_stops_its_handler_and_supersedes_its_end() {
    let world = World::of(&[Act::Hang, Act::Answer(20, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(5).await;
    world.send("Wait").await.expect("taken");
    let first = world.script.started.lock().expect("no panic")[0].clone();
    assert_eq!(first.stop.kill_request().map(|request| request.cause), Some(Cause::StateLeft));
    world.send("ProcessToolCalls").await.expect("taken");
    settle().await;
    assert_eq!(counts(&world.script)["running"], 1);
    assert_eq!(world.until("Done").await, 20 - 1);
    assert_eq!(world.actions().await, ["ProcessToolCalls", "Wait", "ProcessToolCalls", "Finish"]);
    let decisions = decisions(&world.records().await);
    assert!(matches!(&decisions[..], [Decision::Superseded { .. }, Decision::Take { .. }]));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_state_timer_waits_for_a_stopped_handler_that_lingers() {
    let world = World::of(&[Act::Linger(500)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.send("Wait").await.expect("taken");
    assert_eq!(world.until("Abandoned").await, 500 + 300);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_outlive_its_state_if_the_spec_says_so() {
    let source =
        SESSION.replace("on_success = \"Finish\"", "keep_on_exit = true\non_success = \"Finish\"");
    let world = World::with(&source, &[Act::Answer(50, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.send("Wait").await.expect("taken");
    pass(1).await;
    assert_eq!(counts(&world.script)["running"], 1);
    assert_eq!(world.until("Abandoned").await, 49 + 300, "Waiting doesn't take Finish");
    assert!(matches!(&decisions(&world.records().await)[..], [Decision::Superseded { .. }]));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn shutting_down_records_how_handlers_ended() {
    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    let runtime = world.runtime.clone();
    let late = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.settled(&one()).await }
    });
    settle().await;
    let mut seen = runtime.subscribe();
    runtime.shutdown(std::time::Duration::from_secs(10)).await;
    let mut actions = Vec::new();
    for record in published(&mut seen).await {
        if let Event::Transition { action, .. } = &record.event {
            actions.push(action.clone());
        }
    }
    assert_eq!(actions, ["Stop"]);
    assert!(late.await.expect("no panic").is_ok());
    assert_eq!(
        runtime.send(&one(), "Touch", Default::default()).await,
        Err(sandglass_runtime::ActorError::Closed)
    );
    assert!(runtime.create(crate::world::two()).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn shutting_down_waits_no_longer_than_the_grace() {
    let world = World::of(&[Act::Linger(1_000_000)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    let begun = world.clock.now();
    world.runtime.shutdown(std::time::Duration::from_secs(10)).await;
    let waited = world.clock.now().since(begun);
    assert_eq!(waited.as_secs(), 10);
    assert_eq!(counts(&world.script)["running"], 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_shutdown_waits_for_the_first() {
    let world = World::of(&[Act::Linger(5)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    let mut seen = world.runtime.subscribe();
    let begun = world.clock.now();
    let grace = std::time::Duration::from_secs(10);
    tokio::join!(world.runtime.shutdown(grace), world.runtime.shutdown(std::time::Duration::ZERO));
    assert_eq!(world.clock.now().since(begun).as_secs(), 5);
    let records = published(&mut seen).await;
    let kinds: Vec<_> = records.iter().map(|record| record.event.kind()).collect();
    assert_eq!(kinds, ["ended", "transition"], "the journal was not closed under it");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_any_more_while_shutting_down() {
    let source = SESSION.replace("on_cancelled = \"Stop\"", "on_cancelled = \"Again\"") + AGAIN;
    let world = World::with(&source, &[Act::Hang, Act::Answer(1, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    let mut seen = world.runtime.subscribe();
    world.runtime.shutdown(std::time::Duration::from_secs(10)).await;
    assert_eq!(counts(&world.script)["started"], 1);
    let records = published(&mut seen).await;
    let kinds: Vec<_> = records.iter().map(|record| record.event.kind()).collect();
    assert_eq!(kinds, ["ended", "transition", "dispatched"], "the next start finds it");
}
