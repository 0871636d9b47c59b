//! Sessions: their runs, the limits that hold them, and what becomes of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandglass_insight::projection::{Projection, Shape};
use sandglass_insight::scan::Scan;
use sandglass_liveness::decide::CALLS_RECORDED_MAX;
use sandglass_liveness::session::{
    Anchor, Elapsed, LimitSettings, Shown, Status, default_limits, evaluate, preamble, recovery,
    status,
};
use sandglass_liveness::{
    Command, Entity, Input, Refusal, Replay, Resume, Retry, Spec, TimedOutCall,
};
use sandglass_model::report::{Calls, OVERRUNS_MAX};
use sandglass_model::{
    Account, AskUntil, Asked, Call, CallOutcome, Cancellation, CancelledBy, Cause, DeadlineOwner,
    Decision, Directive, DispatchId, Dispatched, Doing, Event, Failure, FailureKind, FunctionCalls,
    LastSignal, Limit, LimitBreached, Object, Outcome, Overrun, Position, Record, Recovery,
    Rejection, RejectionKind, Retried, RulesVersion, RunLimits, Scope, StopCause, WallTime,
};
use serde_json::json;

use crate::session::{Life, SESSION, ask_of, completed, end_of_run, ended, timed_out_of};

/// The session of the incident with these limits.
fn spec(limits: &str) -> String {
    format!("{SESSION}\n[limits]\n{limits}\n")
}

/// Such a session, started.
fn started(limits: &str) -> Life {
    of(&spec(limits))
}

/// A session that obeys `source`, started with the limits that it says.
pub(crate) fn of(source: &str) -> Life {
    let mut life = Life::of(source);
    let unsaid = LimitSettings::default();
    let declared = life.spec.limits.as_ref().expect("it has some").settings;
    let limits = declared.effective(&unsaid, &unsaid);
    life.tell(Input::Start { limits }).expect("a new session");
    life
}

fn limits(life: &Life) -> RunLimits {
    *life.entity().session().expect("a session").limits
}

/// How long ago its anchors are, by the wall clock.
fn elapsed(life: &Life) -> Elapsed {
    let now = WallTime::from_millis(life.now);
    let mut elapsed = Elapsed::default();
    for (anchor, _, at) in life.entity().session().expect("a session").anchors() {
        elapsed.set(anchor, now.since(at));
    }
    elapsed
}

/// A limit that is due, if the last host call of a handler was `active`.
fn limit_due(limit: Limit, observed_ms: u64, active: Option<LastSignal>) -> Input {
    Input::LimitDue { limit, observed_ms, doing: None, active }
}

/// Lets time pass to the next limit that is due, and tells it.
fn wait_for_a_limit(life: &mut Life) -> (Limit, Vec<Command>) {
    let session = life.entity().session().expect("a session");
    let found = evaluate(session, !life.entity().is_settled(), &elapsed(life));
    let next = found.next.expect("a limit that is measured");
    assert_eq!(found.due, None, "nothing is due yet");
    life.now += i64::try_from(next.as_nanos().div_ceil(1_000_000)).expect("soon");
    let session = life.entity().session().expect("a session");
    let due = evaluate(session, !life.entity().is_settled(), &elapsed(life)).due;
    let due = due.expect("a limit is due at its time");
    let input = limit_due(due.limit, due.observed_ms, None);
    (due.limit, life.tell(input).expect("it is due"))
}

pub(crate) fn killed(cause: Cause) -> Outcome {
    let by = CancelledBy::of(cause);
    Outcome::Cancelled(Cancellation { by, reason: String::new(), dying_span: None })
}

/// The end of the handler in flight that its run's stop has killed.
pub(crate) fn end_killed(life: &mut Life, cause: Cause) {
    let run = life.entity().in_flight()[0].dispatched.clone();
    let mut end = end_of_run(&run, killed(cause));
    end.cause = cause;
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("it was in flight");
}

pub(crate) fn replays(life: &Life) {
    let mut replay = Replay::new();
    life.log.iter().for_each(|record| replay.feed(record));
    let summary = replay.finish();
    assert_eq!(summary.divergences, [], "what was decided is decided again");
}

pub(crate) fn resume(life: &Life, expected_run: Option<u32>) -> Input {
    let (by, reason) = ("ann".to_owned(), "it was my laptop".to_owned());
    Input::Resume(Box::new(Resume { by, reason, expected_run, limits: limits(life) }))
}

pub(crate) fn shown(life: &Life) -> Status {
    status(life.entity(), WallTime::from_millis(life.now)).expect("a session").status
}

#[test]
fn a_run_over_its_time_is_blocked_and_can_be_resumed() {
    let mut life = started("run_timeout = \"1h\"");
    life.now += 1_000;
    let dispatch = life.start();
    life.now = 1_000 + 3_600_000 - 100_000;
    let before = life.log.len();
    // The silence of 50 minutes is warned of first.
    let (limit, commands) = wait_for_a_limit_or_later(&mut life);
    assert_eq!((limit, commands), (Limit::InactivityWarn, Vec::new()));
    let (limit, commands) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::RunTimeout);
    assert_eq!(commands, [Command::RequestStop { dispatch }]);
    assert_eq!(life.kinds(before), ["limit.breached", "limit.breached", "run.stopping"]);
    let Event::LimitBreached(breach) = &life.log[before + 1].event else { panic!("a breach") };
    assert_eq!((breach.threshold, breach.observed), (3_600_000, 3_600_001));
    assert_eq!(shown(&life), Status::Stopping);

    // It doesn't end by itself, so it is killed when its grace is over.
    let (limit, commands) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::AbortTimeout);
    let reason = "watchdog_wall_clock_exceeded".to_owned();
    assert_eq!(commands, [Command::Kill { dispatch, cause: Cause::RunStopped, reason }]);
    end_killed(&mut life, Cause::RunStopped);
    assert_eq!(life.state(), "Executing", "a blocked session keeps its state");
    let Some(Event::RunStopped(stopped)) = life.log.last().map(|record| &record.event) else {
        panic!("it has stopped")
    };
    assert_eq!(stopped.stop_reason_code, "watchdog_wall_clock_exceeded");
    assert_eq!(stopped.directive, Some(Directive::Wait));
    assert_eq!(shown(&life), Status::Blocked);
    assert!(!life.entity().has_ended(&life.spec));

    // Nothing is taken until it is resumed; then its handler is dispatched anew.
    let refused = life.act("Pause").expect_err("it is blocked");
    assert!(matches!(refused, Refusal::RunStopped { run_seq: 1, can_be_resumed: true, .. }));
    assert_eq!(life.entity().idle_timer(&life.spec), None, "its timers stand still");
    life.now += 86_400_000;
    let input = resume(&life, Some(1));
    let commands = life.tell(input).expect("it waits for that");
    let [Command::Start(anew)] = &commands[..] else { panic!("one start, not {commands:?}") };
    assert_eq!((anew.dispatch, anew.attempt), (dispatch, 2));
    let session = life.entity().session().expect("a session");
    assert_eq!((session.run_seq, session.held()), (2, &[][..]));
    assert_eq!(elapsed(&life).since(Anchor::Run), Duration::ZERO, "a resume starts a fresh window");
    life.tell(ended(dispatch, 2, completed(Some("Finish")))).expect("it goes on");
    assert_eq!(life.state(), "Done");
    assert_eq!(shown(&life), Status::Done);
    replays(&life);
}

#[test]
fn without_a_grace_handlers_are_killed_at_once() {
    for none in ["0", "\"0\"", "\"0s\""] {
        let mut life = started(&format!("run_timeout = \"1h\"\nabort_timeout = {none}"));
        life.now = 1_000 + 3_500_000;
        let dispatch = life.start();
        let (limit, commands) = wait_for_a_limit(&mut life);
        assert_eq!(limit, Limit::RunTimeout, "{none}");
        let reason = "watchdog_wall_clock_exceeded".to_owned();
        assert_eq!(commands, [Command::Kill { dispatch, cause: Cause::RunStopped, reason }]);
        let session = life.entity().session().expect("a session");
        let found = evaluate(session, true, &elapsed(&life));
        assert_eq!((found.due, found.next), (None, None), "nothing more is waited for");
        end_killed(&mut life, Cause::RunStopped);
        assert_eq!(shown(&life), Status::Blocked);
        replays(&life);
    }
}

