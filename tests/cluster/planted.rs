//! The verifier finds each kind of violation if it is planted in a history without one.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::conformance::{created, dispatched, transition};
use sandglass_model::{
    Cancellation, CancelledBy, Completion, Decision, DispatchId, Dispatched, Ended, EntityRef,
    Event, HandlerEnd, Object, Outcome, Position, Record, Sequence, TransitionCause, WallTime,
};

use crate::history::{
    Answer, Effect, Frozen, Happened, Kind, Life, Observed, Request, Silence, Taken, Try,
    Violation, What,
};
use crate::http::Reply;
use crate::verify::{Rules, failed_in_moves, verify};

const RULES: Rules = Rules {
    timer: Duration::from_secs(6),
    timer_grace: Duration::from_secs(8),
    calls: 2,
    reruns: "surely",
    starts_timer: "SwitchOn",
};
const RUN: DispatchId = DispatchId::from_bytes([7; 16]);

fn at(millis: i64) -> WallTime {
    WallTime::from_millis(millis)
}

fn record(millis: i64, entity: &str, sequence: u64, event: Event) -> (usize, Record) {
    let entity = Some(entity.parse::<EntityRef>().unwrap());
    let (position, sequence) = (Position(1), Sequence(sequence));
    (3, Record { position, at: at(millis), entity, sequence, event })
}

fn taken(millis: i64, entity: &str, sequence: u64, action: &str, token: &str) -> (usize, Record) {
    let mut event = transition(action);
    if let Event::Transition { params, .. } = &mut event {
        *params = Object::from([("token".to_owned(), token.into())]);
    }
    record(millis, entity, sequence, event)
}

fn run(attempt: u32, integration: &str) -> Box<Dispatched> {
    let Event::Dispatched(mut run) = dispatched(RUN, attempt) else { unreachable!() };
    run.integration = integration.to_owned();
    if attempt == 1 {
        run.params = Object::from([("token".to_owned(), "begin".into())]);
    }
    run
}

fn end(attempt: u32, outcome: Option<Outcome>, decision: Decision) -> Event {
    let mut end = HandlerEnd::interrupted(&run(attempt, "once"));
    end.outcome = outcome.unwrap_or(end.outcome);
    Event::Ended(Box::new(Ended::new(Arc::new(end), decision)))
}

fn completed() -> Outcome {
    Outcome::Completed(Completion::default())
}

fn finish() -> Decision {
    Decision::Take { action: "Finish".to_owned() }
}

fn answer(sequence: u64, dispatches: &[DispatchId]) -> Answer {
    let (state, dispatches) = ("Idle".to_owned(), dispatches.to_vec());
    Answer::Done(Taken { sequence, state, dispatches, settled: None })
}

fn refused(code: &str) -> Answer {
    Answer::Refused(code.to_owned())
}

fn unknown() -> Answer {
    Answer::Unknown("outcome_unknown".to_owned())
}

fn request(token: &str, entity: &str, what: What, tries: &[(i64, i64, Answer)]) -> Request {
    let tries = tries.iter().cloned();
    let tries = tries.map(|(sent, finished, answer)| Try {
        host: 1,
        sent: at(sent),
        finished: at(finished),
        answer,
    });
    Request {
        token: token.to_owned(),
        entity: entity.to_owned(),
        what,
        has_key: false,
        waits: false,
        tries: tries.collect(),
    }
}

fn effect(attempt: u32, call: u32, millis: i64, host: usize) -> Effect {
    let life = Life { host, start: 1 };
    let answered = Some(at(millis + 40));
    Effect { dispatch: RUN, attempt, call, life, at: at(millis), answered }
}

fn fault(begun: i64, ended: i64) -> Happened {
    Happened {
        what: "a kill".to_owned(),
        begun: at(begun),
        ended: at(ended),
        may_interrupt: true,
        is_planned: false,
        frozen: None,
        silences: Vec::new(),
    }
}

