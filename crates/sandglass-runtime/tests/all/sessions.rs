//! Sessions in virtual time: their limits are kept, whatever their handlers and disks do.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_insight::projection::{Projection, Shape};
use sandglass_journal::{Journal as _, MemoryJournal};
use sandglass_liveness::session::{
    Ceilings, LimitSettings, Setting, Status, status as session_status,
};
use sandglass_liveness::{Fold, Replay, Spec};
use sandglass_model::{
    AskUntil, Clock, Decision, Directive, EntityRef, Event, Limit, LimitBreached, Position, Record,
    RunStopped, RunStopping, Scope, StopCause, WallTime,
};
use sandglass_runtime::{
    ActorError, ProjectionGap, Runtime, SIGNAL_QUEUE_MAX, SessionResume, SessionStop, Signal,
};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry};

use crate::world::{
    AGAIN, Act, SESSION, World, completed, counts, disk_full, failed, one, pass, pass_ms,
    published, settle, soon, time_out_a_call, two,
};

async fn world(limits: &str, acts: &[Act]) -> World {
    World::with(&format!("{SESSION}\n[limits]\n{limits}\n"), acts).await
}

async fn status(world: &World) -> Status {
    let status = world.runtime.session_status(&one()).await.expect("it lives");
    status.expect("it is a session").status
}

fn resume() -> SessionResume {
    let (by, reason) = ("ann".to_owned(), "go on".to_owned());
    SessionResume { by, reason, expected_run: None, limits: LimitSettings::default() }
}

fn operator() -> SessionStop {
    let (by, reason) = ("ann".to_owned(), "enough".to_owned());
    SessionStop { run_seq: None, cause: StopCause::Operator { by, reason } }
}

/// How many handlers run.
fn running(world: &World) -> usize {
    world.script.running.load(Ordering::SeqCst)
}

async fn breaches(world: &World) -> Vec<LimitBreached> {
    let records = world.records().await.into_iter();
    let breach = |event| match event {
        Event::LimitBreached(breach) => Some(*breach),
        _ => None,
    };
    records.filter_map(|record| breach(record.event)).collect()
}