fn cancel() -> Input {
    let (by, reason) = ("ann".to_owned(), "enough".to_owned());
    Input::Stop { run_seq: None, cause: StopCause::Operator { by, reason } }
}

#[test]
fn a_blocked_session_is_cancelled_with_its_held_handlers() {
    let mut life = started("run_timeout = \"1h\"\ninactivity_warn = 0");
    life.now += 3_500_000;
    let dispatch = life.start();
    assert_eq!(wait_for_a_limit(&mut life).0, Limit::RunTimeout);
    assert_eq!(wait_for_a_limit(&mut life).0, Limit::AbortTimeout);
    end_killed(&mut life, Cause::RunStopped);
    assert_eq!((life.state(), shown(&life)), ("Executing", Status::Blocked));

    let before = life.log.len();
    assert_eq!(life.tell(cancel()).expect("it isn't over"), [], "nothing starts");
    assert_eq!(
        life.kinds(before),
        [
            "session.resumed",
            "run.started",
            "run.stopping",
            "dispatched",
            "ended",
            "transition",
            "run.stopped"
        ]
    );
    let Event::Ended(ended) = &life.log[before + 4].event else { panic!("an end") };
    assert_eq!((ended.dispatch, ended.attempt, ended.cause), (dispatch, 2, Cause::Cancel));
    assert_eq!(ended.decision, Decision::Take { action: "Stop".to_owned() });
    let Some(Event::RunStopped(stopped)) = life.log.last().map(|record| &record.event) else {
        panic!("it has stopped")
    };
    assert_eq!((stopped.run_seq, stopped.directive), (2, Some(Directive::Cancel)));
    assert_eq!(stopped.stop_reason_code, "operator_cancelled");
    assert_eq!(shown(&life), Status::Done);
    let refused = life.tell(cancel()).expect_err("it is over");
    assert!(matches!(refused, Refusal::RunStopped { can_be_resumed: false, .. }), "{refused}");
    replays(&life);
}

#[test]
fn only_an_operator_ends_a_blocked_session() {
    let mut life = started("run_timeout = \"1h\"\ninactivity_warn = 0");
    assert_eq!(wait_for_a_limit(&mut life).0, Limit::RunTimeout);
    assert_eq!(shown(&life), Status::Blocked);
    let before = life.log.len();
    for cause in [StopCause::Shutdown, StopCause::Parent { parent: None, reason: String::new() }] {
        let refused = life.tell(Input::Stop { run_seq: None, cause }).expect_err("no run");
        assert!(matches!(refused, Refusal::RunStopped { can_be_resumed: true, .. }), "{refused}");
    }
    assert_eq!(life.log.len(), before);
    life.tell(cancel()).expect("it isn't over");
    assert_eq!(
        life.kinds(before),
        ["session.resumed", "run.started", "run.stopping", "run.stopped"]
    );
    assert_eq!(shown(&life), Status::Done);
    replays(&life);
}

/// As [`wait_for_a_limit`], where one may be due already.
fn wait_for_a_limit_or_later(life: &mut Life) -> (Limit, Vec<Command>) {
    let session = life.entity().session().expect("a session");
    let due = evaluate(session, !life.entity().is_settled(), &elapsed(life)).due;
    let due = due.expect("due already");
    let input = limit_due(due.limit, due.observed_ms, None);
    (due.limit, life.tell(input).expect("it is due"))
}

#[test]
fn a_session_can_be_blocked_and_resumed_any_number_of_times_within_its_execution_timeout() {
    let mut life =
        started("run_timeout = \"1h\"\nexecution_timeout = \"150m\"\ninactivity_warn = 0");
    for run in 1..=2 {
        let (limit, _) = wait_for_a_limit(&mut life);
        assert_eq!(limit, Limit::RunTimeout);
        let session = life.entity().session().expect("a session");
        assert_eq!((session.run_seq, session.is_running()), (run, false));
        let input = resume(&life, Some(run));
        life.tell(input).expect("blocked");
        let stale = resume(&life, Some(run));
        assert!(matches!(life.tell(stale), Err(Refusal::NotTheRun { .. })));
    }
    let (limit, _) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::ExecutionTimeout, "it goes on across resumes");
    assert_eq!(shown(&life), Status::Done);
    let input = resume(&life, None);
    let refused = life.tell(input).expect_err("it is over");
    assert!(refused.to_string().contains("already stopped"), "{refused}");
    replays(&life);
}

#[test]
fn inactivity_is_warned_of_once_and_cleared_by_the_next_activity() {
    let mut life = started("inactivity_warn = \"10m\"");
    assert_eq!(
        evaluate(life.entity().session().expect("one"), false, &elapsed(&life)).next,
        Some(Duration::from_secs(14_400) + Duration::from_nanos(1)),
        "who waits for a person isn't silent"
    );
    let dispatch = life.start();
    let (limit, _) = wait_for_a_limit(&mut life);
    assert_eq!((limit, shown(&life)), (Limit::InactivityWarn, Status::Silent));
    let before = life.log.len();
    life.now += 5_000;
    let signal = Input::Signal {
        name: "heartbeat".to_owned(),
        from: None,
        dispatch: Some(dispatch),
        payload: json!(null),
    };
    life.tell(signal).expect("taken");
    assert_eq!(life.kinds(before), ["signal", "limit.cleared"]);
    let Event::LimitCleared { silent_ms, .. } = life.log[before + 1].event else { panic!() };
    assert_eq!(silent_ms, 605_001);
    assert_eq!(shown(&life), Status::Running);
    let (limit, _) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::InactivityWarn, "it is armed again");
    replays(&life);
}

#[test]
fn a_host_call_moves_the_silence_and_ends_it() {
    let mut life = started("inactivity_warn = \"10m\"\ninactivity_timeout = \"30m\"");
    life.start();
    let started_at = life.now;
    let call = |at| LastSignal {
        kind: "host_call".to_owned(),
        of: Some("run_tools".to_owned()),
        at: WallTime::from_millis(at),
    };
    // The last host call ended three minutes after the start: silence counts from then on.
    let active = call(started_at + 180_000);
    life.now = started_at + 780_001;
    let input = limit_due(Limit::InactivityWarn, 600_001, Some(active.clone()));
    life.tell(input).expect("it is due");
    let Event::LimitBreached(breach) = &life.log.last().expect("a record").event else { panic!() };
    assert_eq!((breach.observed, breach.last_signal.as_ref()), (600_001, Some(&active)));
    assert_eq!(life.entity().session().expect("one").active_since(), active.at);
    assert_eq!(shown(&life), Status::Silent);

    // Activity that is not later ends nothing; the next host call ends the silence.
    let before = life.log.len();
    assert!(life.tell(Input::Active(active)).is_err());
    life.now += 5_000;
    let ended = call(life.now - 1_000);
    life.tell(Input::Active(ended.clone())).expect("it was silent");
    assert_eq!(life.kinds(before), ["limit.cleared"]);
    let Event::LimitCleared { silent_ms, last_signal, .. } = &life.log[before].event else {
        panic!()
    };
    assert_eq!(*silent_ms, 604_001);
    assert_eq!(last_signal.as_deref(), Some(&ended));
    assert_eq!(shown(&life), Status::Running);
    assert!(life.tell(Input::Active(ended)).is_err(), "it is no longer silent");
    let (limit, _) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::InactivityWarn, "it is armed again");
    replays(&life);
}

#[test]
fn the_status_counts_host_calls_that_no_record_shows() {
    let mut life = started("stuck_after = \"5m\"\ninactivity_warn = \"10m\"");
    life.start();
    life.now += 400_000;
    let view = |active| {
        let session = life.entity().session().expect("one");
        let shown = Shown {
            name: &life.entity().entity,
            state: &life.entity().state,
            sequence: life.entity().sequence,
            watched: session.into(),
            active,
            handlers: vec!["run_tools".to_owned()],
        };
        shown.status(WallTime::from_millis(life.now))
    };
    assert_eq!(view(None).status, Status::Stuck);
    let active = LastSignal {
        kind: "host_call".to_owned(),
        of: None,
        at: WallTime::from_millis(life.now - 2_000),
    };
    let shown = view(Some(active.clone()));
    assert_eq!((shown.status, shown.silent_ms), (Status::Running, Some(2_000)));
    assert_eq!(shown.last_signal, Some(active));
}