/// Two touches and a read of a counter, a handler that is interrupted by a kill and runs again, and a timer.
fn right() -> Observed {
    let requests = vec![
        request("new", "Counter/a", What::Create, &[(0, 10, answer(0, &[]))]),
        request("one", "Counter/a", What::Act("Touch"), &[(20, 30, answer(1, &[]))]),
        Request {
            has_key: true,
            ..request(
                "two",
                "Counter/a",
                What::Act("Touch"),
                &[(40, 50, unknown()), (60, 70, answer(2, &[]))],
            )
        },
        request("look", "Counter/a", What::Look, &[(80, 90, answer(2, &[]))]),
        request("no", "Counter/a", What::Act("Touch"), &[(90, 95, refused("owner_moving"))]),
        request("lost", "Counter/a", What::Act("Touch"), &[(90, 95, unknown())]),
        request("begin", "Job/j", What::Act("Begin"), &[(100, 120, answer(1, &[RUN]))]),
    ];
    let mut off = transition("SwitchOff");
    if let Event::Transition { cause, .. } = &mut off {
        *cause = TransitionCause::StateIdle;
    }
    let idle = Event::StateIdle {
        state: "On".to_owned(),
        after_ms: 6_000,
        idle_ms: 6_000,
        occurrence: 1,
        action: "SwitchOff".to_owned(),
        taken: true,
        observed: Vec::new(),
    };
    let mut finished = transition("Finish");
    if let Event::Transition { cause, .. } = &mut finished {
        *cause = TransitionCause::HandlerEnded { dispatch: RUN };
    }
    let records = vec![
        record(5, "Counter/a", 0, created()),
        taken(25, "Counter/a", 1, "Touch", "one"),
        taken(45, "Counter/a", 2, "Touch", "two"),
        record(100, "Job/j", 0, created()),
        taken(110, "Job/j", 1, "Begin", "begin"),
        record(110, "Job/j", 1, Event::Dispatched(run(1, "surely"))),
        record(5_000, "Job/j", 1, end(1, None, Decision::Rerun)),
        record(5_000, "Job/j", 1, Event::Dispatched(run(2, "surely"))),
        record(6_000, "Job/j", 1, end(2, Some(completed()), finish())),
        record(6_000, "Job/j", 2, finished),
        record(10, "Lamp/l", 0, created()),
        taken(20, "Lamp/l", 1, "SwitchOn", "on"),
        record(6_020, "Lamp/l", 1, idle),
        record(6_020, "Lamp/l", 2, off),
    ];
    let effects = vec![effect(1, 1, 200, 0), effect(2, 1, 5_100, 1), effect(2, 2, 5_500, 1)];
    Observed { requests, records, effects, faults: vec![fault(1_000, 2_000)] }
}

fn kinds(found: &[Violation]) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = found.iter().map(|violation| violation.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

/// Plants something, and checks that it is found.
#[track_caller]
fn finds(expected: Kind, plant: impl FnOnce(&mut Observed)) {
    let mut observed = right();
    plant(&mut observed);
    let found = verify(&observed, &RULES);
    assert!(kinds(&found).contains(&expected), "{expected:?} is not in {found:?}");
    assert!(found.iter().all(|violation| !violation.what.is_empty()));
}

/// The events of the records that `select` accepts.
fn remove(observed: &mut Observed, select: impl Fn(&Record) -> bool) {
    observed.records.retain(|(_, record)| !select(record));
}

fn find<'a>(observed: &'a mut Observed, token: &str) -> &'a mut Request {
    observed.requests.iter_mut().find(|request| request.token == token).unwrap()
}

fn is_end(record: &Record, attempt: u32) -> bool {
    matches!(&record.event, Event::Ended(ended) if ended.attempt == attempt)
}

#[test]
fn a_history_without_a_violation_has_none() {
    let found = verify(&right(), &RULES);
    assert!(found.is_empty(), "{found:?}");
    assert!(failed_in_moves(&right()).is_empty());
}

#[test]
fn a_lost_acknowledged_request_is_found() {
    finds(Kind::Lost, |observed| find(observed, "no").tries[0].answer = answer(3, &[]));
    finds(Kind::Lost, |observed| remove(observed, |record| record.position == Position(1)));
    finds(Kind::Lost, |observed| {
        let new = request("new", "Counter/b", What::Create, &[(0, 10, answer(0, &[]))]);
        observed.requests.push(new);
    });
}

#[test]
fn a_doubled_request_is_found() {
    for token in ["one", "two", "lost"] {
        finds(Kind::Doubled, |observed| {
            observed.records.push(taken(46, "Counter/a", 3, "Touch", token));
            observed.records.push(taken(47, "Counter/a", 4, "Touch", token));
        });
    }
    finds(Kind::Doubled, |observed| {
        let again = request("again", "Counter/a", What::Create, &[(12, 15, answer(0, &[]))]);
        observed.requests.push(again);
    });
}

#[test]
fn a_refused_request_that_is_done_is_found() {
    finds(Kind::RefusedButDone, |observed| {
        observed.records.push(taken(92, "Counter/a", 3, "Touch", "no"));
    });
    finds(Kind::RefusedButDone, |observed| {
        find(observed, "lost").tries[0].answer = Answer::NotSent;
        observed.records.push(taken(92, "Counter/a", 3, "Touch", "lost"));
    });
    finds(Kind::RefusedButDone, |observed| {
        find(observed, "new").tries[0].answer = refused("owner_moving");
    });
    let mut observed = right();
    observed.records.push(taken(92, "Counter/a", 3, "Touch", "lost"));
    assert!(verify(&observed, &RULES).is_empty(), "an unknown one may be done once");
}

