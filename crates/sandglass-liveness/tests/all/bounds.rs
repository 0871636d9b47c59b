//! What the bounds of a run count: its handlers, the turns of its loop, and what is neither.

use std::sync::Arc;

use sandglass_liveness::{Command, Entity, Fold, Input, Refusal, Retry};
use sandglass_model::{
    Decision, DispatchId, Event, Failure, FailureKind, Limit, Outcome, Retried, StopCause,
};

use crate::session::{Life, completed, end_of_run};
use crate::sessions::{end_killed, killed, of, replays, resume, shown};

/// A session whose handlers stay in one state, so that each may start any other.
const ROUND: &str = r#"
[automaton]
name = "Session"
states = ["Busy", "Done"]
initial = "Busy"
terminal = ["Done"]
allow_indefinite_states = ["Busy"]

[[action]]
name = "Decide"
from = ["Busy"]
effect = "trigger decide"

[[action]]
name = "DecideTwice"
from = ["Busy"]
effect = ["trigger decide", "trigger decide_again"]

[[action]]
name = "Work"
from = ["Busy"]
effect = "trigger work"

[[action]]
name = "GoOn"
from = ["Busy"]
effect = "trigger go_on"

[[action]]
name = "GoOnAndWork"
from = ["Busy"]
effect = ["trigger go_on", "trigger work"]

[[action]]
name = "Lost"
from = ["Busy"]

[[action]]
name = "End"
from = ["Busy"]
to = "Done"

[[integration]]
name = "decide"
module = "decide"
deadline = "5m"
on_crash = "rerun"
on_failure = "Lost"
on_timeout = "Lost"
turn = true

[[integration]]
name = "decide_again"
module = "decide"
deadline = "5m"
on_failure = "Lost"
on_timeout = "Lost"
turn = true

[[integration]]
name = "work"
module = "work"
deadline = "5m"
on_crash = "rerun"
on_failure = "Lost"
on_timeout = "Lost"

[[integration]]
name = "go_on"
module = "work"
deadline = "5m"
on_crash = "rerun"
on_failure = "Lost"
on_timeout = "Lost"
continues = true

"#;