#[test]
fn synthetic_signals_are_not_activity_and_activity_is_not_progress() {
    let mut life = started(
        "inactivity_timeout = \"20m\"\nprogress_timeout = \"30m\"\nsynthetic = [\"keep_alive\"]",
    );
    life.spec.limits.as_ref().expect("some");
    let dispatch = life.start();
    let signal = |life: &mut Life, name: &str| {
        let (name, payload) = (name.to_owned(), json!(null));
        let from = None;
        life.tell(Input::Signal { name, from, dispatch: Some(dispatch), payload }).expect("taken");
    };
    life.now += 60_000;
    signal(&mut life, "keep_alive");
    assert_eq!(elapsed(&life).since(Anchor::Activity), Duration::from_secs(60));
    signal(&mut life, "heartbeat");
    assert_eq!(elapsed(&life).since(Anchor::Activity), Duration::ZERO);
    assert_eq!(elapsed(&life).since(Anchor::Progress), Duration::from_secs(60));
    for _ in 0..4 {
        life.now += 6 * 60_000;
        signal(&mut life, "heartbeat");
    }
    let (limit, commands) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::ProgressTimeout);
    assert_eq!(commands, [Command::RequestStop { dispatch }]);
    end_killed(&mut life, Cause::RunStopped);
    let session = life.entity().session().expect("a session");
    assert_eq!(session.directive(), Some(Directive::Unstuck));
    assert_eq!(shown(&life), Status::Blocked);
    replays(&life);
}

#[test]
fn an_operator_stops_at_once_and_for_good() {
    let mut life = started("");
    let dispatch = life.start();
    let cause = StopCause::Operator { by: "ann".to_owned(), reason: "wrong branch".to_owned() };
    let stop = Input::Stop { run_seq: Some(1), cause };
    let commands = life.tell(stop.clone()).expect("it goes on");
    let reason = "by ann: wrong branch".to_owned();
    assert_eq!(commands, [Command::Kill { dispatch, cause: Cause::Cancel, reason }]);
    let second = life.tell(stop.clone()).expect_err("the first holds");
    assert!(matches!(second, Refusal::RunStopping { .. }), "{second}");
    end_killed(&mut life, Cause::Cancel);
    assert_eq!(life.state(), "Stopped", "as its author declared");
    assert_eq!(shown(&life), Status::Done);
    let third = life.tell(stop).expect_err("it has stopped");
    assert!(third.to_string().starts_with("already stopped"), "{third}");
    assert!(life.entity().has_ended(&life.spec));
    replays(&life);
}

/// A session that goes round: each end of its handler starts the next one.
const LOOP: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Turning", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Turning"]

[[action]]
name = "Go"
from = ["Idle"]
to = "Turning"
effect = ["trigger turn"]

[[action]]
name = "Next"
from = ["Turning"]
effect = ["trigger turn"]

[[action]]
name = "Finish"
from = ["Turning"]
to = "Done"

[[action]]
name = "Fail"
from = ["Turning"]
effect = ["trigger turn"]

[[action]]
name = "HandlerTimedOut"
from = ["Turning"]
effect = ["trigger turn"]

[[integration]]
name = "turn"
trigger = "turn"
type = "wasm"
module = "turn"
deadline = "5m"
on_failure = "Fail"
on_cancelled = "Finish"

"#;

fn looping(limits: &str) -> Life {
    of(&format!("{LOOP}[limits]\n{limits}\n"))
}

fn in_flight(life: &Life) -> (DispatchId, u32) {
    let run = &life.entity().in_flight()[0].dispatched;
    (run.dispatch, run.attempt)
}

#[test]
fn a_turn_over_the_bound_is_not_started() {
    for (limit, expected) in [
        ("max_loop_iterations = 3", Limit::MaxLoopIterations),
        ("max_handler_runs = 4", Limit::MaxHandlerRuns),
    ] {
        let mut life = looping(limit);
        life.act("Go").expect("idle");
        for _ in 0..3 {
            let end = ended_within(&life, completed(Some("Next")));
            life.tell(end).expect("in flight");
        }
        let before = life.log.len();
        let end = ended_within(&life, completed(Some("Next")));
        let commands = life.tell(end);
        assert_eq!(commands, Ok(Vec::new()), "nothing is started");
        assert_eq!(
            life.kinds(before),
            [
                "ended",
                "transition",
                "limit.breached",
                "run.stopping",
                "dispatched",
                "ended",
                "run.stopped"
            ]
        );
        let Event::LimitBreached(breach) = &life.log[before + 2].event else { panic!("a breach") };
        assert_eq!((breach.limit, breach.observed), (expected, breach.threshold + 1));
        let Event::Ended(end) = &life.log[before + 5].event else { panic!("an end") };
        assert_eq!(end.decision, Decision::Dropped);
        assert_eq!(shown(&life), Status::Done);
        replays(&life);
    }
}

#[test]
fn repeated_failures_are_described_to_the_next_run() {
    let mut life = looping("run_timeout = \"1h\"\ninactivity_warn = 0");
    let params = json!({ "command": "make test", "token": "s3cret", "shape_key": "make" });
    let serde_json::Value::Object(params) = params else { panic!("an object") };
    let params: Object = params.into_iter().collect();
    life.act_with("Go", params).expect("idle");
    for round in 1..=5_u64 {
        let run = life.entity().in_flight()[0].dispatched.clone();
        life.now += 300_001;
        let outcome = timed_out_of(&Life::name(), &run);
        let before = life.log.len();
        let mut end = end_of_run(&run, outcome);
        end.started_at = Some(WallTime::from_millis(life.now - 300_001));
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
        let breaches: Vec<(Limit, u64, u64)> = life.log[before..]
            .iter()
            .filter_map(|record| match &record.event {
                Event::LimitBreached(breach) => {
                    Some((breach.limit, breach.threshold, breach.observed))
                }
                _ => None,
            })
            .collect();
        let deadline = (Limit::Deadline, 300_000, 300_001);
        // The shape of the first action is that of those that followed by themselves.
        if round > 1 {
            assert_eq!(breaches, [deadline, (Limit::RepeatThreshold, 1, round)]);
        } else {
            assert_eq!(breaches, [deadline]);
        }
    }
    let (limit, _) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::RunTimeout);
    end_killed(&mut life, Cause::RunStopped);
    let input = resume(&life, Some(1));
    life.tell(input).expect("blocked");
    let session = life.entity().session().expect("a session");
    let recovery = session.recovery.as_deref().expect("a run before");
    let text = preamble(recovery).expect("a failure");
    assert!(text.contains("tool=turn error_type=timeout repeated=5\u{d7}"), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
    replays(&life);
}

#[test]
fn a_limit_with_a_retry_budget_starts_the_next_run_by_itself() {
    let mut life = started("inactivity_timeout = \"16m\"\n[limits.retry]\ninactivity_timeout = 1");
    let dispatch = life.start();
    let next = |life: &mut Life| loop {
        let (limit, _) = wait_for_a_limit(life);
        if limit == Limit::InactivityTimeout {
            break;
        }
    };
    next(&mut life);
    let before = life.log.len();
    end_killed(&mut life, Cause::RunStopped);
    assert_eq!(
        life.kinds(before),
        ["ended", "run.stopped", "session.resumed", "run.started", "dispatched"]
    );
    assert_eq!(in_flight(&life), (dispatch, 2));
    next(&mut life);
    end_killed(&mut life, Cause::RunStopped);
    assert_eq!(shown(&life), Status::Done, "once, and no more");
    replays(&life);
}