#[test]
fn false_and_undocumented_responses_are_found() {
    let internal = serde_json::json!({"error": {"code": "internal"}});
    let undocumented = Answer::of(Reply::Complete(500, internal));
    finds(Kind::Undocumented, |observed| find(observed, "no").tries[0].answer = undocumented);
    finds(Kind::FalseResponse, |observed| find(observed, "one").tries[0].answer = answer(2, &[]));
    finds(Kind::FalseResponse, |observed| find(observed, "begin").tries[0].answer = answer(1, &[]));
    finds(Kind::FalseResponse, |observed| find(observed, "one").entity = "Counter/b".to_owned());
    finds(Kind::FalseResponse, |observed| {
        let Answer::Done(taken) = &mut find(observed, "look").tries[0].answer else { panic!() };
        taken.state = "Elsewhere".to_owned();
    });
    finds(Kind::FalseResponse, |observed| {
        let exists = [(0, 10, refused("entity_exists"))];
        observed.requests.push(request("ghost", "Counter/g", What::Create, &exists));
    });
    finds(Kind::NeverAcknowledged, |observed| find(observed, "two").tries.truncate(1));
}

#[test]
fn requests_that_contradict_real_time_are_found() {
    // It was acknowledged before the first one was sent.
    finds(Kind::OutOfOrder, |observed| {
        let two = &mut find(observed, "two").tries;
        (two[1].sent, two[1].finished) = (at(11), at(15));
    });
    finds(Kind::OutOfOrder, |observed| find(observed, "look").tries[0].answer = answer(1, &[]));
    let mut observed = right();
    find(&mut observed, "look").tries[0].sent = at(65);
    find(&mut observed, "look").tries[0].answer = answer(1, &[]);
    assert!(verify(&observed, &RULES).is_empty(), "the read and the touch overlap");
}

#[test]
fn a_broken_sequence_is_found() {
    finds(Kind::BrokenSequence, |observed| {
        observed.records.push(taken(99, "Counter/a", 4, "Touch", "lost"));
    });
    finds(Kind::BrokenSequence, |observed| {
        observed.records.push(record(99, "Counter/a", 0, created()));
    });
}

#[test]
fn wrong_attempts_are_found() {
    let start = |attempt, integration| {
        record(7_000, "Job/j", 2, Event::Dispatched(run(attempt, integration)))
    };
    finds(Kind::FalseAttempt, |observed| observed.records.push(start(2, "surely")));
    finds(Kind::FalseAttempt, |observed| {
        for (_, record) in &mut observed.records {
            if let Event::Dispatched(run) = &mut record.event {
                run.integration = "once".to_owned();
            }
        }
    });
    finds(Kind::FalseEnd, |observed| {
        observed.records.push(record(7_000, "Job/j", 2, end(2, Some(completed()), finish())));
    });
    finds(Kind::NeverEnded, |observed| remove(observed, |record| is_end(record, 2)));
    finds(Kind::Interrupted, |observed| observed.faults.clear());
    finds(Kind::Interrupted, |observed| observed.faults[0].may_interrupt = false);
    finds(Kind::UnexpectedEnd, |observed| {
        remove(observed, |record| is_end(record, 2));
        let by = CancelledBy::Operator;
        let cancelled = Cancellation { by, reason: String::new(), dying_span: None };
        let cancelled = end(2, Some(Outcome::Cancelled(cancelled)), finish());
        observed.records.push(record(6_000, "Job/j", 2, cancelled));
    });
}

#[test]
fn wrong_effects_are_found() {
    finds(Kind::SplitAttempt, |observed| observed.effects[2].life.host = 0);
    finds(Kind::SplitAttempt, |observed| observed.effects[2].life.start = 2);
    finds(Kind::RepeatedEffect, |observed| observed.effects[2].call = 1);
    finds(Kind::UnrecordedEffect, |observed| observed.effects[2].attempt = 3);
    finds(Kind::MissingEffect, |observed| observed.effects.truncate(2));
    finds(Kind::LateEffect, |observed| observed.effects.push(effect(1, 2, 6_100, 0)));
}

fn silence(from: i64, to: i64) -> Silence {
    Silence { host: 0, from: at(from), to: at(to) }
}

#[test]
fn an_effect_without_a_lease_is_found() {
    finds(Kind::EffectWithoutLease, |observed| {
        observed.faults[0].silences.push(silence(1_000, 2_000));
        observed.effects.push(effect(1, 2, 1_500, 0));
    });
    let mut observed = right();
    observed.faults[0].silences.push(silence(1_000, 2_000));
    assert!(verify(&observed, &RULES).is_empty(), "the other host has its lease");
}

