//! Replays: what is counted, and what a forged or damaged journal looks like.

use std::sync::Arc;

use sandglass_liveness::entity::Unusable;
use sandglass_liveness::{Entity, Input, Replay, Summary};
use sandglass_model::{
    AskUntil, Cancellation, CancelledBy, Cause, DeadlineOwner, DeadlineReport, DispatchId, Event,
    HandlerDeadlineExceeded, HandlerEnd, Outcome, Position, RulesVersion, Sequence, SpecDigest,
    TraceContext, Trap, TrapKind, WallTime,
};

use crate::generated::divergences;
use crate::session::{Life, SESSION, ask_of, completed, end_within, timed_out};

fn replay(life: &Life) -> Summary {
    let mut replay = Replay::new();
    life.log.iter().for_each(|record| replay.feed(record));
    replay.finish()
}

fn timed_out_life() -> Life {
    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    life.end(dispatch, timed_out()).expect("it was in flight");
    life
}

#[test]
fn counts_what_was_dispatched_and_what_timed_out() {
    let summary = replay(&timed_out_life());
    assert_eq!((summary.dispatches, summary.timeouts), (1, 1));
    assert_eq!((summary.entities, summary.open, summary.records), (1, 0, 6));
    assert_eq!((summary.divergence_count, summary.divergences.len()), (0, 0));
    let mut life = Life::of(SESSION);
    life.start();
    assert_eq!(replay(&life).open, 1);
}

#[test]
fn a_divergence_names_the_record_the_field_and_both_values() {
    let mut life = timed_out_life();
    let last = life.log.len() - 1;
    if let Event::Transition { to, .. } = &mut life.log[last].event {
        *to = "Done".to_owned();
    }
    let found = replay(&life).divergences;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].position, Position(6));
    assert_eq!(found[0].entity, Some(Life::name()));
    assert_eq!(found[0].what, "transition.to");
    assert_eq!((&*found[0].recorded, &*found[0].expected), ("\"Done\"", "\"TimedOut\""));
}

#[test]
fn records_of_earlier_versions_replay_without_fields_of_later_ones() {
    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    life.tell(Input::HandlerEnded(Arc::new(started_at(dispatch, 5_000)))).expect("in flight");
    let mut said = 0;
    for record in &mut life.log {
        match &mut record.event {
            Event::Dispatched(dispatched) => {
                said += u32::from(dispatched.spec.take().is_some());
                said += u32::from(dispatched.expected.take().is_some());
            }
            Event::Ended(ended) => said += u32::from(ended.deadline_at.take().is_some()),
            _ => {}
        }
    }
    assert_eq!((said, replay(&life).divergences), (3, vec![]));
}

#[test]
fn a_forged_spec_expectation_or_deadline_is_a_divergence() {
    type Forge = fn(&mut Event);
    let forgeries: [(&str, Forge); 3] = [
        ("dispatched.spec", |event| {
            if let Event::Dispatched(dispatched) = event {
                dispatched.spec = Some(SpecDigest::of("another", RulesVersion::CURRENT));
            }
        }),
        ("dispatched.expected", |event| {
            if let Event::Dispatched(dispatched) = event {
                dispatched.expected = Some(Sequence(7));
            }
        }),
        ("ended.deadline_at", |event| {
            if let Event::Ended(ended) = event {
                ended.deadline_at = Some(WallTime::from_millis(1));
            }
        }),
    ];
    for (what, forge) in forgeries {
        let mut life = Life::of(SESSION);
        let dispatch = life.start();
        life.tell(Input::HandlerEnded(Arc::new(started_at(dispatch, 5_000)))).expect("in flight");
        life.log.iter_mut().for_each(|record| forge(&mut record.event));
        let found: Vec<String> =
            replay(&life).divergences.into_iter().map(|one| one.what).collect();
        assert_eq!(found, [what]);
    }
}

/// The end of a session's handler whose guest might run from `at_ms` on.
fn started_at(dispatch: DispatchId, at_ms: i64) -> HandlerEnd {
    let started_at = Some(WallTime::from_millis(at_ms));
    HandlerEnd { started_at, ..end_within(900_000, dispatch, 1, completed(Some("Finish"))) }
}

#[test]
fn a_spec_under_unknown_rules_is_named_and_not_decided() {
    let mut life = Life::of(SESSION);
    let later: RulesVersion = serde_json::from_value(serde_json::json!(9)).expect("a number");
    let Event::SpecRegistered { digest, source, rules, .. } = &mut life.log[0].event else {
        panic!("the spec comes first");
    };
    (*rules, *digest) = (later, SpecDigest::of(source, later));
    let found = replay(&life).divergences;
    let current = RulesVersion::CURRENT;
    let expected =
        format!("needs version 9 of the rules, and this build knows versions 1 to {current}");
    assert!(found[0].expected.contains(&expected), "{found:#?}");
}

