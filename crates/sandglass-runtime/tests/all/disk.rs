//! A failing disk stops no kill and loses no decision.

use sandglass_model::{Completion, Event, Failure, FailureKind, Object, Outcome};
use sandglass_runtime::ActorError;
use sandglass_telemetry::{Prefix, Telemetry, prometheus::Exporter};

use crate::world::{
    AGAIN, Act, SESSION, World, completed, counts, disk_full, one, pass, pass_ms, settle, two,
};

#[tokio::test(start_paused = true)]
async fn a_kill_happens_and_its_transition_waits_for_the_disk() {
    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(1_000).await;
    assert_eq!(counts(&world.script)["running"], 0, "it was killed");
    assert_eq!(world.state().await, "Executing", "what isn't durable isn't visible");
    assert!(matches!(world.send("Touch").await, Err(ActorError::JournalUnavailable { .. })));
    pass(10_000).await;
    world.journal.set_failing(None);
    assert!(world.until("TimedOut").await <= 5, "the disk is tried again within seconds");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_end_is_recorded_when_a_signal_finds_the_disk_working() {
    let world = World::with(&format!("{SESSION}{AGAIN}"), &[Act::Hang, Act::TellAndHang(90)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass_ms(899_970).await;
    world.send("Again").await.expect("taken");
    pass_ms(10).await;
    world.journal.set_failing(disk_full());
    pass_ms(40).await;
    assert_eq!(counts(&world.script), [("running", 1), ("started", 2)].into(), "one was killed");
    assert_eq!(world.state().await, "Executing");
    world.journal.set_failing(None);
    pass_ms(60).await;
    assert_eq!(world.state().await, "TimedOut", "long before the other ends, or anybody asks");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn signals_during_a_disk_failure_are_counted_and_cause_few_appends() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let world = World::reporting(SESSION, &[Act::TellAndHang(90)], telemetry).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(1).await;
    let text = exporter.render();
    for expected in [
        r#"temper_entity_signals_dropped_total{entity_type="Session"} 90"#,
        // At once, and once more when the first wait was over.
        "temper_journal_append_failures_total 2",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn cancelling_needs_no_disk() {
    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    assert_eq!(world.runtime.cancel(&one(), None, "stop").await, Ok(1));
    settle().await;
    assert_eq!(counts(&world.script)["running"], 0);
    world.journal.set_failing(None);
    world.until("Stopped").await;
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_and_nothing_changes_while_appends_fail() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    world.journal.set_failing(disk_full());
    let before = world.now().await;
    let error = world.send("ProcessToolCalls").await.expect_err("no disk");
    assert!(error.to_string().contains("journal_unavailable"), "{error}");
    assert!(world.runtime.create(two()).await.is_err());
    assert!(world.runtime.entity(&two()).await.is_err(), "a creation that failed leaves nothing");
    assert_eq!(counts(&world.script)["started"], 0);
    assert_eq!(world.now().await, before);
    world.journal.set_failing(None);
    world.send("ProcessToolCalls").await.expect("at once when it works again");
    world.runtime.create(two()).await.expect("so does this");
    world.until("Done").await;
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_state_timer_waits_for_the_disk_without_spinning() {
    let world = World::of(&[]).await;
    world.send("Wait").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(100_000).await;
    assert_eq!(world.state().await, "Waiting");
    world.journal.set_failing(None);
    assert!(world.until("Abandoned").await <= 5);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_is_lost_with_the_process_comes_back_as_interrupted() {
    let world = World::of(&[Act::Answer(5, completed())]).await;
    let accepted =
        world.runtime.send(&one(), "ProcessToolCalls", Object::new()).await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(60).await;
    world.journal.set_failing(None);
    // Dropped before the next try: the answer never became durable.
    let journal = std::sync::Arc::clone(&world.journal);
    journal.set_failing(None);
    let world = world.restart_after(0).await;
    let outcome = world.runtime.outcome(&one(), accepted.dispatches[0]).await;
    assert_eq!(outcome, Ok(Outcome::Interrupted));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_result_that_no_journal_takes_is_a_failure_and_hangs_nothing() {
    let huge = Outcome::Completed(Completion {
        action: None,
        params: Object::new(),
        result: "x".repeat(17 << 20).into(),
    });
    let world = World::of(&[Act::Answer(1, huge)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("Failed").await, 1);
    let records = world.records().await;
    let kind = records.iter().find_map(|record| match &record.event {
        Event::Ended(ended) => ended.outcome.error().map(|(kind, _)| kind),
        _ => None,
    });
    assert_eq!(kind.as_deref(), Some("result_too_large"));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_is_reduced_to_what_the_journal_takes_and_stays_the_same_end() {
    let message = "x".repeat(17 << 20);
    let huge =
        Failure { kind: FailureKind::ResultTooLarge, message: message.clone(), result: None };
    let world = World::of(&[Act::Answer(1, Outcome::Failed(huge))]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("Failed").await, 1, "also where its answer was too large before");
    world.replays().await;

    let world = World::of(&[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.runtime.cancel(&one(), None, &message).await, Ok(1));
    assert_eq!(world.until("Stopped").await, 0, "cancelled, and not failed");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_another_process_writes_is_given_up() {
    use sandglass_journal::{Batch, Expected, Journal};
    let world = World::of(&[Act::Hang]).await;
    world.send("Wait").await.expect("taken");
    let mut stolen = world.records().await.pop().expect("the transition");
    stolen.sequence = stolen.sequence.next();
    let expected = Expected::At(stolen.position);
    let records = vec![(stolen.sequence, stolen.event)];
    let batch = Batch::new(one(), expected, stolen.at, records);
    world.journal.append(batch).await.expect("it follows");
    let fenced = Err(ActorError::Fenced { entity: one() });
    assert_eq!(world.send("Touch").await, fenced);
    assert_eq!(world.send("Touch").await, fenced);
    pass(1_000).await;
    assert_eq!(world.state().await, "Waiting", "it writes no more, by no timer either");
    let waited = world.runtime.wait_until(&one(), |snapshot| snapshot.state == "Done").await;
    assert_eq!(
        waited,
        Err(ActorError::Closed),
        "the caller doesn't wait for an answer that can't come"
    );
}
