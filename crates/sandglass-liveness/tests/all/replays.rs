//! Replays: what is counted, and what a forged or damaged journal looks like.

use sandglass_liveness::{Replay, Summary};
use sandglass_model::{Event, Outcome, Position};

use crate::generated::divergences;
use crate::session::{Life, SESSION, timed_out};

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
fn a_missing_a_doubled_and_a_foreign_record_are_divergences() {
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

#[test]
fn a_timeout_inside_its_budget_is_a_divergence() {
    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    let Outcome::TimedOut(mut exceeded) = timed_out() else { panic!() };
    exceeded.elapsed_ms = exceeded.budget_ms;
    life.end(dispatch, Outcome::TimedOut(exceeded)).expect("it was in flight");
    assert_eq!(replay(&life).divergence_count, 1);
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