#[test]
fn missing_repeated_and_foreign_records_are_divergences() {
    let life = timed_out_life();
    for at in 1..life.log.len() {
        let mut log = life.log.clone();
        log.remove(at);
        (1..).zip(&mut log).for_each(|(position, record)| record.position = Position(position));
        assert!(divergences(&log) >= 1, "without record {}", at + 1);
        let mut log = life.log.clone();
        log.insert(at, log[at].clone());
        (1..).zip(&mut log).for_each(|(position, record)| record.position = Position(position));
        assert!(divergences(&log) >= 1, "with record {} twice", at + 1);
        let mut log = life.log.clone();
        log[at].entity = Some("Session/two".parse().expect("a valid name"));
        assert!(divergences(&log) >= 1, "record {} of another entity", at + 1);
        let mut log = life.log.clone();
        log[at].entity = None;
        assert!(divergences(&log) >= 1, "record {} of no entity", at + 1);
    }
}

/// How many divergences there are where a host had reported `end` of the session's
/// handler, so that all that follows from it agrees with it.
fn divergences_after(end: HandlerEnd) -> u64 {
    let mut life = Life::of(SESSION);
    life.start();
    life.tell(Input::HandlerEnded(Arc::new(end))).expect("it was in flight");
    replay(&life).divergence_count
}

fn end_of(outcome: Outcome) -> HandlerEnd {
    let dispatch = Life::of(SESSION).start();
    end_within(900_000, dispatch, 1, outcome)
}

#[test]
fn a_timeout_that_contradicts_its_dispatch_or_itself_is_a_divergence() {
    type Forge = fn(&mut HandlerEnd, &mut HandlerDeadlineExceeded);
    let forgeries: [(&str, Forge); 15] = [
        ("elapsed", |end, exceeded| {
            (end.deadline.elapsed_ms, exceeded.elapsed_ms) = (900_000, 900_000)
        }),
        ("elapsed of one", |_, exceeded| exceeded.elapsed_ms += 1),
        ("budget", |end, exceeded| (end.deadline.budget_ms, exceeded.budget_ms) = (7, 7)),
        ("budget of one", |end, _| end.deadline.budget_ms = 7),
        ("entity type", |_, exceeded| exceeded.entity_type = "Other".to_owned()),
        ("entity id", |_, exceeded| exceeded.entity_id = "other".to_owned()),
        ("action", |_, exceeded| exceeded.action = "Other".to_owned()),
        ("attempt", |_, exceeded| exceeded.attempt = 9),
        ("integration", |_, exceeded| exceeded.integration = "other".to_owned()),
        ("trace", |_, exceeded| exceeded.trace_id = TraceContext::root([6; 24]).trace_id),
        ("owner", |end, exceeded| {
            (end.deadline.owner, exceeded.owner) = (DeadlineOwner::Parent, DeadlineOwner::Parent);
        }),
        ("owner of one", |end, _| end.deadline.owner = DeadlineOwner::Parent),
        ("dying span", |end, _| end.dying_span = Some("guest".to_owned())),
        ("returned", |end, _| end.cause = Cause::Returned),
        ("cancelled", |end, _| end.cause = Cause::Cancel),
    ];
    for (what, forge) in forgeries {
        let Outcome::TimedOut(mut exceeded) = timed_out() else { panic!() };
        let mut end = end_of(timed_out());
        forge(&mut end, &mut exceeded);
        end.outcome = Outcome::TimedOut(exceeded);
        assert!(divergences_after(end) >= 1, "{what}");
    }
    assert_eq!(divergences_after(end_of(timed_out())), 0);
}

#[test]
fn a_timeout_by_the_askers_deadline_has_a_budget_of_its_own() {
    let by_parent = |budget_ms: u64| {
        let Outcome::TimedOut(mut exceeded) = timed_out() else { panic!() };
        exceeded.owner = DeadlineOwner::Parent;
        (exceeded.budget_ms, exceeded.elapsed_ms) = (budget_ms, budget_ms + 1);
        let end = end_of(Outcome::TimedOut(exceeded));
        let deadline = DeadlineReport { budget_ms, ..end.deadline };
        HandlerEnd { cause: Cause::ParentDeadline, deadline, ..end }
    };
    let after = |end: HandlerEnd| {
        let mut life = Life::of(SESSION);
        life.turn_to(Life::other());
        life.start();
        let asker = life.entity().in_flight()[0].dispatched.clone();
        life.turn_to(Life::name());
        let asked = ask_of(&Life::other(), &asker, AskUntil::Settled);
        life.asked("ProcessToolCalls", asked).expect("taken in Idle");
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("it was in flight");
        replay(&life).divergence_count
    };
    assert_eq!(after(by_parent(20)), 0, "it waited while the asker's time ran");
    let started =
        HandlerEnd { started_at: Some(WallTime::from_millis(1_000)), ..by_parent(900_001) };
    assert_eq!(after(started), 1, "more than the asker had");
    assert_eq!(after(by_parent(900_001)), 0, "one that never started waits on its asker's time");
    assert_eq!(after(end_of(timed_out())), 0, "both had the same");
    assert_eq!(divergences_after(by_parent(20)), 1, "no handler asked for it");
}