async fn stops(world: &World) -> Vec<RunStopped> {
    let records = world.records().await.into_iter();
    let stop = |event| match event {
        Event::RunStopped(stopped) => Some(*stopped),
        _ => None,
    };
    records.filter_map(|record| stop(record.event)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_overrun_is_caught_while_it_runs_and_the_session_can_be_resumed() {
    let limits = "run_timeout = \"1000s\"\ninactivity_warn = 0\nabort_timeout = \"10s\"";
    let world = world(limits, &[Act::Hang, Act::Answer(5, completed())]).await;
    pass(500).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass_ms(500_002).await;
    assert_eq!(status(&world).await, Status::Stopping, "within a millisecond of its budget");
    assert!(world.script.started.lock().expect("no panic")[0].stop.is_stop_requested());
    assert_eq!(world.script.running.load(Ordering::SeqCst), 1, "it has its grace");
    pass_ms(10_002).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0);
    assert_eq!(status(&world).await, Status::Blocked);
    assert_eq!(world.state().await, "Executing");
    let found = breaches(&world).await;
    let limits: Vec<Limit> = found.iter().map(|breach| breach.limit).collect();
    assert_eq!(limits, [Limit::RunTimeout, Limit::AbortTimeout]);
    assert_eq!((found[0].threshold, found[0].observed), (1_000_000, 1_000_001));

    let refused = world.send("Touch").await.expect_err("it is blocked");
    assert!(refused.to_string().contains("resume it first"), "{refused}");
    pass(90_000).await;
    let accepted = world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    assert_eq!(accepted.dispatches.len(), 1);
    assert_eq!(world.until("Done").await, 5);
    assert_eq!(status(&world).await, Status::Done);
    let recovery = world.script.started.lock().expect("no panic")[1].recovery.clone();
    let recovery = recovery.expect("a run before");
    assert_eq!((recovery.prior_run, recovery.cause.as_str()), (1, "watchdog_wall_clock_exceeded"));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn subscribers_receive_the_forms_that_readers_of_the_journal_compute_later() {
    let limits = "run_timeout = \"1000s\"\ninactivity_warn = \"100s\"\nabort_timeout = \"10s\"";
    let world = world(limits, &[Act::Hang, Act::Answer(5, completed())]).await;
    let mut subscriptions = Shape::ALL.map(|shape| (shape, world.runtime.subscribe_as(shape)));
    pass(500).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass_ms(510_005).await;
    assert_eq!(status(&world).await, Status::Blocked);
    world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    world.until("Done").await;
    let records = world.records().await;
    for (shape, subscription) in &mut subscriptions {
        let mut received = Vec::new();
        while let Some(Some(form)) = soon(subscription.next()).await {
            received.push(form.expect("it keeps up, and the journal is readable"));
        }
        assert!(!received.is_empty(), "{shape:?}");
        let mut projection = Projection::new(*shape);
        let folded = records.iter().filter_map(|record| projection.feed(record).expect("it fits"));
        assert_eq!(received, folded.collect::<Vec<_>>(), "{shape:?}");
        // The session has another run and another state by now, which makes no difference.
        let mut looked_up = Vec::new();
        for record in &records {
            looked_up.extend(world.runtime.project(*shape, record).await.expect("readable"));
        }
        assert_eq!(looked_up, received, "{shape:?}");
    }
    let (_, mut subscription) = subscriptions.into_iter().next().expect("there are three");
    world.runtime.shutdown(Duration::ZERO).await;
    drop(world);
    let end = soon(subscription.next()).await;
    assert!(matches!(end, Some(None)), "it does not keep the runtime alive");
}

#[tokio::test(start_paused = true)]
async fn a_form_whose_earlier_records_cannot_be_read_is_reported_as_a_gap() {
    let world = world("run_timeout = \"1000s\"", &[]).await;
    let mut subscription = world.runtime.subscribe_as(Shape::Watchdog);
    pass_ms(1_000_002).await;
    world.journal.close().await;
    let gap = subscription.next().await.expect("the runtime is there").expect_err("no journal");
    assert!(matches!(gap, ProjectionGap::Unreadable { .. }), "{gap}");
    assert!(gap.to_string().contains("cannot be projected"), "{gap}");
}

#[tokio::test(start_paused = true)]
async fn an_operator_ends_what_is_stopping_now_and_what_waits_to_be_resumed() {
    let limits = "run_timeout = \"1000s\"\ninactivity_warn = 0\nabort_timeout = \"60s\"";
    let world = world(limits, &[Act::Hang]).await;
    pass(500).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass_ms(500_002).await;
    assert_eq!(status(&world).await, Status::Stopping);
    let stopped = world.runtime.stop_session(&one(), operator()).await.expect("it isn't over");
    assert_eq!((stopped.run_seq, stopped.is_recorded), (2, true));
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0, "without the rest of its grace");
    assert_eq!((world.state().await.as_str(), status(&world).await), ("Stopped", Status::Done));
    let codes: Vec<String> =
        stops(&world).await.into_iter().map(|stopped| stopped.stop_reason_code).collect();
    assert_eq!(codes, ["watchdog_wall_clock_exceeded", "operator_cancelled"]);
    world.runtime.stop_session(&one(), operator()).await.expect_err("it is over");
    world.replays().await;

    let world = self::world("run_timeout = \"1h\"", &[]).await;
    pass_ms(3_600_002).await;
    assert_eq!(status(&world).await, Status::Blocked);
    world.journal.set_failing(Some("the disk is full".to_owned()));
    let failed = world.runtime.stop_session(&one(), operator()).await.expect_err("no record");
    assert!(matches!(failed, ActorError::JournalUnavailable { .. }), "{failed}");
    world.journal.set_failing(None);
    assert_eq!(status(&world).await, Status::Blocked);
    world.runtime.stop_session(&one(), operator()).await.expect("it isn't over");
    assert_eq!(status(&world).await, Status::Done);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_obeys_a_stop_request_ends_by_itself() {
    let limits = "inactivity_timeout = \"1000s\"";
    let world = world(limits, &[Act::HeedWhenAsked]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass_ms(899_000).await;
    settle().await;
    // Its deadline of 900 s is nearer than any limit of its run.
    assert_eq!(world.until("TimedOut").await, 0);
    let found = breaches(&world).await;
    let limits: Vec<Limit> = found.iter().map(|breach| breach.limit).collect();
    assert_eq!(limits, [Limit::InactivityWarn, Limit::Deadline]);
    world.replays().await;

    let world = self::world("run_timeout = \"1000s\"", &[Act::HeedWhenAsked]).await;
    pass(600).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("Done").await, 400);
    let stopped = stops(&world).await;
    assert_eq!(stopped[0].cause, StopCause::Completion, "it came to its end by itself");
    assert_eq!(stopped[0].directive, None);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_sleeps_is_stopped_on_time_and_woken_for_that() {
    let world = world("run_timeout = \"1h\"", &[]).await;
    pass_ms(3_600_000 - 1).await;
    assert_eq!(status(&world).await, Status::Queued);
    pass_ms(3).await;
    assert_eq!(status(&world).await, Status::Blocked);
    world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    assert_eq!(status(&world).await, Status::Queued);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn blocked_sessions_are_listed_while_asleep_and_after_a_restart() {
    let world = world("run_timeout = \"1h\"", &[]).await;
    let listed = |world: &World| world.runtime.blocked_sessions(10);
    assert_eq!(listed(&world), (Vec::new(), 0));
    pass_ms(3_600_002).await;
    let (blocked, all) = listed(&world);
    assert_eq!((blocked.len(), all), (1, 1));
    assert_eq!((&blocked[0].entity, blocked[0].run_seq), (&one(), 1));
    assert_eq!(blocked[0].stop_reason_code, "watchdog_wall_clock_exceeded");
    assert_eq!(blocked[0].directive, Some(Directive::Wait));
    assert_eq!(world.runtime.blocked_sessions(0), (Vec::new(), 1));
    pass(86_400).await;
    assert_eq!(status(&world).await, Status::Blocked, "it is woken");
    assert_eq!(listed(&world), (blocked.clone(), 1));
    pass(86_400).await;
    let world = world.restart_after(10).await;
    assert_eq!(listed(&world), (blocked, 1));
    world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    assert_eq!(listed(&world), (Vec::new(), 0));
    pass_ms(3_600_002).await;
    assert_eq!(listed(&world).0[0].run_seq, 2);
}

#[tokio::test(start_paused = true)]
async fn a_crash_is_no_resume_so_the_run_keeps_its_start() {
    let limits = "run_timeout = \"1000s\"\ninactivity_warn = 0";
    let world = world(limits, &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(400).await;
    let world = world.restart_after(200).await;
    assert_eq!(world.state().await, "Waiting", "what was in flight was interrupted");
    let status = world.runtime.session_status(&one()).await.expect("it lives").expect("one");
    assert_eq!((status.run_seq, status.elapsed_ms / 1_000), (Some(1), 600));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_stops_at_once_and_is_seen_after_a_restart() {
    let world = world("", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(10).await;
    let begun = world.clock.now();
    let stopped = world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    assert_eq!((stopped.directive, stopped.is_recorded), (Directive::Cancel, true));
    world.until("Stopped").await;
    assert_eq!(world.clock.now().since(begun), Duration::ZERO);
    let again = world.runtime.stop_session(&one(), operator()).await.expect_err("it is over");
    assert!(again.to_string().contains("already stopped"), "{again}");
    let world = world.restart_after(1).await;
    assert_eq!(status(&world).await, Status::Done);
    assert_eq!(counts(&world.script)["started"], 1, "nothing runs again");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_was_cancelled_before_a_crash_is_not_started_again() {
    let source =
        SESSION.replace("deadline = \"900s\"", "deadline = \"900s\"\non_crash = \"rerun\"");
    let world = World::with(&format!("{source}\n[limits]\n"), &[Act::Linger(60)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    // Its handler hasn't ended when the host is lost.
    let world = world.restart_after(1).await;
    assert_eq!(status(&world).await, Status::Done);
    assert_eq!(counts(&world.script)["started"], 1, "nothing runs again");
    assert_eq!(stops(&world).await.len(), 1);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_prevents_no_kill_and_the_record_follows() {
    let limits = "run_timeout = \"100s\"\nabort_timeout = \"5s\"";
    let source = SESSION.replace("deadline = \"900s\"", "deadline = \"90s\"");
    let world = World::with(&format!("{source}\n[limits]\n{limits}\n"), &[Act::Hang]).await;
    pass(50).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(10).await;
    world.journal.set_failing(disk_full());
    pass_ms(40_003 + 5_003).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0, "it was killed on time");
    pass(1_000).await;
    world.journal.set_failing(None);
    pass(10).await;
    let kinds = world.kinds().await;
    let from = kinds.iter().position(|kind| *kind == "limit.breached").expect("a breach");
    assert_eq!(kinds[from..], ["limit.breached", "run.stopping", "ended", "run.stopped"]);
    let records = world.records().await;
    let held = records
        .iter()
        .any(|record| matches!(&record.event, Event::Ended(end) if end.decision == Decision::Held));
    assert!(held, "it is dispatched anew when the session is resumed");
    assert_eq!(breaches(&world).await[0].observed, 100_001, "as it was when it was measured");
    assert_eq!(status(&world).await, Status::Blocked);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_in_the_grace_prevents_no_kill_either() {
    let limits = "run_timeout = \"1000s\"\nabort_timeout = \"20s\"\ninactivity_warn = \"1001s\"";
    let world = world(limits, &[Act::Hang]).await;
    pass(500).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(505).await;
    assert_eq!(status(&world).await, Status::Stopping);
    world.journal.set_failing(disk_full());
    pass(20).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0, "it was killed on time");
    world.journal.set_failing(None);
    pass(10).await;
    assert_eq!(status(&world).await, Status::Blocked);
    let found: Vec<Limit> = breaches(&world).await.iter().map(|breach| breach.limit).collect();
    assert_eq!(found, [Limit::RunTimeout, Limit::AbortTimeout]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_warning_that_cannot_be_recorded_follows_when_it_can() {
    let world = world("inactivity_warn = \"100s\"", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(50).await;
    world.journal.set_failing(disk_full());
    pass(100).await;
    world.journal.set_failing(None);
    pass(10).await;
    let found = breaches(&world).await;
    assert_eq!((found.len(), found[0].limit), (1, Limit::InactivityWarn));
    assert_eq!(status(&world).await, Status::Silent);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_becomes_a_session_with_a_spec_that_makes_it_one() {
    let world = World::of(&[]).await;
    let spec = Spec::parse(&format!("{SESSION}\n[limits]\nrun_timeout = \"1000s\"\n")).spec;
    world.runtime.reload([spec.expect("sound")]).await.expect("durable");
    settle().await;
    pass_ms(1_000_005).await;
    assert_eq!(status(&world).await, Status::Blocked);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancel_is_carried_out_even_if_it_cannot_be_recorded() {
    let world = world("", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    world.journal.set_failing(disk_full());
    let stopped = world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    assert!(!stopped.is_recorded);
    settle().await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0);
    world.journal.set_failing(None);
    assert!(world.until("Stopped").await < 10);
    assert_eq!(status(&world).await, Status::Done);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn signals_beyond_the_recorded_ones_count_as_activity() {
    let limits = "inactivity_warn = \"300s\"\ninactivity_timeout = \"1000s\"";
    let world = world(limits, &[Act::TellEvery(5, "heartbeat")]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("TimedOut").await, 900, "its own deadline ends it, and nothing else");
    let limits: Vec<Limit> = breaches(&world).await.iter().map(|breach| breach.limit).collect();
    assert_eq!(limits, [Limit::Deadline]);
    let records = world.records().await.len();
    assert!((100..125).contains(&records), "{records} records of 180 signals");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_material_signal_from_outside_is_progress_and_a_synthetic_one_is_no_activity() {
    let outside =
        |name: &str| Signal { name: name.to_owned(), from: None, payload: serde_json::json!(3) };
    for (name, meters) in
        [("milestone", [true, true]), ("note", [true, false]), ("keep_alive", [false, false])]
    {
        let stops = [("inactivity_timeout", meters[0]), ("progress_timeout", meters[1])];
        for (limit, restarts) in stops {
            let limits = format!(
                "{limit} = \"100s\"\ninactivity_warn = 0\nabort_timeout = 0\n\
                 material = [\"milestone\"]\nsynthetic = [\"keep_alive\"]"
            );
            let world = world(&limits, &[Act::Hang]).await;
            world.send("ProcessToolCalls").await.expect("taken");
            pass(60).await;
            world.runtime.signal(&one(), outside(name)).await.expect("it runs");
            pass(60).await;
            let is_running = running(&world) == 1;
            assert_eq!(is_running, restarts, "{limit} after the signal {name}");
            pass(60).await;
            assert_eq!(running(&world), 0, "{limit} after the signal {name}");
            let refused = world.runtime.signal(&one(), outside(name)).await.expect_err("stopped");
            assert!(refused.to_string().contains("already stopped"), "{refused}");
            world.replays().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn progress_counts_even_if_the_disk_does_not_take_it() {
    let world = world("progress_timeout = \"50s\"", &[Act::TellEvery(5, "progress")]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    // The disk fails while each signal is recorded, and while they are held back.
    for working_s in [100, 340] {
        pass(working_s).await;
        world.journal.set_failing(disk_full());
        pass(100).await;
        world.journal.set_failing(None);
    }
    assert!(world.until("TimedOut").await < 300, "its own deadline ends it, and nothing else");
    let limits: Vec<Limit> = breaches(&world).await.iter().map(|breach| breach.limit).collect();
    assert_eq!(limits, [Limit::Deadline]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_operators_stop_is_not_confirmed_while_another_one_waits_to_be_recorded() {
    let source = SESSION.replace("deadline = \"900s\"", "deadline = \"90s\"");
    let limits = "[limits]\nrun_timeout = \"100s\"\nabort_timeout = \"60s\"\n";
    let world = World::with(&format!("{source}\n{limits}"), &[Act::Hang]).await;
    pass(50).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(55).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 1, "it has its grace");
    let refused = world.runtime.stop_session(&one(), operator()).await;
    assert!(matches!(refused, Err(ActorError::JournalUnavailable { .. })), "{refused:?}");
    settle().await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0, "an operator leaves no grace");
    world.journal.set_failing(None);
    pass(10).await;
    assert_eq!(status(&world).await, Status::Blocked, "the first cause holds");
    world.runtime.stop_session(&one(), operator()).await.expect("repeated");
    assert_eq!(status(&world).await, Status::Done);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recorded_before_a_stop_that_is_carried_out() {
    let source = SESSION.replace("deadline = \"900s\"", "deadline = \"90s\"");
    let limits = "[limits]\nrun_timeout = \"100s\"\nabort_timeout = \"60s\"\n";
    let world = World::with(&format!("{source}\n{limits}"), &[Act::Hang]).await;
    pass(50).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(55).await;
    let before = world.records().await.len();
    // The stop fails once more, and what comes behind it would not.
    world.journal.fail_next(1, "disk full");
    let answer = world.send("Touch").await;
    assert!(matches!(answer, Err(ActorError::JournalUnavailable { .. })), "{answer:?}");
    pass(10).await;
    let kinds = world.kinds().await;
    assert_eq!(kinds[before..before + 2], ["limit.breached", "run.stopping"], "{kinds:?}");
    world.replays().await;
}

/// A decision may start a handler and stop its run, whose grace is over at once.
#[tokio::test(start_paused = true)]
async fn a_handler_that_is_started_by_the_decision_that_stops_its_run_is_killed() {
    let both = SESSION
        .replace("[\"trigger run_tools\"", "[\"trigger run_tools\", \"trigger more\"")
        + "\n[[integration]]\nname = \"more\"\nmodule = \"more\"\ndeadline = \"900s\"\n\
           on_success = \"Finish\"\non_failure = \"Fail\"\non_timeout = \"HandlerTimedOut\"\n\
           on_interrupted = \"Interrupt\"\non_cancelled = \"Stop\"\n";
    let source = format!("{both}\n[limits]\nmax_handler_runs = 1\n");
    let world = World::with(&source, &[Act::Hang, Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    settle().await;
    assert_eq!(counts(&world.script), [("started", 1), ("running", 0)].into());
    assert_eq!(status(&world).await, Status::Done);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_execution_timeout_holds_with_and_without_work_in_flight() {
    let limits = "execution_timeout = \"1000s\"\nabort_timeout = 0\ninactivity_warn = 0";
    for (has_work, state, expected) in [
        (false, "Idle", &["limit.breached", "run.stopping", "run.stopped"][..]),
        (
            true,
            "Stopped",
            &["limit.breached", "run.stopping", "ended", "transition", "run.stopped"],
        ),
    ] {
        let world = world(limits, &[Act::Hang]).await;
        pass(500).await;
        if has_work {
            world.send("ProcessToolCalls").await.expect("taken");
        }
        pass_ms(499_999).await;
        assert_eq!(breaches(&world).await, [], "not before its time");
        let before = world.records().await.len();
        pass_ms(3).await;
        assert_eq!(world.kinds().await[before..], *expected);
        assert_eq!((world.state().await.as_str(), status(&world).await), (state, Status::Done));
        assert_eq!(world.script.running.load(Ordering::SeqCst), 0, "without a grace");
        let found = breaches(&world).await;
        assert_eq!(found[0].limit, Limit::ExecutionTimeout);
        assert_eq!((found[0].threshold, found[0].observed), (1_000_000, 1_000_001));
        let stopped = stops(&world).await;
        assert_eq!(stopped[0].stop_reason_code, "execution_timeout_exceeded");
        assert_eq!(stopped[0].directive, Some(Directive::Cancel));
        let refused = world.send("ProcessToolCalls").await.expect_err("it is over");
        assert!(refused.to_string().contains("it is over"), "{refused}");
        world.replays().await;
    }
}

/// A session whose handler says `more`, and may be started again while it runs.
async fn again(more: &str, limits: &str) -> World {
    let more = format!("deadline = \"900s\"\n{more}\n");
    let source = SESSION.replace("deadline = \"900s\"\n", &more);
    World::with(&format!("{source}\n{AGAIN}\n[limits]\n{limits}\n"), &[]).await
}

#[tokio::test(start_paused = true)]
async fn the_bound_on_turns_holds_for_every_caller_and_after_restarts() {
    let world = again("turn = true\non_crash = \"rerun\"", "max_loop_iterations = 2").await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    let world = world.restart_after(1).await;
    world.send("Again").await.expect("taken");
    pass(1).await;
    let world = world.restart_after(1).await;
    assert_eq!(counts(&world.script), [("started", 5), ("running", 2)].into());
    assert_eq!(breaches(&world).await, []);
    let before = world.records().await.len();
    world.send("Again").await.expect("taken, and its handler refused");
    settle().await;
    let found = breaches(&world).await;
    assert_eq!(found[0].limit, Limit::MaxLoopIterations);
    assert_eq!((found.len(), found[0].threshold, found[0].observed), (1, 2, 3));
    let kinds = world.kinds().await;
    assert_eq!(
        kinds[before..before + 5],
        ["transition", "limit.breached", "run.stopping", "dispatched", "ended"]
    );
    assert_eq!((kinds[kinds.len() - 1], status(&world).await), ("run.stopped", Status::Done));
    assert_eq!(counts(&world.script), [("started", 5), ("running", 0)].into());
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_continuation_is_not_bounded() {
    let limits = "max_handler_runs = 1\nmax_loop_iterations = 1";
    let world = again("continues = true", limits).await;
    world.send("ProcessToolCalls").await.expect("taken");
    for _ in 0..3 {
        world.send("Again").await.expect("taken");
    }
    settle().await;
    assert_eq!(counts(&world.script), [("started", 4), ("running", 4)].into());
    assert_eq!((breaches(&world).await, status(&world).await), (Vec::new(), Status::Running));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_crash_uses_up_no_handler_of_a_run() {
    let world = again("on_crash = \"rerun\"", "max_handler_runs = 2").await;
    world.send("ProcessToolCalls").await.expect("taken");
    settle().await;
    let world = world.restart_after(1).await.restart_after(1).await;
    world.send("Again").await.expect("taken");
    settle().await;
    assert_eq!(counts(&world.script), [("started", 4), ("running", 2)].into());
    world.send("Again").await.expect("taken, and its handler refused");
    settle().await;
    let found = breaches(&world).await;
    assert_eq!(found[0].limit, Limit::MaxHandlerRuns);
    assert_eq!((found.len(), found[0].threshold, found[0].observed), (1, 2, 3));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_session_without_progress_is_not_stuck() {
    let limits = "progress_timeout = \"600s\"\nabort_timeout = 0";
    let world = world(limits, &[Act::TellEvery(5, "heartbeat")]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass_ms(600_003).await;
    assert_eq!(status(&world).await, Status::Blocked);
    let stopped = stops(&world).await;
    assert_eq!(stopped[0].directive, Some(Directive::Unstuck));
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0);
    world.replays().await;
}

/// Shuts the runtime down, which closes its journal; answers the records of its whole life.
async fn shut_down(world: &World) -> Vec<Record> {
    let mut records = world.records().await;
    let mut events = world.runtime.subscribe();
    world.runtime.shutdown(Duration::from_secs(25)).await;
    records.extend(published(&mut events).await.iter().map(|record| (**record).clone()));
    let mut replay = Replay::new();
    records.iter().for_each(|record| replay.feed(record));
    let summary = replay.finish();
    assert_eq!(summary.divergence_count, 0, "{:#?}", summary.divergences);
    records
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_is_recorded_with_what_it_cut() {
    let world = world("abort_timeout = \"2s\"", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    let begun = world.clock.now();
    let records = shut_down(&world).await;
    assert_eq!(world.clock.now().since(begun).as_secs(), 2, "its handler had its grace");
    let mut fold = Fold::new();
    for record in records {
        fold.apply(&record).expect("it fits");
    }
    let entity = fold.entity(&one()).expect("it was created");
    let session = entity.session().expect("it is a session");
    assert_eq!((&*entity.state, session.held().len()), ("Executing", 1));
    let now = session_status(entity, world.clock.wall()).expect("it is a session");
    assert_eq!(
        (now.status, now.stop_reason_code.as_deref()),
        (Status::Blocked, Some("host_shutdown"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_with_less_time_than_the_grace_kills_at_once() {
    let world = world("abort_timeout = \"30s\"", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    let begun = world.clock.now();
    let records = shut_down(&world).await;
    assert!(world.clock.now().since(begun) < Duration::from_secs(1));
    let last = records.last().expect("some");
    assert!(matches!(last.event, Event::RunStopped(_)), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_session_that_no_shutdown_stops_is_left_to_its_handlers() {
    let world = world("stop_at_shutdown = false", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    world.runtime.stop_sessions_for_shutdown().await;
    assert_eq!(status(&world).await, Status::Running);
    let records = shut_down(&world).await;
    let is_stop = |record: &&Record| {
        matches!(&record.event, Event::RunStopping(stopping)
            if stopping.cause == StopCause::Shutdown)
    };
    assert_eq!(records.iter().filter(is_stop).count(), 0, "{records:#?}");
    let ended = records.iter().any(|record| matches!(record.event, Event::Ended(_)));
    assert!(ended, "its handler stopped gracefully: {records:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_entity_without_limits_is_no_session() {
    let world = World::of(&[]).await;
    assert_eq!(world.runtime.session_status(&one()).await, Ok(None));
    let refused = world.runtime.stop_session(&one(), operator()).await.expect_err("none");
    assert!(matches!(refused, ActorError::Refused { .. }), "{refused}");
    assert!(refused.to_string().contains("it is no session"), "{refused}");
}

#[tokio::test]
async fn only_operators_stop_and_resume_sessions_where_they_are_named() {
    let spec = Spec::parse(&format!("{SESSION}\n[limits]\n")).spec.expect("sound");
    let journal = Arc::new(MemoryJournal::new());
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let builder = Runtime::builder(Arc::clone(&journal) as _).operators(["ann"]).specs([spec]);
    let runtime = builder.telemetry(telemetry).build().await.expect("an empty journal");
    runtime.create(one()).await.expect("a new session");
    let last = async || {
        let page = journal.read(Position(1), 100).await.expect("it is in memory");
        page.entries.len()
    };
    let before = last().await;
    let mallory = ActorError::NotAnOperator { by: "mallory".to_owned() };
    let by = |by: &str| StopCause::Operator { by: by.to_owned(), reason: String::new() };
    let stop =
        async |cause| runtime.stop_session(&one(), SessionStop { run_seq: None, cause }).await;
    assert_eq!(stop(by("mallory")).await, Err(mallory.clone()));
    assert_eq!(last().await, before, "nothing has changed");
    // Other causes have no name.
    stop(StopCause::Shutdown).await.expect("it runs");
    let resume_by = |by: &str| SessionResume { by: by.to_owned(), ..resume() };
    let refused = runtime.resume_session(&one(), resume_by("mallory")).await;
    assert_eq!(refused, Err(mallory));
    runtime.resume_session(&one(), resume_by("ann")).await.expect("she is one");
    stop(by("ann")).await.expect("it runs");
    let counted = "temper_cancels_refused_total{of=\"session\"} 1";
    let text = exporter.render();
    assert!(text.lines().any(|line| line == counted), "{counted} in {text}");
}

#[tokio::test(start_paused = true)]
async fn changed_ceilings_hold_for_later_runs() {
    let of_all = |seconds: u64| {
        let mut settings = LimitSettings::default();
        settings.set(Limit::RunTimeout, Setting::At(seconds * 1_000));
        Ceilings { of_all: Some(settings), ..Ceilings::default() }
    };
    let budget = async |world: &World| {
        let status = world.runtime.session_status(&one()).await.expect("it lives");
        status.and_then(|status| status.budget_left_ms)
    };
    let world = world("run_timeout = \"1000s\"", &[]).await;
    world.runtime.set_ceilings(of_all(100));
    assert_eq!(budget(&world).await, Some(1_000_000), "it keeps what it was started with");
    pass_ms(1_000_003).await;
    assert_eq!(status(&world).await, Status::Blocked);
    world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    assert_eq!(budget(&world).await, Some(100_000));
    pass_ms(100_003).await;
    assert_eq!(status(&world).await, Status::Blocked);
    world.runtime.set_ceilings(Ceilings::default());
    world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    assert_eq!(budget(&world).await, Some(1_000_000));
    world.replays().await;
}

/// Why the run of `entity` was to stop, if it was.
async fn stopping(world: &World, entity: &EntityRef) -> Option<RunStopping> {
    let records = world.records().await.into_iter();
    let mut stops = records.filter_map(|record| match record.event {
        Event::RunStopping(stopping) if record.entity.as_ref() == Some(entity) => Some(*stopping),
        _ => None,
    });
    let first = stops.next();
    assert!(stops.next().is_none(), "one stop for each run");
    first
}

/// A session whose handler waits for what it has asked another one for, with these limits.
async fn parent_and_child(limits: &str, of_child: Act) -> World {
    let ask = Act::Ask(two(), "ProcessToolCalls", AskUntil::Settled, Box::new(Act::Hang));
    let world = world(limits, &[ask, of_child]).await;
    world.runtime.create(two()).await.expect("a new session");
    world.send("ProcessToolCalls").await.expect("taken");
    pass(5).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 2);
    world
}

const WITH_PARENT: &str = "stop_with_parent = true\nabort_timeout = \"3s\"";

#[tokio::test(start_paused = true)]
async fn a_session_that_works_only_for_another_stops_with_it() {
    let world = parent_and_child(WITH_PARENT, Act::Hang).await;
    let begun = world.clock.now();
    world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    settle().await;
    let asked = world.script.started.lock().expect("no panic")[1].stop.is_stop_requested();
    assert!(asked, "it has its grace");
    let stopping = stopping(&world, &two()).await.expect("it is stopped");
    let reason = "Session/one was stopped (operator_cancelled)".to_owned();
    assert_eq!(stopping.cause, StopCause::Parent { parent: Some(one()), reason });
    assert_eq!((&*stopping.stop_reason_code, stopping.grace_ms), ("parent_stopped", 3_000));
    pass_ms(3_002).await;
    assert!(world.clock.now().since(begun) < Duration::from_secs(4));
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0);
    let child = world.runtime.session_status(&two()).await.expect("it lives").expect("one");
    assert_eq!((child.status, child.directive), (Status::Done, Some(Directive::Cancel)));
    assert_eq!(child.state, "Stopped", "as its author declared");
    let world = world.restart_after(1).await;
    assert_eq!(counts(&world.script)["started"], 2, "nothing runs again");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_outlives_its_parent_by_default() {
    let world = parent_and_child("", Act::Hang).await;
    world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    settle().await;
    assert_eq!(world.runtime.entity(&two()).await.expect("it lives").state, "Stopped");
    assert_eq!(stopping(&world, &two()).await, None, "its handler ended without a stop");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_works_for_others_too_outlives_its_parent() {
    // Its handler continues for another asker when the state is left.
    let source =
        SESSION.replace("name = \"run_tools\"", "name = \"run_tools\"\nkeep_on_exit = true");
    let source = format!("{source}{AGAIN}\n[limits]\n{WITH_PARENT}\n");
    let ask = Act::Ask(two(), "ProcessToolCalls", AskUntil::Settled, Box::new(Act::Hang));
    let world = World::with(&source, &[ask, Act::Hang, Act::Hang]).await;
    world.runtime.create(two()).await.expect("a new session");
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    world.runtime.send(&two(), "Again", Default::default()).await.expect("taken");
    pass(1).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 3);
    world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    settle().await;
    assert_eq!(stopping(&world, &two()).await, None);
    assert_eq!(world.script.running.load(Ordering::SeqCst), 1, "no other caller waits for it");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_parent_that_goes_on_later_leaves_its_child_alive() {
    let limits = format!("{WITH_PARENT}\nrun_timeout = \"1000s\"");
    let world = parent_and_child(&limits, Act::Hang).await;
    world
        .runtime
        .stop_session(&two(), SessionStop { run_seq: Some(2), cause: StopCause::Trap })
        .await
        .expect_err("another run");
    let shutdown = SessionStop { run_seq: None, cause: StopCause::Shutdown };
    world.runtime.stop_session(&one(), shutdown).await.expect("it runs");
    pass(4).await;
    assert_eq!(status(&world).await, Status::Blocked);
    assert_eq!(stopping(&world, &two()).await, None, "its parent can be resumed, and needs it");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_embedder_can_stop_a_session_on_behalf_of_its_own_parent() {
    let world = world("abort_timeout = \"2s\"", &[Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1).await;
    let reason = "the workflow is gone".to_owned();
    let cause = StopCause::Parent { parent: None, reason };
    let stopped = world.runtime.stop_session(&one(), SessionStop { run_seq: None, cause }).await;
    assert_eq!(stopped.expect("it runs").directive, Directive::Cancel);
    assert_eq!(status(&world).await, Status::Stopping, "it has its grace");
    pass_ms(2_002).await;
    assert_eq!(status(&world).await, Status::Done);
    assert_eq!(stops(&world).await[0].stop_reason_code, "parent_stopped");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_fails_keeps_no_child_alive() {
    let world = parent_and_child(WITH_PARENT, Act::Hang).await;
    world.journal.set_failing(disk_full());
    world.runtime.stop_session(&one(), operator()).await.expect("it runs");
    pass(4).await;
    assert_eq!(world.script.running.load(Ordering::SeqCst), 0);
    world.journal.set_failing(None);
    pass(10).await;
    let stopping = stopping(&world, &two()).await.expect("it was stopped");
    assert_eq!(stopping.stop_reason_code, "parent_stopped");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_session_has_scheduled_waits_for_its_next_run() {
    let source = SESSION.replace("delay_seconds = 86400", "delay_seconds = 5000");
    let limits = "[limits]\nrun_timeout = \"3600s\"\n";
    let world = World::with(&format!("{source}\n{limits}"), &[Act::Hang]).await;
    world.send("Later").await.expect("taken");
    pass(6_000).await;
    assert_eq!((status(&world).await, &*world.state().await), (Status::Blocked, "Idle"));
    world.runtime.resume_session(&one(), resume()).await.expect("blocked");
    pass_ms(1).await;
    assert_eq!(world.state().await, "Executing", "it came due meanwhile");
    world.replays().await;
}

/// The stop, the end and the next run are recorded after the journal has failed: the timers of the
/// run before must not stop the new one.
#[tokio::test(start_paused = true)]
async fn a_run_that_begins_when_the_journal_works_again_is_measured_from_its_own_start() {
    let source = SESSION.replace("deadline = \"900s\"", "deadline = \"90s\"");
    let limits = "[limits]\nrun_timeout = \"100s\"\nabort_timeout = \"1s\"\n\
                  [limits.retry]\nrun_timeout = 2\n";
    let world = World::with(&format!("{source}\n{limits}"), &[Act::Hang, Act::Hang]).await;
    pass(50).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(60).await;
    world.journal.set_failing(None);
    pass(50).await;
    let found: Vec<(Limit, u64)> =
        breaches(&world).await.iter().map(|breach| (breach.limit, breach.observed)).collect();
    assert_eq!(found, [(Limit::RunTimeout, 100_001)], "one breach, of the first run");
    assert_eq!(status(&world).await, Status::Running);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_stopped_while_the_disk_fails_though_it_was_active_before() {
    let world = world("progress_timeout = \"50s\"", &[Act::TellAndHang(2)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(40).await;
    assert_eq!(running(&world), 1);
    pass(40).await;
    assert_eq!(running(&world), 0, "it was stopped all the same");
    world.journal.set_failing(None);
    pass(10).await;
    let found: Vec<Limit> = breaches(&world).await.iter().map(|breach| breach.limit).collect();
    assert!(found.contains(&Limit::ProgressTimeout), "{found:?}");
    world.replays().await;
}

/// A signal that waited while the disk failed is older than what was recorded since.
#[tokio::test(start_paused = true)]
async fn activity_that_waited_does_not_set_back_what_was_recorded_since() {
    let limits = "[limits]\nprogress_timeout = \"50s\"\nabort_timeout = \"1s\"\n";
    let acts = [Act::TellAndHang(2), Act::Hang];
    let world = World::with(&format!("{SESSION}\n{AGAIN}\n{limits}"), &acts).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(1).await;
    world.journal.set_failing(None);
    pass(30).await;
    world.send("Again").await.expect("taken");
    world.journal.set_failing(disk_full());
    world.send("Again").await.expect_err("the disk is full");
    pass(30).await;
    assert_eq!(running(&world), 2, "the last progress was 30 s ago");
    pass(30).await;
    assert_eq!(running(&world), 0);
    world.journal.set_failing(None);
    pass(10).await;
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_warning_that_cannot_be_recorded_hides_no_limit() {
    let limits = "inactivity_warn = \"10s\"\nprogress_timeout = \"50s\"\nabort_timeout = \"1s\"";
    let world = world(limits, &[Act::TellAfterAndHang(12)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(11).await;
    world.journal.set_failing(disk_full());
    pass(45).await;
    assert_eq!(running(&world), 1, "its last progress was 44 s ago");
    pass(15).await;
    assert_eq!(running(&world), 0);
    world.journal.set_failing(None);
    pass(10).await;
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_end_waits_for_the_journal_is_not_inactive() {
    let limits = "progress_timeout = \"50s\"\nabort_timeout = \"1s\"";
    let world = world(limits, &[Act::Answer(10, completed())]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(5).await;
    world.journal.set_failing(disk_full());
    pass(60).await;
    world.journal.set_failing(None);
    pass(10).await;
    assert_eq!(breaches(&world).await, []);
    assert_eq!(world.state().await, "Done");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_hang_is_measured_from_the_activity_before_it_though_that_was_recorded_late() {
    let limits = "progress_timeout = \"50s\"\nabort_timeout = \"1s\"";
    let world = world(limits, &[Act::TellAndHang(2)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(45).await;
    world.journal.set_failing(None);
    pass(15).await;
    assert_eq!(running(&world), 0);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_would_be_refused_stops_nothing_while_the_disk_fails() {
    let acts = [Act::Answer(5, completed()), Act::Hang];
    let limits = "[limits]\nabort_timeout = \"1s\"\n";
    let world = World::with(&format!("{SESSION}\n{AGAIN}\n{limits}"), &acts).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.send("Again").await.expect("taken");
    world.journal.set_failing(disk_full());
    pass(6).await;
    let other = SessionStop { run_seq: Some(7), ..operator() };
    let refused = world.runtime.stop_session(&one(), other).await;
    assert!(matches!(refused, Err(ActorError::Refused { .. })), "{refused:?}");
    pass(10).await;
    assert_eq!(running(&world), 1);
    world.runtime.stop_session(&one(), operator()).await.expect("carried out");
    pass(10).await;
    assert_eq!(running(&world), 0);
    world.journal.set_failing(None);
    pass(10).await;
    assert_eq!(status(&world).await, Status::Done);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_not_recorded_yet_is_recorded_before_the_host_has_shut_down() {
    let world = world("", &[Act::Hang]).await;
    let mut seen = world.runtime.subscribe();
    world.journal.set_failing(disk_full());
    let stopped = world.runtime.stop_session(&one(), operator()).await.expect("carried out");
    assert!(!stopped.is_recorded);
    let journal = Arc::clone(&world.journal);
    tokio::spawn(async move {
        pass(2).await;
        journal.set_failing(None);
    });
    world.runtime.shutdown(Duration::from_secs(10)).await;
    let records = published(&mut seen).await;
    let kinds: Vec<_> = records.iter().map(|record| record.event.kind()).collect();
    assert_eq!(kinds, ["run.stopping", "run.stopped"]);
}

#[tokio::test(start_paused = true)]
async fn host_calls_keep_a_session_active_and_the_silence_counts_from_the_last_one() {
    let limits = "inactivity_warn = \"3m\"\ninactivity_timeout = \"6m\"\nabort_timeout = 0";
    // Four calls, one every 100 seconds, and then none.
    let calls = Act::CallEvery(100, 4, Box::new(Act::Hang));
    let world = world(limits, &[calls]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(400).await;
    assert_eq!(breaches(&world).await, [], "it was never silent for three minutes");
    assert_eq!(status(&world).await, Status::Running);
    pass_ms(180_002).await;
    let found = breaches(&world).await;
    let limits: Vec<Limit> = found.iter().map(|breach| breach.limit).collect();
    assert_eq!(limits, [Limit::InactivityWarn]);
    assert_eq!(found[0].observed, 180_001);
    let last = found[0].last_signal.as_ref().expect("the last call");
    assert_eq!((last.kind.as_str(), last.of.as_deref()), ("host_call", Some("run_tools")));
    assert_eq!(status(&world).await, Status::Silent);
    pass_ms(180_002).await;
    let limits: Vec<Limit> = breaches(&world).await.iter().map(|breach| breach.limit).collect();
    assert!(limits.contains(&Limit::InactivityTimeout), "{limits:?}");
    assert_eq!(status(&world).await, Status::Done);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn the_first_host_call_after_a_warning_is_recorded_at_once() {
    let calls = Act::CallEvery(400, 1, Box::new(Act::Hang));
    let world = world("inactivity_warn = \"5m\"", &[calls]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(399).await;
    assert_eq!(status(&world).await, Status::Silent);
    pass_ms(1_002).await;
    assert_eq!(status(&world).await, Status::Running);
    let records = world.records().await;
    let last = &records.last().expect("a record").event;
    let Event::LimitCleared { silent_ms, last_signal, .. } = last else { panic!("{last:?}") };
    assert_eq!(*silent_ms, 400_000);
    assert_eq!(last_signal.as_ref().map(|signal| signal.kind.as_str()), Some("host_call"));
    world.replays().await;
}

/// An entity without limits, whose handlers may take an hour.
async fn unlimited(acts: &[Act]) -> World {
    World::with(&SESSION.replace("deadline = \"900s\"", "deadline = \"1h\""), acts).await
}

#[tokio::test(start_paused = true)]
async fn handlers_of_an_entity_without_limits_are_stuck_and_silent_and_no_session() {
    // Four calls, one every 100 seconds, and then none.
    let world = unlimited(&[Act::CallEvery(100, 4, Box::new(Act::Hang))]).await;
    assert_eq!(world.runtime.session_status(&one()).await, Ok(None));
    world.send("ProcessToolCalls").await.expect("taken");
    pass(699).await;
    assert_eq!(status(&world).await, Status::Running, "its last call is 299 seconds ago");
    pass(2).await;
    assert_eq!(status(&world).await, Status::Stuck);
    assert_eq!(breaches(&world).await, []);
    pass_ms(299_002).await;
    assert_eq!(status(&world).await, Status::Silent);
    let awake = world.runtime.awake_sessions(None, |_| true);
    let [view] = &awake[..] else { panic!("{awake:?}") };
    assert_eq!((view.status, view.stuck, view.run_seq), (Status::Silent, true, None));
    let stop = world.runtime.stop_session(&one(), operator()).await;
    assert!(matches!(stop, Err(ActorError::Refused { .. })), "it is no session: {stop:?}");

    pass(2_000).await;
    let found = breaches(&world).await;
    let [breach] = &found[..] else { panic!("one in each silence, not {found:?}") };
    assert_eq!((breach.limit, breach.observed), (Limit::InactivityWarn, 600_001));
    assert_eq!((breach.scope, &breach.session, breach.run_seq), (Scope::Handler, &None, None));
    let last = breach.last_signal.as_ref().expect("the last call");
    assert_eq!((last.kind.as_str(), last.of.as_deref()), ("host_call", Some("run_tools")));
    let doing = breach.in_flight.as_ref().expect("its handler");
    assert_eq!(doing.handler, "run_tools");
    world.until("TimedOut").await;
    let kinds = world.kinds().await;
    assert_eq!(kinds[kinds.len() - 3..], ["ended", "limit.cleared", "transition"]);
    assert_eq!(world.runtime.session_status(&one()).await, Ok(None));
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_host_call_ends_the_silence_of_a_handler_and_a_restart_warns_of_none() {
    let world = unlimited(&[Act::CallEvery(700, 1, Box::new(Act::Hang))]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(699).await;
    assert_eq!(status(&world).await, Status::Silent);
    pass_ms(1_002).await;
    assert_eq!(status(&world).await, Status::Running);
    let records = world.records().await;
    let last = &records.last().expect("a record").event;
    let Event::LimitCleared { run_seq: None, silent_ms, last_signal, .. } = last else {
        panic!("{last:?}")
    };
    assert_eq!(*silent_ms, 700_000);
    assert_eq!(last_signal.as_ref().map(|signal| signal.kind.as_str()), Some("host_call"));

    // The handler is lost with its host, which was silent for longer.
    let world = world.restart_after(10_000).await;
    settle().await;
    assert_eq!(world.runtime.session_status(&one()).await, Ok(None));
    assert_eq!(breaches(&world).await.len(), 1, "that of before");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn what_an_asked_entity_does_is_activity_of_the_asker() {
    let limits = "\n[limits]\ninactivity_warn = \"5m\"\ndeadline = \"1h\"\n";
    let source = format!("{SESSION}{limits}").replace("deadline = \"900s\"\n", "");
    let ask = Act::Ask(two(), "ProcessToolCalls", AskUntil::Settled, Box::new(Act::Hang));
    let calls = Act::CallEvery(200, 5, Box::new(Act::Answer(1, completed())));
    let world = World::with(&source, &[ask, calls]).await;
    world.runtime.create(two()).await.expect("a new entity");
    world.send("ProcessToolCalls").await.expect("taken");
    pass(1_100).await;
    assert_eq!(breaches(&world).await, [], "the asked entity calls its tools");
    pass(300).await;
    let found = breaches(&world).await;
    let limits: Vec<Limit> = found.iter().map(|breach| breach.limit).collect();
    assert_eq!(limits, [Limit::InactivityWarn], "of the asker, now that it computes alone");
    assert_eq!((&found[0].session, found[0].run_seq), (&Some(one()), Some(1)));
    world.replays().await;
}

/// The host calls that timed out: the dispatch of each, if its handler was running, and how often.
async fn timed_out_calls(world: &World) -> Vec<(bool, u64)> {
    let breaches = breaches(world).await.into_iter();
    let calls = breaches.filter(|breach| breach.limit == Limit::HostCallTimeout);
    calls.map(|call| (call.dispatch.is_some(), call.times)).collect()
}

fn rerun_after_a_crash() -> String {
    let source =
        SESSION.replace("on_success = \"Finish\"", "on_crash = \"rerun\"\non_success = \"Finish\"");
    format!("{source}\n[limits]\n")
}

#[tokio::test(start_paused = true)]
async fn calls_that_timed_out_before_a_crash_are_recorded_and_the_next_attempt_learns_them() {
    let acts = [Act::CallsTimeOut(5, Box::new(Act::Hang)), Act::Answer(5, completed())];
    let world = World::with(&rerun_after_a_crash(), &acts).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(60).await;
    assert_eq!(timed_out_calls(&world).await, [(true, 1); 5], "while the handler hangs");
    let world = world.restart_after(10).await;
    assert_eq!(world.until("Done").await, 5);
    let recovery = world.script.started.lock().expect("no panic")[1].recovery.clone();
    let recovery = recovery.expect("its host was lost");
    assert_eq!(recovery.cause, "host_lost");
    let failure = recovery.failure.as_ref().expect("the calls");
    assert_eq!((failure.signature.error.as_str(), failure.count), ("host_call_timeout", 5));
    assert_eq!(timed_out_calls(&world).await, [(true, 1); 5], "and not again");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_time_out_faster_than_they_are_recorded_are_recorded_with_the_end() {
    let source = format!("{SESSION}\n[limits]\n");
    let then = Box::new(Act::Answer(1, completed()));
    let world = World::with(&source, &[Act::CallsTimeOut(150, then)]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(world.until("Done").await, 1);
    let mut expected = vec![(true, 1); SIGNAL_QUEUE_MAX];
    expected.push((false, 150 - SIGNAL_QUEUE_MAX as u64));
    assert_eq!(timed_out_calls(&world).await, expected);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_of_an_attempt_that_is_over_is_not_recorded() {
    let world = World::with(&rerun_after_a_crash(), &[Act::Panic, Act::Hang]).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(60).await;
    let runs = world.script.started.lock().expect("no panic").clone();
    let [first, second] = runs.as_slice() else { panic!("two attempts, not {}", runs.len()) };
    assert_eq!((first.dispatched.attempt, second.dispatched.attempt), (1, 2));
    time_out_a_call(first, WallTime::from_millis(1));
    settle().await;
    assert_eq!(timed_out_calls(&world).await, []);
    time_out_a_call(second, WallTime::from_millis(1));
    settle().await;
    assert_eq!(timed_out_calls(&world).await, [(true, 1)]);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_after_a_crash_and_the_next_session_of_a_conversation_learn_what_failed() {
    let source = SESSION
        .replace("initial = \"Idle\"\n", "initial = \"Idle\"\nconversation = \"thread\"\n")
        .replace(
            "[[action]]\nname = \"ProcessToolCalls\"",
            "[[state]]\nname = \"thread\"\ntype = \"string\"\n\n\
                  [[action]]\nname = \"Join\"\nfrom = [\"Idle\"]\nparams = [\"thread\"]\n\
                  effect = [{ type = \"set\", var = \"thread\", param = \"thread\" }]\n\n\
                  [[action]]\nname = \"ProcessToolCalls\"",
        )
        .replace("on_success = \"Finish\"", "on_crash = \"rerun\"\non_success = \"Finish\"");
    let source = format!("{source}\n[limits]\n");
    let acts = [Act::Hang, Act::Answer(5, failed()), Act::Hang, Act::Hang];
    let world = World::with(&source, &acts).await;
    let join = |name: EntityRef, thread: &'static str| {
        let params = [("thread".to_owned(), thread.into())].into();
        let runtime = world.runtime.clone();
        async move {
            runtime.send(&name, "Join", params).await.expect("taken");
            runtime.send(&name, "ProcessToolCalls", Default::default()).await.expect("taken");
        }
    };
    join(one(), "t-1").await;
    pass(60).await;
    let world = world.restart_after(10).await;
    assert_eq!(world.until("Failed").await, 5);
    let recovery = |nth: usize| {
        let started = world.script.started.lock().expect("no panic");
        started[nth].recovery.clone()
    };
    assert_eq!(recovery(0), None);
    let after_the_crash = recovery(1).expect("its host was lost");
    assert_eq!((after_the_crash.prior_run, after_the_crash.cause.as_str()), (1, "host_lost"));
    let failure = after_the_crash.failure.as_ref().expect("the interruption");
    assert_eq!((failure.signature.error.as_str(), failure.count), ("interrupted", 1));

    // Also after another restart, and for no other conversation.
    let world = world.restart_after(10).await;
    for (entity, thread) in [(two(), "t-1"), ("Session/three".parse().expect("a name"), "t-2")] {
        world.runtime.create(EntityRef::clone(&entity)).await.expect("a new entity");
        let params = [("thread".to_owned(), thread.into())].into();
        world.runtime.send(&entity, "Join", params).await.expect("taken");
        let none = Default::default();
        world.runtime.send(&entity, "ProcessToolCalls", none).await.expect("taken");
        settle().await;
    }
    let started = world.script.started.lock().expect("no panic").clone();
    let of_the_same = started[2].recovery.clone().expect("the first session has failed");
    assert_eq!((of_the_same.prior_run, of_the_same.cause.as_str()), (1, "completed"));
    assert_eq!(of_the_same.failure.as_ref().map(|failure| failure.count), Some(1));
    assert_eq!(started[2].session_id.as_deref(), Some("Session/two"));
    assert_eq!(started[3].recovery, None, "another conversation");
    world.replays().await;
}
