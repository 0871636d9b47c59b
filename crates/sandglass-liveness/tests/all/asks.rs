//! Asks: what an asked entity starts lives inside what the asker has left.

use std::sync::Arc;

use sandglass_liveness::decide::ASK_DEPTH_MAX;
use sandglass_liveness::{Command, Input, Refusal};
use sandglass_model::{
    AskUntil, Asked, DeadlineOwner, Dispatched, Event, HandlerEnd, Outcome, TransitionCause,
};

use crate::generated::{busy, divergences};
use crate::session::{Life, SESSION, ask_of, end_of_run};

/// A life in which a handler of the other session runs, and it is the first one's
/// turn.
fn asked_life(source: &str) -> (Life, Dispatched) {
    let mut life = Life::of(source);
    life.turn_to(Life::other());
    life.start();
    let asker = (*life.entity().in_flight()[0].dispatched).clone();
    life.turn_to(Life::name());
    (life, asker)
}

fn started(commands: &[Command]) -> &Dispatched {
    match commands {
        [Command::Start(dispatched)] => dispatched,
        other => panic!("one start, not {other:?}"),
    }
}

#[test]
fn an_asked_handler_has_at_most_the_remaining_time_of_its_asker() {
    for (left_ms, budget_ms, owner) in [
        (1, 1, DeadlineOwner::Parent),
        (899_999, 899_999, DeadlineOwner::Parent),
        (900_000, 900_000, DeadlineOwner::Handler),
    ] {
        let (mut life, asker) = asked_life(SESSION);
        let asked = ask_of(&Life::other(), &asker, AskUntil::Settled);
        let asked = Asked { remaining_ms: left_ms, ..asked };
        let commands = life.asked("ProcessToolCalls", asked.clone()).expect("taken");
        let handler = started(&commands);
        assert_eq!((handler.budget_ms, handler.owner), (budget_ms, owner), "{left_ms}");
        assert_eq!((handler.asker, handler.depth), (Some(asker.dispatch), 1));
        assert_eq!(handler.trace.trace_id, asker.trace.trace_id);
        let Event::Transition { cause, .. } = &life.log[life.log.len() - 2].event else { panic!() };
        assert_eq!(*cause, TransitionCause::Asked(asked));
        assert_eq!(divergences(&life.log), 0);
    }
}