#[test]
fn a_handler_that_ends_by_itself_in_its_grace_has_its_transition() {
    let mut life = looping("run_timeout = \"10m\"");
    life.act("Go").expect("idle");
    let (dispatch, attempt) = in_flight(&life);
    let (limit, _) = wait_for_a_limit(&mut life);
    assert_eq!(limit, Limit::RunTimeout);
    let before = life.log.len();
    let end = ended_within(&life, completed(Some("Next")));
    assert_eq!(life.tell(end), Ok(Vec::new()), "what follows is not begun");
    assert_eq!(life.kinds(before), ["ended", "transition", "dispatched", "ended", "run.stopped"]);
    let input = resume(&life, None);
    let commands = life.tell(input).expect("blocked");
    let [Command::Start(anew)] = &commands[..] else { panic!("one start, not {commands:?}") };
    assert_ne!((anew.dispatch, anew.attempt), (dispatch, attempt));
    replays(&life);
}

fn ended_within(life: &Life, outcome: Outcome) -> Input {
    let run = life.entity().in_flight()[0].dispatched.clone();
    Input::HandlerEnded(Arc::new(end_of_run(&run, outcome)))
}

#[test]
fn a_snapshot_of_a_session_is_the_session() {
    let mut life = started("run_timeout = \"1h\"");
    let dispatch = life.start();
    life.end(dispatch, completed(Some("Finish"))).expect("in flight");
    let text = life.entity().to_snapshot().expect("settled");
    assert_eq!(Entity::of_snapshot(&text).as_ref(), Ok(life.entity()));
}

#[test]
fn limits_that_cannot_nest_are_refused_with_both_values() {
    for (limits, expected) in [
        (
            "run_timeout = \"15m\"",
            "`deadline` of integration `run_tools` (900s) must be shorter than `run_timeout` (900s)",
        ),
        (
            "inactivity_timeout = \"2h\"\nrun_timeout = \"1h\"",
            "`inactivity_timeout` (7200s) must be shorter than `run_timeout` (3600s)",
        ),
        (
            "progress_timeout = \"2h\"\nrun_timeout = \"1h\"",
            "`progress_timeout` (7200s) must be shorter",
        ),
        (
            "run_timeout = \"2h\"\nexecution_timeout = \"1h\"",
            "`run_timeout` (7200s) must be shorter than `execution_timeout` (3600s)",
        ),
        (
            "host_call_timeout = \"20m\"",
            "the time limit `host_call_timeout` of integration `run_tools` (1200s) must be shorter than `deadline`",
        ),
        (
            "inactivity_timeout = \"1m\"\nhost_call_timeout = \"2m\"",
            "`host_call_timeout` of integration `run_tools` (120s) must be shorter than `inactivity_timeout` (60s)",
        ),
        ("run_timout = \"1h\"", "unknown key `run_timout`"),
        ("run_timeout = 3600", "`3600` has no unit"),
        ("run_timeout = -1", "`run_timeout`: `-1` is negative"),
        ("host_call_timeout = -5", "`host_call_timeout`: `-5` is negative"),
        (
            "[limits.host_call]\nhost_http_call = \"soon\"",
            "`host_http_call`: `soon` is no duration",
        ),
        ("run_timeout = true", "must be a duration"),
        ("max_loop_iterations = -1", "must be a whole number from 0 to 4294967295, and is `-1`"),
        ("max_loop_iterations = 1.5", "must be a whole number from 0 to 4294967295, and is `1.5`"),
        ("[limits.retry]\ndeadline = 1", "is no limit that stops a run"),
    ] {
        let parsed = Spec::parse(&spec(limits));
        assert!(parsed.spec.is_none(), "{limits}");
        let messages: Vec<String> = parsed.diagnostics.iter().map(ToString::to_string).collect();
        assert!(messages.iter().any(|one| one.contains(expected)), "{limits}: {messages:#?}");
    }
    // Where the deadline is the default, calls are held by what holds that.
    for (limits, expected) in [
        (
            "inactivity_timeout = \"30s\"\nhost_call_timeout = \"1m\"",
            "`host_call_timeout` of integration `run_tools` (60s) must be shorter than `inactivity_timeout` (30s)",
        ),
        (
            "run_timeout = \"30m\"\n[limits.host_call]\nhost_http_call = \"1h\"",
            "`host_http_call` of integration `run_tools` (3600s) must be shorter than `run_timeout` (1800s)",
        ),
    ] {
        let parsed = Spec::parse(&spec(limits).replace("deadline = \"900s\"\n", ""));
        assert!(parsed.spec.is_none(), "{limits}");
        let messages: Vec<String> = parsed.diagnostics.iter().map(ToString::to_string).collect();
        assert!(messages.iter().any(|one| one.contains(expected)), "{limits}: {messages:#?}");
    }
    for fits in [
        "",
        "run_timeout = \"16m\"",
        "run_timeout = 0",
        "inactivity_warn = \"9h\"",
        "run_timeout = \"0s\"",
        // A handler of 900 s may outlive it, because its host calls are activity.
        "inactivity_timeout = \"2m\"\nhost_call_timeout = \"1m\"",
    ] {
        let parsed = Spec::parse(&spec(fits));
        assert!(parsed.spec.is_some(), "{fits}: {:#?}", parsed.diagnostics);
    }
}

/// That calls of `function` breached their limit of 30 s so often, first 5 s after the begin.
fn calls_timed_out(function: &'static str, times: u64) -> Overrun {
    Overrun {
        host_call: Some(function.into()),
        started_us: 5_000_000,
        times,
        ..Overrun::once(
            Limit::HostCallTimeout,
            Duration::from_secs(30),
            Duration::from_millis(30_001),
        )
    }
}

/// A session whose handler has ended, with these limits inside of its run breached; and the
/// records of that.
fn ended_with(overruns: Vec<Overrun>, outcome: Outcome) -> (Life, Vec<Event>) {
    let mut life = started("inactivity_warn = 0");
    life.start();
    let run = life.entity().in_flight()[0].dispatched.clone();
    let before = life.log.len();
    life.now += 70_000;
    let mut end = end_of_run(&run, outcome);
    end.overruns = overruns;
    end.started_at =
        (end.cause != Cause::NotStarted).then_some(WallTime::from_millis(life.now - 65_000));
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let events = life.log[before..].iter().map(|record| record.event.clone()).collect();
    (life, events)
}

fn breaches_in(events: &[Event]) -> Vec<&LimitBreached> {
    let mut found = Vec::new();
    for event in events {
        if let Event::LimitBreached(breach) = event {
            found.push(&**breach);
        }
    }
    found
}

#[test]
fn host_calls_that_took_too_long_are_recorded_with_the_end_of_their_handler() {
    let overruns = vec![calls_timed_out("host_http_call", 1_000), calls_timed_out("host_ask", 1)];
    let (life, events) = ended_with(overruns, completed(Some("Finish")));
    let kinds: Vec<&str> = events.iter().map(Event::kind).collect();
    let expected = ["ended", "limit.breached", "limit.breached", "transition", "run.stopped"];
    assert_eq!(kinds, expected);
    let breaches = breaches_in(&events);
    let breach = breaches[0];
    assert_eq!((breach.limit, breach.scope), (Limit::HostCallTimeout, Scope::HostCall));
    assert_eq!((breach.threshold, breach.observed, breach.times), (30_000, 30_001, 1_000));
    let doing = breach.in_flight.as_ref().expect("a call");
    assert_eq!(
        (&*doing.handler, doing.host_call.as_deref()),
        ("run_tools", Some("host_http_call"))
    );
    assert_eq!(doing.since, WallTime::from_millis(life.now - 60_000));
    assert_eq!(breaches[1].times, 1);
    assert!(!life.entity().session().expect("a session").is_silent());
    replays(&life);
}

#[test]
fn a_flood_of_breaches_is_cut_to_as_many_as_a_report_has() {
    let overruns = (0..100).map(|_| calls_timed_out("host_http_call", 2)).collect();
    let (_, events) = ended_with(overruns, completed(Some("Finish")));
    assert_eq!(breaches_in(&events).len(), OVERRUNS_MAX);
}