#[test]
fn an_end_whose_cause_ends_otherwise_is_a_divergence() {
    for (outcome, fits, never) in [
        (completed(Some("Finish")), Cause::Returned, Cause::Deadline),
        (completed(None), Cause::Returned, Cause::Trap),
        (Outcome::Interrupted, Cause::HostLost, Cause::Returned),
        (cancelled(), Cause::StateLeft, Cause::Deadline),
        (cancelled(), Cause::CallerGone, Cause::HostLost),
        (trapped(), Cause::Trap, Cause::ParentDeadline),
    ] {
        let end = end_of(outcome);
        assert_eq!(divergences_after(HandlerEnd { cause: fits, ..end.clone() }), 0, "{fits:?}");
        assert_eq!(divergences_after(HandlerEnd { cause: never, ..end }), 1, "{never:?}");
    }
}

#[test]
fn a_success_past_its_deadline_or_of_another_budget_is_a_divergence() {
    let mut late = end_of(completed(Some("Finish")));
    late.deadline.overrun_us = 5;
    assert_eq!(divergences_after(late), 1);
    let mut other = end_of(completed(Some("Finish")));
    other.deadline.budget_ms = 1;
    assert_eq!(divergences_after(other), 1);
}

fn cancelled() -> Outcome {
    let by = CancelledBy::Operator;
    Outcome::Cancelled(Cancellation { by, reason: String::new(), dying_span: None })
}

fn trapped() -> Outcome {
    let message = "unreachable".to_owned();
    Outcome::Trapped(Trap { kind: TrapKind::Unreachable, message })
}

#[test]
fn a_damaged_record_is_a_divergence_and_the_rest_is_still_read() {
    let life = timed_out_life();
    let mut replay = Replay::new();
    for record in &life.log {
        if record.position == Position(4) {
            replay.damaged(record.position, None, "checksum\u{1b}[31m");
        } else {
            replay.feed(record);
        }
    }
    let summary = replay.finish();
    assert!(summary.divergence_count >= 1 && summary.records == 6);
    assert_eq!(summary.divergences[0].what, "damaged record");
    assert!(!summary.divergences[0].recorded.contains('\u{1b}'));
}

#[test]
fn kept_divergences_are_bounded_and_all_are_counted() {
    let life = timed_out_life();
    let mut replay = Replay::new();
    for _ in 0..300 {
        replay.feed(&life.log[3]);
    }
    let summary = replay.finish();
    assert_eq!(summary.divergences.len(), sandglass_liveness::replay::DIVERGENCES_MAX);
    assert!(summary.divergence_count >= 300);
}

#[test]
fn a_snapshot_that_cannot_be_used_is_counted_and_no_divergence() {
    let life = timed_out_life();
    let text = life.entity().to_snapshot().expect("it has settled");
    let newer = text.replace(r#"{"version":4,"#, r#"{"version":5,"#);
    assert_eq!(Entity::of_snapshot(&newer), Err(Unusable::Version(5)));
    let mut replay = Replay::new();
    life.log.iter().for_each(|record| replay.feed(record));
    for text in [&newer, "", "{}", r#"{"version":4,"entity":{}}"#, &text[..text.len() - 1]] {
        replay.snapshot(&Life::name(), text);
    }
    let summary = replay.finish();
    assert_eq!((summary.snapshots, summary.snapshots_unusable), (0, 5));
    assert_eq!(summary.divergence_count, 0);
}

#[test]
fn what_was_pruned_is_passed_over_and_a_hole_beside_it_is_not() {
    let life = timed_out_life();
    let replayed = |pruned: std::ops::RangeInclusive<u64>| {
        let mut replay = Replay::new();
        replay.feed(&life.log[0]);
        replay.pruned(Position(*pruned.start()), Position(*pruned.end()));
        for record in &life.log[1..] {
            let mut moved = record.clone();
            moved.position = Position(record.position.0 + 10);
            replay.feed(&moved);
        }
        replay.finish().divergence_count
    };
    assert_eq!(replayed(2..=11), 0);
    assert_eq!((replayed(3..=11), replayed(2..=10)), (1, 1));
}
