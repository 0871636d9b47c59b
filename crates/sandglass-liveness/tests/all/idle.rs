//! The state timer: pure idle detection, that stands still while a handler runs.

use sandglass_liveness::{Input, Refusal};
use sandglass_model::{Event, Object, WallTime};
use serde_json::json;

use crate::generated::divergences;
use crate::session::{Life, SESSION, completed, timed_out};

/// The session, whose tool runs lead back to `Executing` with nothing in flight.
fn life() -> Life {
    let source = SESSION.replace("on_timeout = \"HandlerTimedOut\"", "on_timeout = \"Note\"");
    let source = source.replace("param = \"text\" }", "value = \"late\" }");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    life.now += 372_000;
    life.end(dispatch, timed_out()).expect("it was in flight");
    life
}

fn generation(life: &Life) -> u64 {
    life.entity().idle_timer(&life.spec).expect("it runs").generation
}

#[test]
fn the_state_timer_stops_while_a_handler_is_in_flight_and_then_restarts() {
    let mut life = Life::of(SESSION);
    assert_eq!(life.entity().idle_timer(&life.spec), None, "Idle may be indefinite");
    let dispatch = life.start();
    assert_eq!(life.entity().idle_timer(&life.spec), None, "a handler is in flight");
    life.now += 372_000;
    assert_eq!(life.entity().idle_timer(&life.spec), None, "however long it runs");
    life.end(dispatch, completed(Some("Nonsense"))).expect("it was in flight");
    // There is no such action, so the failure took over and the session is over.
    assert_eq!(life.entity().idle_timer(&life.spec), None, "terminal");
    let life = self::life();
    let timer = life.entity().idle_timer(&life.spec).expect("nothing is in flight");
    assert_eq!((timer.since, timer.after_ms), (WallTime::from_millis(life.now), 300_000));
}

#[test]
fn an_idle_state_takes_its_action_with_its_params() {
    let mut life = life();
    let generation = generation(&life);
    let early = life.tell(Input::StateIdle { generation, idle_ms: 299_999 });
    assert_eq!(early, Err(Refusal::NotIdleYet { idle_ms: 299_999, after_ms: 300_000 }));
    let from = life.log.len();
    life.now += 300_000;
    life.tell(Input::StateIdle { generation, idle_ms: 300_000 }).expect("idle");
    assert_eq!(life.kinds(from), ["state_idle", "transition"]);
    assert_eq!(life.state(), "Failed");
    let Event::Transition { params, .. } = &life.log[from + 1].event else { panic!() };
    assert_eq!(*params, Object::from([("reason".to_owned(), json!("idle"))]));
}

#[test]
fn a_transition_restarts_the_state_timer_even_in_the_same_state() {
    let mut life = life();
    let before = generation(&life);
    life.now += 200_000;
    life.act("Note").expect("taken");
    let timer = life.entity().idle_timer(&life.spec).expect("it runs");
    assert_eq!(timer.since, WallTime::from_millis(life.now));
    let stale = life.tell(Input::StateIdle { generation: before, idle_ms: 300_000 });
    assert_eq!(stale, Err(Refusal::StaleTimer));
}

#[test]
fn only_a_listed_signal_of_another_entity_or_from_outside_restarts_the_state_timer() {
    let other = || Some("Session/two".parse().expect("a valid name"));
    let dispatch = sandglass_model::DispatchId::from_bytes([1; 16]);
    for (name, from, dispatch, resets) in [
        ("PartnerReplied", other(), None, true),
        ("PartnerReplied", Some(Life::name()), None, false),
        ("PartnerReplied", None, None, true),
        ("PartnerReplied", None, Some(dispatch), false),
        ("PartnerReplied", other(), Some(dispatch), false),
        ("Heartbeat", other(), None, false),
        ("progress", None, Some(dispatch), false),
    ] {
        let mut life = life();
        let (before, sequence) = (generation(&life), life.entity().sequence);
        life.now += 5;
        let payload = json!({ "n": 1 });
        let input = Input::Signal { name: name.to_owned(), from: from.clone(), dispatch, payload };
        life.tell(input).expect("a small signal");
        assert_eq!(generation(&life) != before, resets, "{name} from {from:?}");
        assert_eq!(life.entity().sequence, sequence, "a signal is no transition");
    }
}

#[test]
fn a_signal_that_is_too_large_or_has_no_name_is_refused() {
    let mut life = life();
    let payload = json!("x".repeat(65 << 10));
    let input = Input::Signal { name: "progress".to_owned(), from: None, dispatch: None, payload };
    assert!(matches!(life.tell(input), Err(Refusal::TooLarge { .. })));
    let name = "line\nbreak".to_owned();
    let input = Input::Signal { name, from: None, dispatch: None, payload: json!(1) };
    assert!(matches!(life.tell(input), Err(Refusal::BadSignal(_))));
}

#[test]
fn a_refused_idle_action_neither_spins_nor_hangs_nor_uses_up_its_occurrences() {
    let source = SESSION
        .replace("name = \"Fail\"", "name = \"Fail\"\nguard = \"rounds > 9\"")
        .replace("on_failure = \"Fail\"", "on_failure = \"Stop\"")
        .replace("region = \"north\"", "on_success = \"Note\"")
        .replace("param = \"text\" }", "value = \"late\" }");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    life.end(dispatch, completed(None)).expect("it was in flight");
    // More often than the state's timer may fire.
    for _ in 0..5 {
        let generation = generation(&life);
        life.now += 300_000;
        let from = life.log.len();
        life.tell(Input::StateIdle { generation, idle_ms: 300_000 }).expect("idle");
        assert_eq!(life.kinds(from), ["state_idle"]);
        assert!(matches!(
            life.log[from].event,
            Event::StateIdle { taken: false, occurrence: 1, .. }
        ));
    }
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_timer_that_fired_as_often_as_it_may_stops() {
    let source = SESSION
        .replace("on_timeout = \"Fail\"", "on_timeout = \"Note\"")
        .replace("param = \"text\" }", "value = \"late\" }")
        .replace("region = \"north\"", "on_success = \"Note\"");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    life.end(dispatch, completed(None)).expect("it was in flight");
    for occurrence in 1..=2 {
        let generation = generation(&life);
        life.now += 300_000;
        let from = life.log.len();
        life.tell(Input::StateIdle { generation, idle_ms: 300_000 }).expect("idle");
        assert!(matches!(
            life.log[from].event,
            Event::StateIdle { taken: true, occurrence: is, .. } if is == occurrence
        ));
    }
    assert_eq!(life.entity().idle_timer(&life.spec), None, "it may fire twice");
    assert_eq!(divergences(&life.log), 0);
}