#[test]
fn a_handler_that_could_not_start_in_time_is_recorded_as_such() {
    let late = Overrun::once(
        Limit::ScheduleToStartTimeout,
        Duration::from_secs(60),
        Duration::from_millis(60_050),
    );
    let message = "handler could not start within 60050 ms".to_owned();
    let rejection = Rejection { kind: RejectionKind::HostUnavailable, message };
    let (life, events) = ended_with(vec![late], Outcome::Rejected(rejection));
    let breaches = breaches_in(&events);
    let [breach] = breaches.as_slice() else { panic!("{breaches:?}") };
    assert_eq!((breach.limit, breach.scope), (Limit::ScheduleToStartTimeout, Scope::Handler));
    assert_eq!((breach.threshold, breach.observed), (60_000, 60_050));
    let doing = breach.in_flight.as_ref().expect("a handler");
    assert_eq!(
        (doing.host_call.as_deref(), doing.since),
        (None, WallTime::from_millis(life.now - 60_050))
    );
    replays(&life);
}

#[test]
fn journals_from_before_breaches_of_handlers_were_recorded_replay_as_they_are() {
    let overruns = vec![calls_timed_out("host_http_call", 3)];
    let (life, _) = ended_with(overruns, completed(Some("Finish")));
    // An earlier version knew nothing of them, so its records of ends have no such key.
    let earlier: Vec<Record> = life
        .log
        .iter()
        .filter(|record| !matches!(record.event, Event::LimitBreached(_)))
        .cloned()
        .zip(1..)
        .map(|(mut record, position)| {
            record.position = Position(position);
            let mut text = serde_json::to_value(&record).expect("plain data");
            if let Some(event) = text["event"].as_object_mut() {
                event.remove("overruns");
            }
            serde_json::from_value(text).expect("a record")
        })
        .collect();
    assert_eq!(earlier.len() + 1, life.log.len());
    let divergences = |records: &[Record]| {
        let mut replay = Replay::new();
        records.iter().for_each(|record| replay.feed(record));
        replay.finish().divergence_count
    };
    assert_eq!(divergences(&earlier), 0);
    // With it, the breach has to be there.
    let mut forged = earlier;
    for record in &mut forged {
        if let Event::Ended(ended) = &mut record.event {
            ended.overruns = vec![calls_timed_out("host_http_call", 3)];
        }
    }
    assert!(divergences(&forged) > 0);
}

#[test]
fn an_entity_without_limits_records_no_breach_of_its_calls() {
    let mut life = Life::of(SESSION);
    life.start();
    let run = life.entity().in_flight()[0].dispatched.clone();
    let mut end = end_of_run(&run, completed(Some("Finish")));
    end.overruns = vec![calls_timed_out("host_http_call", 3)];
    let before = life.log.len();
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    assert_eq!(life.kinds(before), ["ended", "transition"]);
}

#[test]
fn audits_and_scans_report_calls_that_took_too_long() {
    let overruns = vec![calls_timed_out("host_http_call", 3)];
    let (life, _) = ended_with(overruns, completed(Some("Finish")));
    let mut audit = Projection::new(Shape::Audit);
    let mut scan = Scan::default();
    let mut audited = Vec::new();
    for record in &life.log {
        audited.extend(audit.feed(record).expect("it fits"));
        scan.feed(record);
    }
    let audited = serde_json::to_value(&audited[0]).expect("plain data");
    assert_eq!(
        (&audited["error_type"], &audited["host_call"], &audited["tool"], &audited["times"]),
        (&json!("timeout"), &json!("host_http_call"), &json!("run_tools"), &json!(3))
    );
    let scanned = scan.finish();
    assert_eq!((scanned[0].timeouts, scanned[0].call_timeouts), (3, 3));
    assert_eq!((scanned[0].timeouts_ms, scanned[0].cost_ms), (90_000, 90_000));
}

