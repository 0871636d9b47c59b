//! Handlers of entities without limits: they are warned of and shown, and their entities are not
//! sessions.

use sandglass_insight::projection::{Projected, Projection, Shape};
use sandglass_liveness::session::{Due, Elapsed, Evaluation, Status, StatusView, evaluate, status};
use sandglass_liveness::{Input, Refusal, Replay};
use sandglass_model::{
    Action, Doing, Event, LastSignal, Limit, Meter, Position, Record, RulesVersion, Scope, WallTime,
};
use serde_json::json;

use crate::session::{Life, SESSION, completed};
use crate::sessions::replays;

/// What is due of the handlers in flight.
fn evaluated(life: &Life) -> Evaluation {
    let watched = life.entity().watched().expect("a handler is in flight");
    let mut elapsed = Elapsed::default();
    for (anchor, _, at) in watched.anchors() {
        elapsed.set(anchor, WallTime::from_millis(life.now).since(at));
    }
    evaluate(watched, !life.entity().is_settled(), &elapsed)
}

fn warning(observed_ms: u64, active: Option<LastSignal>) -> Input {
    let doing = Doing {
        handler: "run_tools".to_owned(),
        host_call: Some("host_http_call".to_owned()),
        since: WallTime::from_millis(2_000),
    };
    Input::LimitDue { limit: Limit::InactivityWarn, observed_ms, doing: Some(doing), active }
}

fn shown(life: &Life) -> Option<StatusView> {
    status(life.entity(), WallTime::from_millis(life.now))
}

fn host_call(at: i64) -> LastSignal {
    let (kind, of) = ("host_call".to_owned(), Some("run_tools".to_owned()));
    LastSignal { kind, of, at: WallTime::from_millis(at) }
}