#[test]
fn a_call_that_a_stop_interrupts_between_its_check_and_its_start_is_no_violation() {
    let stopped = |answered| {
        let mut observed = right();
        let stop = Frozen { host: 0, stopped: at(1_050), continued: at(6_600) };
        observed.faults[0].frozen = Some(stop);
        (observed.faults[0].begun, observed.faults[0].ended) = (at(1_000), at(6_500));
        observed.faults[0].silences.push(silence(1_000, 8_000));
        observed.effects[0].answered = Some(at(answered));
        observed.effects.push(effect(1, 2, 6_501, 0));
        kinds(&verify(&observed, &RULES))
    };
    assert!(stopped(900).is_empty());
    // The signal was on its way.
    assert!(stopped(1_050).is_empty());
    // Its guest continued only after the stop, so this call began after it.
    assert_eq!(stopped(1_100), [Kind::LateEffect, Kind::EffectWithoutLease]);
}

#[test]
fn wrong_timers_are_found() {
    let is_idle = |record: &Record| matches!(record.event, Event::StateIdle { .. });
    let find = |observed: &mut Observed| {
        observed.records.iter().find(|(_, record)| is_idle(record)).unwrap().clone()
    };
    let fired_at = |millis| {
        move |observed: &mut Observed| {
            let (_, record) = observed.records.iter_mut().find(|(_, it)| is_idle(it)).unwrap();
            record.at = at(millis);
        }
    };
    finds(Kind::TimerLost, |observed| remove(observed, is_idle));
    finds(Kind::TimerTwice, |observed| {
        let again = find(observed);
        observed.records.push(again);
    });
    finds(Kind::TimerEarly, fired_at(6_000));
    finds(Kind::TimerLate, |observed| {
        observed.faults.push(fault(40_000, 41_000));
        fired_at(15_100)(observed);
    });
    let mut observed = right();
    observed.faults.push(fault(5_000, 9_000));
    fired_at(15_100)(&mut observed);
    assert!(verify(&observed, &RULES).is_empty(), "a fault delayed it");
}

#[test]
fn a_request_that_fails_in_a_planned_move_is_found() {
    let mut observed = right();
    observed.faults[0].is_planned = true;
    (observed.faults[0].begun, observed.faults[0].ended) = (at(35), at(94));
    let found = failed_in_moves(&observed);
    let tokens: Vec<&str> = found.iter().map(|it| it.what.split(' ').next().unwrap()).collect();
    assert_eq!(tokens, ["two", "no", "lost"], "{found:?}");
    assert!(found.iter().all(|violation| violation.kind == Kind::FailedInMove));
    find(&mut observed, "no").tries[0].answer = refused("not_taken");
    assert_eq!(failed_in_moves(&observed).len(), 2, "the entity refused it");
}

#[test]
fn a_move_is_not_blamed_for_a_request_that_another_fault_may_have_failed() {
    // It was sent at 90 ms.
    let blames = |planned: (i64, i64), other: Happened, waits: bool| {
        let mut observed = right();
        observed.requests.retain(|request| request.token == "lost");
        let lost = &mut observed.requests[0];
        (lost.waits, lost.tries[0].finished) = (waits, at(5_000));
        let planned = Happened { is_planned: true, ..fault(planned.0, planned.1) };
        observed.faults = vec![planned, other];
        !failed_in_moves(&observed).is_empty()
    };
    for waits in [false, true] {
        for planned in [(35, 94), (94, 200)] {
            assert!(blames(planned, fault(10, 89), waits), "it was over before the request");
            assert!(blames(planned, fault(5_001, 6_000), waits), "the request had failed before");
            assert!(blames(planned, Happened { is_planned: true, ..fault(300, 400) }, waits));
            assert!(!blames(planned, fault(300, 400), waits));
            assert!(!blames(planned, fault(10, 90), waits));
        }
        assert!(!blames((5_001, 6_000), fault(10, 89), waits), "no move");
    }
    assert!(!blames((35, 94), fault(3_000, 4_000), true), "handlers take a while");
    assert!(blames((35, 94), fault(3_000, 4_000), false), "it took too long before that");
}

#[test]
fn responses_are_classified_by_their_codes() {
    let of =
        |code: &str| Answer::of(Reply::Complete(503, serde_json::json!({"error": {"code": code}})));
    assert_eq!(of("owner_moving"), refused("owner_moving"));
    assert_eq!(of("shutting_down"), Answer::Unknown("shutting_down".to_owned()));
    assert!(matches!(of("not_owner"), Answer::Undocumented(_)), "it is for peers alone");
    assert_eq!(Answer::of(Reply::Broken), Answer::Unknown("broken".to_owned()));
    assert!(of("busy").is_passing() && !of("conflict").is_passing() && !unknown().is_passing());
    let body = serde_json::json!({"sequence": 1, "state": "Idle", "dispatches": [RUN]});
    assert_eq!(Answer::of(Reply::Complete(200, body)), answer(1, &[RUN]));
}