/// The account of a handler that made these calls.
fn account_of(calls: &[(&'static str, CallOutcome)]) -> Box<Account> {
    let call = |(name, outcome): &(&'static str, CallOutcome)| Call {
        name: (*name).into(),
        started_us: 0,
        duration_us: 1,
        outcome: *outcome,
        error: None,
    };
    let mut account = Account::default();
    account.story.calls = calls.iter().map(call).collect();
    Box::new(account)
}

#[test]
fn a_handler_that_fails_because_its_call_timed_out_is_audited_as_a_timeout() {
    let audited = |calls: &[(&'static str, CallOutcome)]| {
        let mut life = started("run_timeout = \"1h\"");
        life.start();
        let run = life.entity().in_flight()[0].dispatched.clone();
        let (kind, message) = (FailureKind::GuestFailure, "no tool".to_owned());
        let failure = Outcome::Failed(Failure { kind, message, result: None });
        let mut end = end_of_run(&run, failure);
        end.account = Some(account_of(calls));
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
        let mut audit = Projection::new(Shape::Audit);
        let found: Vec<_> = life
            .log
            .iter()
            .filter_map(|record| audit.feed(record).expect("it fits"))
            .map(|one| serde_json::to_value(one).expect("plain data"))
            .collect();
        found[0]["error_type"].clone()
    };
    let (ok, failed, timed_out) = (CallOutcome::Ok, CallOutcome::Failed, CallOutcome::TimedOut);
    let (http, log) = ("host_http_call", "host_log");
    assert_eq!(audited(&[(http, timed_out), (log, ok)]), "timeout", "it logged its failure");
    assert_eq!(audited(&[(http, timed_out), (http, failed)]), "guest_failure", "one failed later");
    assert_eq!(audited(&[(http, timed_out), (http, ok)]), "guest_failure", "the next succeeded");
    assert_eq!(audited(&[]), "guest_failure");
}

#[test]
fn calls_that_time_out_inside_one_handler_are_a_repeated_failure_even_if_it_completes() {
    let mut life = started("run_timeout = \"1h\"");
    life.start();
    let run = life.entity().in_flight()[0].dispatched.clone();
    let mut end = end_of_run(&run, completed(Some("Finish")));
    let calls = |count, total_us| Calls { count, total_us };
    end.host_calls.by_function = vec![
        FunctionCalls {
            name: "host_http_call".into(),
            count: 7,
            timed_out: calls(5, 150_000_000),
            failed: calls(1, 2_000),
            ..FunctionCalls::default()
        },
        FunctionCalls { name: "host_get_secret".into(), count: 1, ..FunctionCalls::default() },
    ];
    let before = life.log.len();
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    assert_eq!(life.kinds(before)[..2], ["ended", "limit.breached"]);
    let Event::LimitBreached(breach) = &life.log[before + 1].event else { panic!("a breach") };
    assert_eq!((breach.limit, breach.observed), (Limit::RepeatThreshold, 5));
    let failures = life.entity().session().expect("one").failures().to_vec();
    let shown: Vec<_> = failures
        .iter()
        .map(|one| (&*one.signature.error, one.signature.dying_span.as_deref(), one.count))
        .collect();
    let call = Some("host_http_call");
    assert_eq!(shown, [("host_call_timeout", call, 5), ("host_call_failed", call, 1)]);
    assert_eq!(failures[0].cost_ms, 150_000);
    assert!(failures[0].signature.is_timeout());
    let recovery =
        Recovery { prior_run: 1, cause: "x".to_owned(), failure: Some(failures[0].clone()) };
    let text = preamble(&recovery).expect("a failure");
    assert!(text.contains("tool=run_tools error_type=timeout repeated=5\u{d7}"), "{text}");
    let mut scan = Scan::default();
    life.log.iter().for_each(|record| scan.feed(record));
    assert_eq!(scan.finish()[0].repeats, [failures[0].clone()]);
    replays(&life);
}

/// That a call of `host_call` by the handler in flight has just reached its limit of 300 ms.
fn call_timed_out(life: &Life, host_call: &str) -> TimedOutCall {
    TimedOutCall {
        dispatch: life.entity().in_flight()[0].dispatched.dispatch,
        host_call: host_call.to_owned(),
        since: WallTime::from_millis(life.now - 301),
        threshold_ms: 300,
        observed_ms: 301,
    }
}

/// Tells that `many` calls of the handler in flight time out, one every second.
fn calls_time_out(life: &mut Life, many: usize) {
    for _ in 0..many {
        life.now += 1_000;
        let call = call_timed_out(life, "host_http_call");
        life.tell(Input::CallTimedOut(call)).expect("in flight");
    }
}

/// The end of the handler in flight, after `times` calls that timed out.
fn ended_after_calls(life: &Life, times: u64, outcome: Outcome) -> Input {
    let run = life.entity().in_flight()[0].dispatched.clone();
    let mut end = end_of_run(&run, outcome);
    let (allowed, took) = (Duration::from_millis(300), Duration::from_millis(301));
    end.overruns = vec![Overrun {
        host_call: Some("host_http_call".into()),
        times,
        ..Overrun::once(Limit::HostCallTimeout, allowed, took)
    }];
    end.host_calls.by_function = vec![FunctionCalls {
        name: "host_http_call".into(),
        count: times,
        timed_out: Calls { count: times, total_us: times * 300_500 },
        ..FunctionCalls::default()
    }];
    Input::HandlerEnded(Arc::new(end))
}

fn failures(life: &Life) -> Vec<(String, u64)> {
    let failures = life.entity().session().expect("a session").failures().iter();
    failures.map(|one| (one.signature.error.clone(), one.count)).collect()
}

fn scanned(life: &Life) -> (u64, u64, u64) {
    let mut scan = Scan::default();
    life.log.iter().for_each(|record| scan.feed(record));
    let scanned = scan.finish();
    (scanned[0].timeouts, scanned[0].call_timeouts, scanned[0].timeouts_ms)
}

fn audited_calls(life: &Life) -> u64 {
    let mut audit = Projection::new(Shape::Audit);
    let found = life.log.iter().filter_map(|record| audit.feed(record).expect("it fits"));
    let found = found.map(|one| serde_json::to_value(one).expect("plain data"));
    found
        .filter(|one| one["host_call"] == "host_http_call")
        .filter_map(|one| one["times"].as_u64())
        .sum()
}

#[test]
fn a_call_that_times_out_is_recorded_at_once_and_not_again_with_the_end() {
    // So many calls are recorded while the handler runs, and so many are in its report.
    for (before, all, with_the_end) in [(0, 7, Some(7)), (5, 7, Some(2)), (5, 5, None)] {
        let mut life = started("inactivity_warn = 0");
        life.start();
        let start = life.log.len();
        calls_time_out(&mut life, before);
        let breaches: Vec<LimitBreached> = breaches_of(&life, start);
        let calls: Vec<_> =
            breaches.iter().filter(|one| one.limit == Limit::HostCallTimeout).collect();
        assert_eq!(calls.len(), before);
        for call in calls {
            assert_eq!((call.scope, call.threshold, call.observed), (Scope::HostCall, 300, 301));
            let dispatch = life.entity().in_flight()[0].dispatched.dispatch;
            assert_eq!((call.dispatch, call.times), (Some(dispatch), 1));
            let doing = call.in_flight.as_ref().expect("a call");
            let named = (&*doing.handler, doing.host_call.as_deref());
            assert_eq!(named, ("run_tools", Some("host_http_call")));
            assert_eq!(call.at.since(doing.since).as_millis(), 301);
        }
        // From the second on, each is a repetition.
        let repeats = breaches.iter().filter(|one| one.limit == Limit::RepeatThreshold);
        let observed: Vec<u64> = repeats.map(|one| one.observed).collect();
        assert_eq!(observed, (2..=before as u64).collect::<Vec<_>>());

        let end = life.log.len();
        let input = ended_after_calls(&life, all, completed(Some("Finish")));
        life.tell(input).expect("in flight");
        let late: Vec<_> = breaches_of(&life, end)
            .into_iter()
            .filter(|one| one.limit == Limit::HostCallTimeout)
            .map(|one| (one.dispatch, one.times))
            .collect();
        assert_eq!(late, with_the_end.map(|times| (None, times)).into_iter().collect::<Vec<_>>());
        assert_eq!(failures(&life), [("host_call_timeout".to_owned(), all)]);
        assert_eq!(scanned(&life), (all, all, all * 300));
        assert_eq!(audited_calls(&life), all);
        replays(&life);
    }
}

/// The breaches that `life` has recorded from the record `from` on.
fn breaches_of(life: &Life, from: usize) -> Vec<LimitBreached> {
    let events: Vec<Event> = life.log[from..].iter().map(|record| record.event.clone()).collect();
    breaches_in(&events).into_iter().cloned().collect()
}

#[test]
fn an_attempt_after_a_crash_learns_which_calls_of_the_lost_one_timed_out() {
    let rerun = "deadline = \"900s\"\non_crash = \"rerun\"\n";
    let source = spec("inactivity_warn = 0").replace("deadline = \"900s\"\n", rerun);
    let mut life = of(&source);
    let params = Object::from([("command".to_owned(), json!("make test"))]);
    life.act_with("ProcessToolCalls", params).expect("idle");
    calls_time_out(&mut life, 5);
    let lost = life.entity().in_flight()[0].dispatched.clone();
    let input = Input::HandlerEnded(Arc::new(end_of_run(&lost, Outcome::Interrupted)));
    let commands = life.tell(input).expect("in flight");
    let [Command::Start(again)] = commands.as_slice() else { panic!("{commands:?}") };
    assert_eq!(again.attempt, 2);
    let learned = recovery(life.entity(), again).expect("its host was lost");
    assert_eq!(learned.cause, "host_lost");
    let text = preamble(&learned).expect("a failure");
    let expected = "tool=run_tools error_type=timeout repeated=5\u{d7}, command=make test";
    assert!(text.contains(expected), "{text}");
    // The next attempt begins to count anew, and the session goes on counting.
    calls_time_out(&mut life, 1);
    let input = ended_after_calls(&life, 1, completed(Some("Finish")));
    let before = life.log.len();
    life.tell(input).expect("in flight");
    assert_eq!(life.kinds(before), ["ended", "transition", "run.stopped"]);
    assert_eq!(failures(&life), [("host_call_timeout".to_owned(), 6)]);
    assert_eq!((scanned(&life).1, audited_calls(&life)), (6, 6));
    replays(&life);
}

#[test]
fn a_rerun_in_a_resumed_run_learns_what_failed_in_that_run_too() {
    let rerun = "deadline = \"900s\"\non_crash = \"rerun\"\n";
    let source = spec("run_timeout = \"1h\"").replace("deadline = \"900s\"\n", rerun);
    let mut life = of(&source);
    life.start();
    life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("running");
    end_killed(&mut life, Cause::RunStopped);
    let input = resume(&life, Some(1));
    life.tell(input).expect("blocked");
    let held = life.entity().in_flight()[0].dispatched.clone();
    let learned = recovery(life.entity(), &held).expect("a run before");
    assert_eq!((learned.cause.as_str(), &learned.failure), ("host_shutdown", &None));
    calls_time_out(&mut life, 2);
    let input = Input::HandlerEnded(Arc::new(end_of_run(&held, Outcome::Interrupted)));
    life.tell(input).expect("in flight");
    let again = life.entity().in_flight()[0].dispatched.clone();
    let learned = recovery(life.entity(), &again).expect("a run before");
    assert_eq!(learned.failure.as_ref().map(|failure| failure.count), Some(2));
    replays(&life);
}

#[test]
fn a_call_that_times_out_waits_for_the_end_where_it_cannot_be_recorded() {
    let refused = |life: &mut Life, call: TimedOutCall| {
        let before = life.log.len();
        let refused = life.tell(Input::CallTimedOut(call)).expect_err("it is refused");
        assert_eq!(life.log.len(), before);
        refused
    };
    let mut life = started("inactivity_warn = 0");
    let dispatch = life.start();
    let call = call_timed_out(&life, "host_http_call");
    let (at_the_end, unknown) =
        (Refusal::RecordedAtTheEnd { dispatch }, DispatchId::from_bytes([9; 16]));
    let in_time = TimedOutCall { observed_ms: 300, ..call.clone() };
    assert_eq!(refused(&mut life, in_time), at_the_end, "it did not exceed its limit");
    let other = TimedOutCall { dispatch: unknown, ..call.clone() };
    assert_eq!(refused(&mut life, other), Refusal::UnknownDispatch { dispatch: unknown });
    // No more than that are recorded one by one, of whatever function.
    let max = usize::try_from(CALLS_RECORDED_MAX).expect("small");
    calls_time_out(&mut life, max);
    assert_eq!(refused(&mut life, call.clone()), at_the_end);
    let other_call = call_timed_out(&life, "host_ask");
    assert_eq!(refused(&mut life, other_call), at_the_end);
    let input = ended_after_calls(&life, CALLS_RECORDED_MAX + 9, completed(Some("Finish")));
    life.tell(input).expect("in flight");
    assert_eq!(failures(&life), [("host_call_timeout".to_owned(), CALLS_RECORDED_MAX + 9)]);
    assert_eq!(refused(&mut life, call), Refusal::UnknownDispatch { dispatch }, "it has ended");
    replays(&life);

    let mut without_limits = Life::of(SESSION);
    without_limits.start();
    let call = call_timed_out(&without_limits, "host_http_call");
    assert_eq!(refused(&mut without_limits, call), Refusal::NoSession);

    let mut earlier = Life::under(&spec("inactivity_warn = 0"), RulesVersion::V2);
    earlier.tell(Input::Start { limits: default_limits() }).expect("a new session");
    let dispatch = earlier.start();
    let call = call_timed_out(&earlier, "host_http_call");
    assert_eq!(refused(&mut earlier, call), Refusal::RecordedAtTheEnd { dispatch });
    let input = ended_after_calls(&earlier, 3, completed(Some("Finish")));
    earlier.tell(input).expect("in flight");
    assert_eq!(failures(&earlier), [("host_call_timeout".to_owned(), 3)]);
    replays(&earlier);
}

#[test]
fn a_handler_that_fails_because_of_a_timed_out_call_counts_as_that_call_alone() {
    let failed = || {
        let (kind, message) = (FailureKind::GuestFailure, "no tool".to_owned());
        Outcome::Failed(Failure { kind, message, result: None })
    };
    let (ok, bad, late) = (CallOutcome::Ok, CallOutcome::Failed, CallOutcome::TimedOut);
    let both = [("host_call_timeout", 2), ("guest_failure", 1)];
    let late = ("host_http_call", late);
    let (logged, repaired) = (("host_log", ok), ("host_http_call", ok));
    type Case<'a> = (RulesVersion, Vec<(&'static str, CallOutcome)>, &'a [(&'static str, u64)]);
    let cases: [Case<'_>; 5] = [
        (RulesVersion::V3, vec![late, late, logged], &both[..1]),
        (RulesVersion::V3, vec![late, late, repaired], &both),
        (RulesVersion::V3, vec![late, late, ("host_http_call", bad)], &both),
        (RulesVersion::V3, vec![], &both),
        (RulesVersion::V2, vec![late, late, logged], &both),
    ];
    for (rules, calls, expected) in cases {
        let mut life = Life::under(&spec("inactivity_warn = 0"), rules);
        life.tell(Input::Start { limits: default_limits() }).expect("a new session");
        life.start();
        let Input::HandlerEnded(end) = ended_after_calls(&life, 2, failed()) else { panic!() };
        let mut end = (*end).clone();
        end.account = Some(account_of(&calls));
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
        let expected: Vec<_> =
            expected.iter().map(|(error, count)| ((*error).to_owned(), *count)).collect();
        assert_eq!(failures(&life), expected, "{rules}: {calls:?}");
        replays(&life);
    }
}