#[test]
fn a_silent_handler_is_warned_of_once_until_the_next_activity() {
    let mut life = Life::of(SESSION);
    assert!(life.entity().watched().is_none(), "nothing is in flight");
    life.now += 1_000_000;
    let dispatch = life.start();
    assert!(life.entity().session().is_none());
    let begun = life.now;
    life.now += 600_000;
    assert_eq!(evaluated(&life).due, None, "not at the very moment");
    let early = life.tell(warning(600_000, None));
    assert_eq!(early, Err(Refusal::NotIdleYet { idle_ms: 600_000, after_ms: 600_000 }));
    life.now += 1;
    let due = Due { limit: Limit::InactivityWarn, observed_ms: 600_001 };
    let found = evaluated(&life);
    assert_eq!((found.due, found.next_stop), (Some(due), None));

    let before = life.log.len();
    assert_eq!(life.tell(warning(600_001, None)), Ok(Vec::new()), "nothing is stopped");
    assert_eq!(life.kinds(before), ["limit.breached"]);
    let event = &life.log[before].event;
    let Event::LimitBreached(breach) = event else { panic!("{event:?}") };
    assert_eq!((&breach.session, breach.run_seq), (&None, None));
    assert_eq!(
        (breach.scope, breach.limit, breach.kind, breach.action),
        (Scope::Handler, Limit::InactivityWarn, Meter::Elapsed, Action::Record)
    );
    assert_eq!((breach.threshold, breach.observed), (600_000, 600_001));
    let last = breach.last_signal.as_ref().expect("its start");
    assert_eq!((&*last.kind, last.of.as_deref()), ("dispatched", Some("run_tools")));
    assert_eq!(last.at, WallTime::from_millis(begun));
    let written = serde_json::to_value(event).expect("JSON");
    assert_eq!((written.get("session"), written.get("run_seq")), (None, None));
    assert_eq!(serde_json::from_value::<Event>(written).as_ref().ok(), Some(event));

    // It holds, however long that lasts.
    life.now += 200_000;
    assert_eq!(evaluated(&life), Evaluation::default());
    assert_eq!(life.tell(warning(800_001, None)), Err(Refusal::StaleTimer));

    let before = life.log.len();
    let (name, payload) = ("heartbeat".to_owned(), json!(null));
    life.tell(Input::Signal { name, from: None, dispatch: Some(dispatch), payload })
        .expect("taken");
    assert_eq!(life.kinds(before), ["signal", "limit.cleared"]);
    let event = &life.log[before + 1].event;
    let Event::LimitCleared { run_seq: None, silent_ms: 800_001, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(serde_json::to_value(event).expect("JSON").get("run_seq"), None);

    life.now += 600_001;
    assert_eq!(evaluated(&life).due, Some(due), "it is armed again");
    life.tell(warning(600_001, None)).expect("it is due");
    let before = life.log.len();
    life.now += 1;
    life.end(dispatch, completed(Some("Finish"))).expect("in flight");
    assert_eq!(life.kinds(before), ["ended", "limit.cleared", "transition"]);
    assert!(life.entity().watched().is_none(), "nothing is in flight");
    replays(&life);
}

#[test]
fn a_host_call_moves_the_silence_of_a_handler_and_ends_it() {
    let mut life = Life::of(SESSION);
    life.start();
    // The last host call ended three minutes after the start: silence counts from then on.
    let active = host_call(life.now + 180_000);
    life.now += 780_001;
    let before = life.log.len();
    life.tell(warning(600_001, Some(active.clone()))).expect("it is due");
    let event = &life.log[before].event;
    let Event::LimitBreached(breach) = event else { panic!("{event:?}") };
    assert_eq!(breach.last_signal.as_ref(), Some(&active));
    assert!(life.tell(Input::Active(active)).is_err(), "it is not later than the silence");

    let before = life.log.len();
    let call = host_call(life.now + 4_000);
    life.now += 5_000;
    life.tell(Input::Active(call.clone())).expect("it was silent");
    let event = &life.log[before].event;
    let Event::LimitCleared { run_seq: None, silent_ms: 604_001, last_signal, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!(last_signal.as_deref(), Some(&call));
    assert_eq!(shown(&life).map(|view| view.status), Some(Status::Running));
    assert!(life.tell(Input::Active(call)).is_err(), "it is no longer silent");
    replays(&life);
}

#[test]
fn handlers_are_shown_while_they_are_in_flight() {
    let mut life = Life::of(SESSION);
    assert_eq!(shown(&life), None, "it is no session, and nothing is in flight");
    let dispatch = life.start();
    let mut at = |passed_ms: i64, is_warned: bool| {
        life.now = 1_000 + passed_ms;
        if is_warned {
            life.tell(warning(600_001, None)).expect("it is due");
        }
        let view = shown(&life).expect("a handler is in flight");
        assert_eq!((view.run_seq, view.budget_left_ms), (None, None));
        let passed_ms = u64::try_from(passed_ms).expect("not negative");
        assert_eq!((view.elapsed_ms, view.silent_ms), (passed_ms, Some(passed_ms)));
        assert_eq!(view.in_flight, ["run_tools"]);
        (view.status, view.stuck)
    };
    assert_eq!(at(0, false), (Status::Running, false));
    assert_eq!(at(300_000, false), (Status::Running, false), "not at the very moment");
    assert_eq!(at(300_001, false), (Status::Stuck, true));
    assert_eq!(at(600_001, true), (Status::Silent, true));
    let written = serde_json::to_value(shown(&life)).expect("JSON");
    assert_eq!((&written["session"], written.get("run_seq")), (&json!("Session/one"), None));
    life.end(dispatch, completed(Some("Finish"))).expect("in flight");
    assert_eq!(shown(&life), None);
}

#[test]
fn the_silence_of_a_handler_has_a_record_of_a_silence_detector_and_no_other() {
    let mut life = Life::of(SESSION);
    life.start();
    life.now += 600_001;
    life.tell(warning(600_001, None)).expect("it is due");
    let projected = |shape| {
        let mut projection = Projection::new(shape);
        let all = life.log.iter().filter_map(|record| projection.feed(record).expect("it fits"));
        all.collect::<Vec<Projected>>()
    };
    assert_eq!((projected(Shape::Watchdog), projected(Shape::Audit)), (Vec::new(), Vec::new()));
    let [Projected::Silence(silent)] = &projected(Shape::Silence)[..] else { panic!("one record") };
    assert_eq!(
        (silent.session_id.to_string().as_str(), &*silent.phase),
        ("Session/one", "Executing")
    );
    assert_eq!((silent.elapsed_silent_seconds, silent.iteration, silent.killed), (601, 1, false));
    let last = silent.last_event.as_ref().expect("its start");
    assert_eq!((&*last.kind, last.handler.as_deref()), ("dispatched", Some("run_tools")));
    assert_eq!(last.tool_name.as_deref(), Some("host_http_call"));
}

#[test]
fn earlier_rules_neither_have_such_warnings_nor_miss_them() {
    for rules in RulesVersion::ALL.into_iter().filter(|rules| *rules < RulesVersion::V3) {
        let mut life = Life::under(SESSION, rules);
        let dispatch = life.start();
        life.now += 700_000;
        assert!(life.entity().watched().is_none());
        assert_eq!(life.tell(warning(700_000, None)), Err(Refusal::NoSession));
        assert_eq!(shown(&life), None);
        life.end(dispatch, completed(Some("Finish"))).expect("in flight");
        replays(&life);
    }

    // A warning that a journal of earlier rules contains nevertheless is a divergence.
    let mut warned = Life::of(SESSION);
    warned.start();
    warned.now += 600_001;
    warned.tell(warning(600_001, None)).expect("it is due");
    let breach = warned.log.last().expect("a record").clone();
    let mut life = Life::under(SESSION, RulesVersion::V2);
    life.start();
    let position = Position(life.log.len() as u64 + 1);
    life.log.push(Record { position, ..breach });
    let mut replay = Replay::new();
    life.log.iter().for_each(|record| replay.feed(record));
    let divergences = replay.finish().divergences;
    let [divergence] = &divergences[..] else { panic!("{divergences:?}") };
    assert_eq!((divergence.position, &*divergence.what), (position, "decision"));
}