#[test]
fn what_follows_an_asked_handler_without_a_waiting_asker_has_its_own_budget_at_the_same_depth() {
    let source = busy().replace("on_success = \"Fetched\"", "on_success = \"Fetch\"");
    let (mut life, asker) = asked_life(&source);
    let asked = ask_of(&Life::other(), &asker, AskUntil::Transition);
    let commands = life.asked("Fetch", Asked { remaining_ms: 5, ..asked }).expect("taken");
    let first = started(&commands).clone();
    let end = end_of_run(&first, crate::session::completed(None));
    let commands = life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let second = started(&commands);
    assert_eq!((second.depth, second.asker), (1, None));
    assert_eq!((second.budget_ms, second.owner), (2_000, DeadlineOwner::Handler));
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn what_follows_an_asked_handler_has_at_most_the_remaining_time_of_a_waiting_asker() {
    let source = busy().replace("on_success = \"Fetched\"", "on_success = \"Fetch\"");
    let (mut life, asker) = asked_life(&source);
    let asked = ask_of(&Life::other(), &asker, AskUntil::Settled);
    let commands = life.asked("Fetch", Asked { remaining_ms: 1_500, ..asked }).expect("taken");
    let mut last = started(&commands).clone();
    for (left_ms, budget_ms, owner) in [
        (Some(1_400), 1_400, DeadlineOwner::Parent),
        (Some(1), 1, DeadlineOwner::Parent),
        (None, 2_000, DeadlineOwner::Handler),
    ] {
        let end = end_of_run(&last, crate::session::completed(None));
        let end = HandlerEnd { asker_remaining_ms: left_ms, ..end };
        let commands = life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
        last = started(&commands).clone();
        assert_eq!((last.budget_ms, last.owner), (budget_ms, owner), "{left_ms:?}");
        assert_eq!((last.depth, last.asker), (1, left_ms.map(|_| asker.dispatch)));
    }
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn an_impossible_remaining_time_is_a_divergence() {
    for (asked_ms, left_ms, expected) in
        [(Some(1_500), 1_500, 0), (Some(1_500), 1_501, 1), (Some(1_500), 0, 1), (None, 1_000, 1)]
    {
        let (mut life, asker) = asked_life(&busy());
        let asked = ask_of(&Life::other(), &asker, AskUntil::Settled);
        let commands = match asked_ms {
            Some(remaining_ms) => life.asked("Fetch", Asked { remaining_ms, ..asked }),
            None => life.act("Fetch"),
        };
        let first = started(&commands.expect("taken")).clone();
        let end = end_of_run(&first, crate::session::completed(None));
        let end = HandlerEnd { asker_remaining_ms: Some(left_ms), ..end };
        life.tell(Input::HandlerEnded(Arc::new(end))).expect("nothing shows that it is forged");
        assert_eq!(divergences(&life.log), expected, "{left_ms} of {asked_ms:?}");
    }
}

#[test]
fn an_asked_handler_that_is_started_again_has_lost_its_asker() {
    let (mut life, asker) =
        asked_life(&SESSION.replace("region = \"north\"", "on_crash = \"rerun\""));
    let asked = ask_of(&Life::other(), &asker, AskUntil::Settled);
    let commands =
        life.asked("ProcessToolCalls", Asked { remaining_ms: 5, ..asked }).expect("taken");
    let first = started(&commands).clone();
    let end = end_of_run(&first, Outcome::Interrupted);
    let commands = life.tell(Input::HandlerEnded(Arc::new(end))).expect("in flight");
    let again = started(&commands);
    assert_eq!((again.attempt, again.asker, again.depth), (2, None, 1));
    assert_eq!((again.budget_ms, again.owner), (900_000, DeadlineOwner::Handler));
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn an_ask_that_is_too_deep_too_late_or_for_itself_is_refused() {
    let (mut life, asker) = asked_life(SESSION);
    let ask = |until| ask_of(&Life::other(), &asker, until);
    let log = life.log.clone();
    for depth in [0, ASK_DEPTH_MAX + 1, u32::MAX] {
        let asked = Asked { depth, ..ask(AskUntil::Transition) };
        let refused = life.asked("ProcessToolCalls", asked);
        assert_eq!(refused, Err(Refusal::AskTooDeep { max: ASK_DEPTH_MAX }), "{depth}");
    }
    let late = Asked { remaining_ms: 0, ..ask(AskUntil::Transition) };
    assert_eq!(life.asked("ProcessToolCalls", late), Err(Refusal::AskTooLate));
    assert_eq!(life.log, log);
    life.turn_to(Life::other());
    assert_eq!(life.asked("Pause", ask(AskUntil::Settled)), Err(Refusal::AskCycle));
    life.asked("Pause", ask(AskUntil::Transition)).expect("it waits for nothing of its own");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn an_impossible_ask_is_a_divergence() {
    type Forge = fn(&mut Asked);
    let forgeries: [(&str, Forge); 6] = [
        ("depth", |asked| asked.depth = 2),
        ("time", |asked| asked.remaining_ms = 900_001),
        ("attempt", |asked| asked.attempt = 2),
        ("entity", |asked| asked.by = Life::name()),
        ("unknown entity", |asked| asked.by = "Session/three".parse().expect("a valid name")),
        ("dispatch", |asked| asked.dispatch = sandglass_model::DispatchId::from_bytes([9; 16])),
    ];
    for (what, forge) in forgeries {
        let (mut life, asker) = asked_life(SESSION);
        let mut asked = ask_of(&Life::other(), &asker, AskUntil::Transition);
        forge(&mut asked);
        // All that follows from it agrees with it.
        life.asked("ProcessToolCalls", asked).expect("nothing shows that it is forged");
        assert!(divergences(&life.log) >= 1, "{what}");
    }
}

#[test]
fn an_ask_recorded_just_after_the_end_of_its_asker_is_not_a_divergence() {
    let (mut life, asker) = asked_life(SESSION);
    let asked = ask_of(&Life::other(), &asker, AskUntil::Settled);
    life.turn_to(Life::other());
    let timed_out = crate::session::timed_out_of(&Life::other(), &asker);
    life.tell(Input::HandlerEnded(Arc::new(end_of_run(&asker, timed_out)))).expect("in flight");
    life.turn_to(Life::name());
    life.asked("ProcessToolCalls", asked).expect("taken");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn an_ask_of_another_tenants_entity_is_a_divergence() {
    let (mut life, asker) = asked_life(SESSION);
    let asked = ask_of(&Life::other(), &asker, AskUntil::Transition);
    life.asked("ProcessToolCalls", asked).expect("nothing shows that it is forged");
    assert_eq!(divergences(&life.log), 0);
    for record in &mut life.log {
        if let (Some(name), Event::Created { tenant, .. }) = (&record.entity, &mut record.event)
            && *name == Life::other()
        {
            *tenant = Some("acme".to_owned());
        }
    }
    assert!(divergences(&life.log) >= 1);
}