#[test]
fn a_repetition_names_what_is_repeated_and_records_without_that_replay() {
    let mut life = started("inactivity_warn = 0");
    life.start();
    let run = life.entity().in_flight()[0].dispatched.clone();
    let mut end = end_of_run(&run, completed(Some("Finish")));
    let function = |name: &'static str| FunctionCalls {
        name: name.into(),
        count: 2,
        failed: Calls { count: 2, total_us: 2 },
        ..FunctionCalls::default()
    };
    end.host_calls.by_function = vec![function("host_http_call"), function("host_ask")];
    let before = life.log.len();
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let named: Vec<_> = breaches_of(&life, before)
        .into_iter()
        .map(|one| one.signature.and_then(|signature| signature.dying_span))
        .collect();
    assert_eq!(named, [Some("host_http_call".to_owned()), Some("host_ask".to_owned())]);
    replays(&life);
    let nameless = |record: &Record| {
        let mut record = record.clone();
        if let Event::LimitBreached(breach) = &mut record.event {
            breach.signature = None;
        }
        record
    };
    let mut replay = Replay::new();
    life.log.iter().map(nameless).for_each(|record| replay.feed(&record));
    assert_eq!(replay.finish().divergences, []);
    // Another signature than the decision's is a divergence.
    let mut forged = life.log.clone();
    for record in &mut forged {
        if let Event::LimitBreached(breach) = &mut record.event
            && let Some(signature) = &mut breach.signature
        {
            signature.integration = "other".to_owned();
        }
    }
    let mut replay = Replay::new();
    forged.iter().for_each(|record| replay.feed(record));
    assert_eq!(replay.finish().divergence_count, 2);
}

#[test]
fn the_forms_for_other_systems_are_flat_and_name_the_call_that_hangs() {
    let mut life = started("inactivity_warn = \"10m\"\nrun_timeout = \"1h\"");
    let dispatch = life.start();
    let signal = |name: &str, payload| Input::Signal {
        name: name.to_owned(),
        from: None,
        dispatch: Some(dispatch),
        payload,
    };
    life.tell(signal("status", json!("x".repeat(300)))).expect("taken");
    let since = WallTime::from_millis(life.now);
    for place in [Some("host_http_call"), Some("guest"), None] {
        life.now += 600_001;
        let host_call = place.map(str::to_owned);
        let doing = Some(Doing { handler: "run_tools".to_owned(), host_call, since });
        let (limit, observed_ms) = (Limit::InactivityWarn, 600_001);
        life.tell(Input::LimitDue { limit, observed_ms, doing, active: None }).expect("it is due");
        life.tell(signal("progress", json!(1))).expect("taken");
    }
    life.now += 2_000_000;
    life.tell(limit_due(Limit::RunTimeout, 3_600_001, None)).expect("it is due");
    let name = life.entity().entity.to_string();
    let forms = |shape| -> Vec<serde_json::Value> {
        let mut projection = Projection::new(shape);
        let forms = life.log.iter().filter_map(|record| projection.feed(record).expect("it fits"));
        forms.map(|form| serde_json::to_value(form).expect("plain data")).collect()
    };

    let silent = forms(Shape::Silence);
    let tools: Vec<_> = silent.iter().map(|one| &one["last_event"]["tool_name"]).collect();
    assert_eq!(tools, ["host_http_call", "run_tools", "run_tools"]);
    assert!(silent.iter().all(|one| one["last_event"]["handler"] == "run_tools"), "{silent:?}");
    assert!(silent.iter().all(|one| one["session_id"] == *name), "{silent:?}");

    let [watchdog] = &forms(Shape::Watchdog)[..] else { panic!("one stop") };
    let keys: Vec<&String> = watchdog.as_object().expect("an object").keys().collect();
    let expected = [
        "aggregate_id",
        "aggregate_type",
        "configured_budget_seconds",
        "elapsed_seconds",
        "event_kind",
        "fired_at",
        "reason",
        "run_seq",
        "session_id",
        "session_started_at",
        "status",
        "stop_reason_code",
    ];
    assert_eq!(BTreeSet::from_iter(keys.iter().map(|key| key.as_str())), expected.into());
    assert_eq!(
        (&watchdog["aggregate_type"], &watchdog["aggregate_id"], &watchdog["elapsed_seconds"]),
        (&json!("runtime_control"), &json!(name), &json!(3_601))
    );

    let [status] = &forms(Shape::Audit)[..] else { panic!("one status text") };
    assert_eq!(
        (&status["tool"], &status["handler"], &status["text"], &status["dispatch"]),
        (&json!("set_status"), &json!("run_tools"), &json!("x".repeat(200)), &json!(dispatch))
    );
}