/// What happens to a session; what ends is what was asked for first.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A caller requests this action.
    Act(&'static str),
    /// A handler completes, and names this action.
    Then(&'static str),
    /// A handler is lost with its host.
    Crash,
    /// A handler fails.
    Fail,
    /// An operator retries the handler that ended last.
    Retry,
}

use Step::{Act, Crash, Fail, Then};

/// What a test calls it, whether turns are declared, what happens, and what is counted of it.
type Counting = (&'static str, bool, &'static [Step], (u64, u64));
/// Limits, what fits them, what doesn't, and the breach that this is.
type Breaching = (&'static str, &'static [Step], Step, (Limit, u64, u64));

/// Where turns are declared, or where none is.
fn session(declares_turns: bool, limits: &str) -> Life {
    let source = if declares_turns { ROUND.to_owned() } else { ROUND.replace("turn = true\n", "") };
    of(&format!("{source}[limits]\n{limits}\n"))
}

fn end_first(life: &mut Life, outcome: Outcome) -> Result<Vec<Command>, Refusal> {
    let run = life.entity().in_flight()[0].dispatched.clone();
    life.tell(Input::HandlerEnded(Arc::new(end_of_run(&run, outcome))))
}

fn failed() -> Outcome {
    let (kind, message) = (FailureKind::GuestFailure, "no".to_owned());
    Outcome::Failed(Failure { kind, message, result: None })
}

fn retry_last(life: &mut Life) -> Result<Vec<Command>, Refusal> {
    let last = life.log.iter().rev().find_map(|record| match &record.event {
        Event::Dispatched(dispatched) => Some(dispatched.clone()),
        _ => None,
    });
    let dispatched = last.expect("one was dispatched");
    let retried = Retried { by: "ann".to_owned(), reason: String::new(), budget_ms: None };
    life.tell(Input::Retry(Box::new(Retry { dispatched, retried, expected_attempt: None })))
}

fn step(life: &mut Life, step: Step) -> Result<Vec<Command>, Refusal> {
    match step {
        Act(action) => life.act(action),
        Then(action) => end_first(life, completed(Some(action))),
        Crash => end_first(life, Outcome::Interrupted),
        Fail => end_first(life, failed()),
        Step::Retry => retry_last(life),
    }
}

/// What was counted of its run, handlers first; by its records, which have to say the same as
/// what it has been until now.
fn counts(life: &Life) -> (u64, u64) {
    let mut fold = Fold::new();
    life.log.iter().for_each(|record| fold.apply(record).expect("it fits"));
    let entity = fold.entity(&Life::name()).expect("it was created");
    assert_eq!(entity, life.entity(), "a restart changes nothing");
    if let Some(text) = entity.to_snapshot() {
        assert_eq!(Entity::of_snapshot(&text).as_ref(), Ok(entity));
    }
    let session = entity.session().expect("it is one");
    (session.handler_runs, session.loop_iterations)
}

/// The breach of a bound among the records from `from` on: which, what it allows, what was
/// observed.
fn breach(life: &Life, from: usize) -> Option<(Limit, u64, u64)> {
    life.log[from..].iter().find_map(|record| match &record.event {
        Event::LimitBreached(breach) => Some((breach.limit, breach.threshold, breach.observed)),
        _ => None,
    })
}

#[test]
fn runs_and_turns_are_counted_as_the_spec_declares_them() {
    let cases: [Counting; 13] = [
        ("turns, for any caller", true, &[Act("Decide"), Act("Work"), Act("Decide")], (3, 2)),
        ("turns that follow", true, &[Act("Work"), Then("Decide"), Then("Decide")], (3, 2)),
        ("no turn that isn't declared", true, &[Act("Work"), Then("Work"), Then("Work")], (3, 0)),
        ("two turns of one transition", true, &[Act("DecideTwice")], (2, 2)),
        ("what goes on", true, &[Act("Decide"), Then("GoOn"), Then("GoOn"), Act("GoOn")], (1, 1)),
        ("a crash", true, &[Act("Decide"), Crash, Crash, Act("Work")], (2, 1)),
        ("a retry", true, &[Act("Decide"), Fail, Step::Retry], (2, 1)),
        ("a retry, and a crash of it", true, &[Act("Decide"), Fail, Step::Retry, Crash], (2, 1)),
        ("a retry of what goes on", true, &[Act("GoOn"), Fail, Step::Retry, Crash], (0, 0)),
        ("undeclared turns", false, &[Act("Decide"), Then("Work"), Then("DecideTwice")], (4, 2)),
        ("undeclared: asked for", false, &[Act("Decide"), Act("Decide"), Act("Work")], (3, 0)),
        ("undeclared: over others", false, &[Act("Work"), Then("GoOn"), Then("Work")], (2, 1)),
        ("undeclared: behind others", false, &[Act("Work"), Then("GoOnAndWork")], (2, 1)),
    ];
    for (what, declares_turns, steps, expected) in cases {
        let mut life = session(declares_turns, "");
        steps.iter().for_each(|one| drop(step(&mut life, *one).expect(what)));
        assert_eq!(counts(&life), expected, "{what}");
        replays(&life);
    }
}

#[test]
fn the_first_handler_over_the_bound_is_refused_before_it_is_dispatched() {
    let (runs, turns) = (Limit::MaxHandlerRuns, Limit::MaxLoopIterations);
    let cases: [Breaching; 6] = [
        ("max_loop_iterations = 1", &[Act("Decide"), Act("Work")], Act("Decide"), (turns, 1, 2)),
        ("max_loop_iterations = 1", &[Act("Decide"), Act("GoOn")], Then("Decide"), (turns, 1, 2)),
        ("max_loop_iterations = 1", &[Act("Work")], Act("DecideTwice"), (turns, 1, 2)),
        ("max_handler_runs = 1", &[Act("Work"), Then("GoOn")], Then("Work"), (runs, 1, 2)),
        ("max_handler_runs = 1", &[Act("Work"), Crash], Then("Decide"), (runs, 1, 2)),
        (
            "max_handler_runs = 2\nmax_loop_iterations = 2",
            &[Act("Decide"), Then("Decide")],
            Then("Decide"),
            (runs, 2, 3),
        ),
    ];
    for (limits, steps, last, expected) in cases {
        let mut life = session(true, limits);
        steps.iter().for_each(|one| drop(step(&mut life, *one).expect("it has room")));
        assert_eq!(breach(&life, 0), None, "{limits} {steps:?}");
        let before = life.log.len();
        step(&mut life, last).expect("decided");
        assert_eq!(breach(&life, before), Some(expected), "{limits} {steps:?} {last:?}");
        let kinds = life.kinds(before);
        let at = kinds.iter().position(|kind| *kind == "limit.breached").expect("a breach");
        assert_eq!(kinds[at..at + 4], ["limit.breached", "run.stopping", "dispatched", "ended"]);
        let Event::Ended(ended) = &life.log[before + at + 3].event else { panic!("an end") };
        assert_eq!(ended.decision, Decision::Dropped);
        replays(&life);
    }
}

#[test]
fn bounds_count_neither_continuations_nor_reruns_after_a_crash() {
    let mut life = session(true, "max_handler_runs = 1\nmax_loop_iterations = 1");
    life.act("Decide").expect("the first");
    for _ in 0..3 {
        let commands = end_first(&mut life, Outcome::Interrupted).expect("in flight");
        assert!(matches!(commands[..], [Command::Start(_)]), "it is run again: {commands:?}");
    }
    for _ in 0..3 {
        let commands = end_first(&mut life, completed(Some("GoOn"))).expect("in flight");
        assert!(matches!(commands[..], [Command::Start(_)]), "it goes on: {commands:?}");
    }
    end_first(&mut life, failed()).expect("in flight");
    let commands = retry_last(&mut life).expect("no bound holds what goes on");
    assert!(matches!(commands[..], [Command::Start(_)]), "{commands:?}");
    assert_eq!((counts(&life), breach(&life, 0)), ((1, 1), None));
    replays(&life);

    let mut life = session(true, "max_handler_runs = 1");
    life.act("Decide").expect("the first");
    end_first(&mut life, failed()).expect("in flight");
    assert_eq!(retry_last(&mut life), Err(Refusal::NoHandlerRunLeft { max: 1 }));
}

#[test]
fn held_handlers_are_counted_again_in_the_next_run() {
    let mut life = session(true, "max_handler_runs = 2\nmax_loop_iterations = 1");
    life.act("Decide").expect("the first");
    end_first(&mut life, Outcome::Interrupted).expect("it is run again");
    life.act("Work").expect("the second");
    life.act("GoOn").expect("held by no bound");
    assert_eq!(counts(&life), (2, 1));
    life.tell(Input::Stop { run_seq: None, cause: StopCause::Shutdown }).expect("it runs");
    for _ in 0..3 {
        end_killed(&mut life, sandglass_model::Cause::Shutdown);
    }
    let input = resume(&life, Some(1));
    let commands = life.tell(input).expect("blocked");
    assert_eq!(commands.len(), 3, "{commands:?}");
    assert_eq!(counts(&life), (2, 0), "a turn is counted by its first attempt alone");
    end_first(&mut life, Outcome::Interrupted).expect("it is run again");
    assert_eq!(counts(&life), (2, 0), "one that was held, too");
    let before = life.log.len();
    life.act("Work").expect("decided");
    assert_eq!(breach(&life, before), Some((Limit::MaxHandlerRuns, 2, 3)));
    replays(&life);
}

/// The records of an attempt: which record, of which dispatch and attempt.
fn records(life: &Life, from: usize) -> Vec<(&'static str, Option<(DispatchId, u32)>)> {
    let of = |event: &Event| match event {
        Event::Dispatched(one) => Some((one.dispatch, one.attempt)),
        Event::Ended(one) => Some((one.dispatch, one.attempt)),
        _ => None,
    };
    life.log[from..].iter().map(|record| (record.event.kind(), of(&record.event))).collect()
}

#[test]
fn a_held_handler_over_the_bound_ends_in_the_decision_that_dispatches_it() {
    let limits =
        "max_loop_iterations = 2\nmax_handler_runs = 1\n[limits.retry]\nmax_handler_runs = 1";
    let mut life = session(true, limits);
    life.act("DecideTwice").expect("decided");
    let first = life.entity().in_flight()[0].dispatched.dispatch;
    let second = life.log.iter().find_map(|record| match &record.event {
        Event::Ended(ended) => Some(ended.dispatch),
        _ => None,
    });
    let second = second.expect("the second is one too many");
    let before = life.log.len();
    let commands = end_first(&mut life, killed(sandglass_model::Cause::RunStopped));
    // The second is first among what was held; so the first is one too many now, and its end
    // before is part of the same decision.
    let expected = [
        ("ended", Some((first, 1))),
        ("run.stopped", None),
        ("session.resumed", None),
        ("run.started", None),
        ("dispatched", Some((second, 2))),
        ("limit.breached", None),
        ("run.stopping", None),
        ("dispatched", Some((first, 2))),
        ("ended", Some((first, 2))),
    ];
    assert_eq!(records(&life, before), expected);
    let begun = commands.expect("in flight");
    let begins =
        |command: &Command| matches!(command, Command::Start(one) if one.dispatch == first);
    assert!(!begun.iter().any(begins), "{begun:?}");
    end_killed(&mut life, sandglass_model::Cause::RunStopped);
    assert!(life.entity().is_settled(), "nothing of it is left in flight");
    assert_eq!(shown(&life), sandglass_liveness::session::Status::Done);
    replays(&life);
}

#[test]
fn the_turns_of_a_loop_are_counted_from_one() {
    for (declares_turns, steps, expected) in [
        (true, &[][..], 1),
        (true, &[Act("Decide")], 1),
        (true, &[Act("Decide"), Then("Decide")], 2),
        (false, &[], 1),
        (false, &[Act("Decide")], 1),
        (false, &[Act("Decide"), Then("Decide")], 2),
    ] {
        let mut life = session(declares_turns, "");
        steps.iter().for_each(|one| drop(step(&mut life, *one).expect("it runs")));
        let session = life.entity().session().expect("it is one");
        assert_eq!(session.iteration(&life.spec), expected, "{declares_turns} {steps:?}");
    }
}