#[test]
fn only_records_of_its_kinds_have_a_form_in_a_format() {
    let overruns = vec![calls_timed_out("host_http_call", 3)];
    let (life, _) = ended_with(overruns, completed(Some("Finish")));
    for shape in Shape::ALL {
        for record in &life.log {
            let is_listed = shape.kinds().contains(&record.event.kind());
            assert!(is_listed || shape.needs(&record.event).is_none(), "{shape:?} {record:?}");
        }
        assert!(shape.kinds().iter().all(|kind| Event::KINDS.contains(kind)), "{shape:?}");
    }
}

#[test]
fn a_session_that_comes_to_its_end_in_its_grace_is_completed() {
    let mut life = started("repeat_threshold = 1\nabort_timeout = \"10s\"");
    life.start();
    life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("it runs");
    let run = life.entity().in_flight()[0].dispatched.clone();
    let end = end_of_run(&run, completed(Some("Finish")));
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    assert_eq!(shown(&life), Status::Done);
    let Some(Event::RunStopped(stopped)) = life.log.last().map(|record| &record.event) else {
        panic!("it is at its end")
    };
    assert_eq!((&stopped.cause, stopped.directive), (&StopCause::Completion, None));
    let again = resume(&life, Some(1));
    life.tell(again).expect_err("it is over");
    replays(&life);
    // The same of one that is to be cancelled: it is not described as such.
    let mut life = started("inactivity_timeout = \"1000s\"\nabort_timeout = \"10s\"");
    life.start();
    let cause = StopCause::Limit { limit: Limit::InactivityTimeout };
    life.tell(Input::Stop { run_seq: None, cause }).expect("it runs");
    let run = life.entity().in_flight()[0].dispatched.clone();
    let end = end_of_run(&run, completed(Some("Finish")));
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let Some(Event::RunStopped(stopped)) = life.log.last().map(|record| &record.event) else {
        panic!("it is at its end")
    };
    assert_eq!((&stopped.cause, stopped.directive), (&StopCause::Completion, None));
    replays(&life);
}

#[test]
fn a_handler_that_fails_because_of_a_stop_request_counts_as_cut() {
    let failure = || {
        Outcome::Failed(Failure {
            kind: FailureKind::GuestFailure,
            message: "the run is to stop".to_owned(),
            result: None,
        })
    };
    // It is to go on: it is dispatched anew. So is one that was lost with its host meanwhile.
    for outcome in [failure(), Outcome::Interrupted] {
        let mut life = started("abort_timeout = \"10s\"");
        life.start();
        life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("it runs");
        let run = life.entity().in_flight()[0].dispatched.clone();
        let end = end_of_run(&run, outcome);
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
        assert_eq!(shown(&life), Status::Blocked);
        let input = resume(&life, Some(1));
        life.tell(input).expect("blocked");
        assert_eq!(life.entity().in_flight()[0].dispatched.attempt, 2);
        replays(&life);
    }
    // It is over: it takes what its author declared for that.
    let mut life = started("inactivity_timeout = \"1000s\"\nabort_timeout = \"10s\"");
    life.start();
    let cause = StopCause::Limit { limit: Limit::InactivityTimeout };
    life.tell(Input::Stop { run_seq: None, cause }).expect("it runs");
    let run = life.entity().in_flight()[0].dispatched.clone();
    let on_cancelled = life.spec.integrations[&run.integration].on_cancelled.clone();
    let before = life.log.len();
    let end = end_of_run(&run, failure());
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let taken = life.log[before..].iter().find_map(|record| match &record.event {
        Event::Transition { action, .. } => Some(action.clone()),
        _ => None,
    });
    assert_eq!(taken, on_cancelled.map(|action| action.to_string()));
    replays(&life);
}

#[test]
fn a_retry_that_would_be_one_handler_too_many_is_refused_and_stops_nothing() {
    let mut life = started("max_handler_runs = 1");
    life.start();
    let run = life.entity().in_flight()[0].dispatched.clone();
    let end = end_of_run(&run, completed(Some("Pause")));
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let retried = Retried { by: "ann".to_owned(), reason: String::new(), budget_ms: None };
    let dispatched = Box::new((*run).clone());
    let retry = Retry { dispatched, retried, expected_attempt: None };
    let refused = life.tell(Input::Retry(Box::new(retry)));
    assert_eq!(refused, Err(Refusal::NoHandlerRunLeft { max: 1 }));
    assert_eq!(shown(&life), Status::Running);
}

/// The session of the incident whose action starts a second handler, which leads back to `Idle`.
fn with_two_handlers(limits: &str) -> String {
    let both =
        SESSION.replace("[\"trigger run_tools\"", "[\"trigger run_tools\", \"trigger more\"");
    format!(
        "{both}\n[[integration]]\nname = \"more\"\nmodule = \"more\"\ndeadline = \"900s\"\n\
         on_success = \"Pause\"\non_failure = \"Fail\"\non_timeout = \"HandlerTimedOut\"\n\
         on_cancelled = \"Stop\"\n\n[limits]\n{limits}\n"
    )
}

#[test]
fn a_held_handler_of_a_left_state_is_not_dispatched_again() {
    for (rules, anew) in [(RulesVersion::V1, 1), (RulesVersion::V2, 0)] {
        let mut life = Life::under(&with_two_handlers(""), rules);
        life.tell(Input::Start { limits: default_limits() }).expect("a new session");
        life.act("ProcessToolCalls").expect("taken");
        life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("it runs");
        end_killed(&mut life, Cause::Shutdown);
        let more = life.entity().in_flight()[0].dispatched.clone();
        let end = end_of_run(&more, completed(None));
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
        assert_eq!(life.state(), "Idle", "it has succeeded in its grace");
        let input = resume(&life, Some(1));
        let commands = life.tell(input).expect("blocked");
        assert_eq!(commands.len(), anew, "under rules {rules}: {commands:?}");
        replays(&life);
    }
}

#[test]
fn a_handler_dispatched_by_a_resume_has_its_declared_budget() {
    for (rules, budget_ms) in [(RulesVersion::V1, 20_000), (RulesVersion::V2, 900_000)] {
        let mut life = Life::under(&spec(""), rules);
        life.tell(Input::Start { limits: default_limits() }).expect("a new session");
        life.act("ProcessToolCalls").expect("taken");
        let asker = life.entity().in_flight()[0].dispatched.clone();
        life.turn_to(Life::other());
        life.tell(Input::Start { limits: default_limits() }).expect("a new session");
        let asked = ask_of(&Life::name(), &asker, AskUntil::Settled);
        let asked = Asked { remaining_ms: 20_000, ..asked };
        life.asked("ProcessToolCalls", asked).expect("taken");
        life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("it runs");
        end_killed(&mut life, Cause::Shutdown);
        let input = resume(&life, Some(1));
        let commands = life.tell(input).expect("blocked");
        let [Command::Start(anew)] = &commands[..] else { panic!("one start: {commands:?}") };
        assert_eq!((anew.owner, anew.asker), (DeadlineOwner::Handler, None), "no asker waits");
        assert_eq!(anew.budget_ms, budget_ms, "under rules {rules}");
        replays(&life);
    }
}

#[test]
fn a_handler_may_wait_on_its_askers_time_for_longer_than_its_own_budget() {
    let mut life = Life::of(&SESSION.replace("deadline = \"900s\"", "deadline = \"1s\""));
    life.act("ProcessToolCalls").expect("taken");
    let asker = life.entity().in_flight()[0].dispatched.clone();
    life.turn_to(Life::other());
    life.asked("ProcessToolCalls", ask_of(&Life::name(), &asker, AskUntil::Settled))
        .expect("taken");
    let run = life.entity().in_flight()[0].dispatched.clone();
    assert_eq!((run.owner, run.budget_ms), (DeadlineOwner::Handler, 1_000));
    let lent = Dispatched { owner: DeadlineOwner::Parent, budget_ms: 30_000, ..(*run).clone() };
    let end = end_of_run(&lent, timed_out_of(&Life::other(), &lent));
    assert_eq!(end.started_at, None, "it has waited for a place until its asker's deadline");
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    replays(&life);
}
