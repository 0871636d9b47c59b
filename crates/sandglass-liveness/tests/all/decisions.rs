//! Decisions: what each input becomes, and every ending of a handler.

use std::sync::Arc;

use sandglass_liveness::{Command, Input, Refusal};
use sandglass_model::{
    AskUntil, Cancellation, CancelledBy, Cause, Completion, DeadlineOwner, Decision, Event,
    Failure, FailureKind, Incarnation, LimitBreach, LimitKind, NO_ACTION, Object, Outcome,
    Rejection, RejectionKind, RulesVersion, Sequence, TraceContext, TransitionCause, Trap,
    TrapKind,
};
use serde_json::json;

use crate::generated::{busy, divergences};
use crate::session::{Life, SESSION, ask_of, completed, end_of_run, ended, timed_out};

fn failed() -> Outcome {
    Outcome::Failed(Failure {
        kind: FailureKind::GuestFailure,
        message: "no luck".to_owned(),
        result: None,
    })
}

fn cancelled(by: CancelledBy) -> Outcome {
    Outcome::Cancelled(Cancellation { by, reason: String::new(), dying_span: None })
}

fn transition(event: &Event) -> (&str, &Object, &TransitionCause, TraceContext) {
    match event {
        Event::Transition { action, params, cause, trace, .. } => (action, params, cause, *trace),
        other => panic!("a transition, not {other:?}"),
    }
}

fn outcome(event: &Event) -> (&Outcome, &Decision) {
    match event {
        Event::Ended(ended) => (&ended.outcome, &ended.decision),
        other => panic!("an end, not {other:?}"),
    }
}

#[test]
fn every_ending_is_the_transition_that_the_spec_declares() {
    let trap = Trap { kind: TrapKind::Unreachable, message: "abort".to_owned() };
    let breach = LimitBreach { kind: LimitKind::WasmMemory, limit: 1, observed: 2 };
    let rejection =
        Rejection { kind: RejectionKind::UnknownModule, message: "no module".to_owned() };
    for (outcome, cause, state) in [
        (completed(Some("Finish")), "completed", "Done"),
        (failed(), "failed", "Failed"),
        (Outcome::Trapped(trap), "trapped", "Failed"),
        (Outcome::Limit(breach), "limit", "Failed"),
        (Outcome::Rejected(rejection), "rejected", "Failed"),
        (timed_out(), "timed_out", "TimedOut"),
        (Outcome::Interrupted, "interrupted", "TimedOut"),
        (cancelled(CancelledBy::Operator), "cancelled", "Stopped"),
        (cancelled(CancelledBy::Shutdown), "cancelled", "Stopped"),
    ] {
        let mut life = Life::of(SESSION);
        let dispatch = life.start();
        let trace = life.entity().in_flight()[0].dispatched.trace;
        let from = life.log.len();
        life.end(dispatch, outcome.clone()).expect("it was in flight");
        assert_eq!(life.kinds(from), ["ended", "transition"], "{cause}");
        assert_eq!(life.state(), state, "{cause}");
        assert!(life.entity().is_settled());
        let (_, params, why, of) = transition(&life.log[from + 1].event);
        assert_eq!(*why, TransitionCause::HandlerEnded { dispatch });
        assert_eq!(of, trace, "the transition belongs to the span of its handler");
        if cause == "completed" {
            assert_eq!(*params, Object::from([("answer".to_owned(), json!(42))]));
        } else {
            assert_eq!(params["cause"], cause);
            assert_eq!(params["dispatch_id"], json!(dispatch));
            assert_eq!(params["integration"], "run_tools");
            let (kind, message) = outcome.error().expect("it is no success");
            assert_eq!((&params["error_kind"], &params["error"]), (&json!(kind), &json!(message)));
            assert_eq!(params["error_message"], params["error"]);
        }
    }
}

#[test]
fn a_timeout_carries_all_known_details() {
    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    life.end(dispatch, timed_out()).expect("it was in flight");
    let (action, params, ..) = transition(&life.log.last().expect("a record").event);
    assert_eq!(action, "HandlerTimedOut");
    for (field, value) in [
        ("budget_ms", json!(900_000)),
        ("elapsed_ms", json!(900_001)),
        ("dying_span", json!("host_http_call")),
        ("attempt", json!(1)),
        ("owner", json!("handler")),
        ("host_calls", json!(3)),
    ] {
        assert_eq!(params[field], value, "{field}");
    }
}

#[test]
fn a_success_without_a_usable_action_is_a_failure_that_keeps_the_result() {
    for (action, kind) in [
        (None, FailureKind::NoAction),
        (Some("Nonsense"), FailureKind::ActionNotTaken),
        (Some("Later"), FailureKind::ActionNotTaken),
    ] {
        let mut life = Life::of(SESSION);
        let dispatch = life.start();
        let from = life.log.len();
        life.end(dispatch, completed(action)).expect("it was in flight");
        assert_eq!(life.state(), "Failed", "{action:?}");
        let (outcome, decision) = outcome(&life.log[from].event);
        assert_eq!(*decision, Decision::Take { action: "Fail".to_owned() });
        let Outcome::Failed(failure) = outcome else { panic!("a failure, not {outcome:?}") };
        assert_eq!(failure.kind, kind);
        assert_eq!(failure.result, Some(json!({ "success": true })));
    }
}

#[test]
fn an_empty_action_changes_nothing_in_a_spec_that_is_not_strict() {
    let lenient = SESSION.replace("strict = true\n", "");
    let strict = lenient.replace("[automaton]\n", "[automaton]\nstrict = true\n");
    let result = json!({ "success": true, "action": "", "params": { "n": 1 } });
    let completion = Completion { action: None, params: Object::new(), result };
    for (source, rules, state) in [
        (&lenient, RulesVersion::V3, "Executing"),
        (&strict, RulesVersion::V3, "Failed"),
        (&lenient, RulesVersion::V2, "Failed"),
    ] {
        let mut life = Life::under(source, rules);
        let dispatch = life.start();
        let before = life.log.len();
        life.end(dispatch, Outcome::Completed(completion.clone())).expect("in flight");
        assert_eq!(life.state(), state, "{rules:?}");
        if state == "Executing" {
            let (outcome, decision) = outcome(&life.log[before].event);
            assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
            assert_eq!(*decision, Decision::Superseded { action: NO_ACTION.to_owned() });
            assert_eq!(life.log.len() - before, 1);
        }
        assert_eq!(divergences(&life.log), 0);
    }
    // An action that is declared is taken all the same.
    let source =
        lenient.replace("on_failure = \"Fail\"", "on_success = \"Finish\"\non_failure = \"Fail\"");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    life.end(dispatch, Outcome::Completed(completion)).expect("in flight");
    assert_eq!(life.state(), "Done");
}

#[test]
fn a_declared_success_precedes_the_one_that_the_guest_names() {
    let source =
        SESSION.replace("on_failure = \"Fail\"", "on_success = \"Finish\"\non_failure = \"Fail\"");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    life.end(dispatch, completed(Some("Pause"))).expect("it was in flight");
    assert_eq!(life.state(), "Done");
}

#[test]
fn a_requested_action_dispatches_in_the_same_decision() {
    let mut life = Life::of(SESSION);
    let from = life.log.len();
    let params = Object::from([("calls".to_owned(), json!(["a"]))]);
    let commands = life.act_with("ProcessToolCalls", params.clone()).expect("taken");
    assert_eq!(life.kinds(from), ["transition", "dispatched"]);
    let [Command::Start(dispatched)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(dispatched.params, params);
    assert_eq!(dispatched.state, "Executing");
    assert_eq!(dispatched.variables["rounds"], json!(1), "the variables are those after it");
    assert_eq!(dispatched.config["region"], "north");
    assert_eq!((dispatched.attempt, dispatched.budget_ms), (1, 900_000));
    assert_eq!(dispatched.trace.trace_id, TraceContext::root([5; 24]).trace_id);
    assert_eq!(life.entity().sequence, Sequence(1));
}

#[test]
fn a_parameter_gives_a_handler_less_time_and_never_more() {
    let more = "on_crash = \"rerun\"\ndeadline_param = \"most_ms\"";
    let source = SESSION.replace("region = \"north\"", more);
    for (asked, budget_ms) in [
        (json!(1), 1),
        (json!(899_999), 899_999),
        (json!(900_001), 900_000),
        (json!(0), 900_000),
        (json!(-1), 900_000),
        (json!(1.5), 900_000),
        (json!("7"), 900_000),
        (json!(null), 900_000),
    ] {
        let mut life = Life::of(&source);
        let params = Object::from([("most_ms".to_owned(), asked.clone())]);
        let commands = life.act_with("ProcessToolCalls", params).expect("taken");
        let [Command::Start(first)] = &commands[..] else { panic!("{commands:?}") };
        let own = (budget_ms, DeadlineOwner::Handler);
        assert_eq!((first.budget_ms, first.owner), own, "{asked}");
        // After a crash it has as much again.
        let lost = Input::HandlerEnded(Arc::new(end_of_run(first, Outcome::Interrupted)));
        let commands = life.tell(lost).expect("in flight");
        let [Command::Start(again)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!((again.attempt, again.budget_ms, again.owner), (2, own.0, own.1), "{asked}");
        assert_eq!(divergences(&life.log), 0, "{asked}");
    }
    let mut life = Life::of(&source);
    let dispatch = life.start();
    let budget = life.entity().in_flight_handler(dispatch).map(|run| run.dispatched.budget_ms);
    assert_eq!(budget, Some(900_000), "who asks for nothing");
}

#[test]
fn leaving_the_state_stops_its_handlers_and_supersedes_their_ends() {
    for outcome in [cancelled(CancelledBy::StateLeft), completed(Some("Finish")), timed_out()] {
        let mut life = Life::of(SESSION);
        let dispatch = life.start();
        let commands = life.act("Pause").expect("Executing takes it");
        assert_eq!(
            commands,
            [Command::Kill { dispatch, cause: Cause::StateLeft, reason: String::new() }]
        );
        // The same state again, with another handler: the first one's end is not its.
        let again = life.start();
        let sequence = life.entity().sequence;
        let commands = life.end(dispatch, outcome).expect("it was in flight");
        assert_eq!(commands, []);
        assert_eq!((life.state(), life.entity().sequence), ("Executing", sequence));
        let last = &life.log.last().expect("a record").event;
        assert!(
            matches!(last, Event::Ended(end) if matches!(end.decision, Decision::Superseded { .. }))
        );
        assert!(life.entity().in_flight_handler(again).is_some());
    }
}

#[test]
fn handlers_of_the_left_state_are_stopped_before_new_ones_start() {
    let source = busy().replace("name = \"Pause\"", "name = \"Pause\"\neffect = \"trigger fetch\"");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    let commands = life.act("Pause").expect("taken");
    let [Command::Kill { dispatch: stopped, .. }, Command::Start(started)] = &commands[..] else {
        panic!("{commands:?}")
    };
    assert_eq!((*stopped, &*started.integration), (dispatch, "fetch"));
}

#[test]
fn a_handler_may_outlive_its_state_if_the_spec_says_so() {
    let source = SESSION.replace("region = \"north\"", "keep_on_exit = true");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    assert_eq!(life.act("Pause").expect("taken"), []);
    life.end(dispatch, completed(Some("Finish"))).expect("it was in flight");
    assert_eq!(life.state(), "Idle", "Idle doesn't take Finish");
    let (is, decision) = outcome(&life.log.last().expect("a record").event);
    assert_eq!(*is, completed(Some("Finish")), "it came too late, and was no failure");
    assert_eq!(*decision, Decision::Superseded { action: "Finish".to_owned() });
    let dispatch = life.start();
    life.act("Pause").expect("taken");
    life.end(dispatch, completed(Some("Later"))).expect("it was in flight");
    assert_eq!(life.entity().schedules().len(), 1, "Idle takes Later");
}

#[test]
fn the_end_of_a_handler_that_is_not_in_flight_is_refused() {
    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    assert_eq!(
        life.tell(ended(dispatch, 2, timed_out())),
        Err(Refusal::StaleAttempt { dispatch, attempt: 2 })
    );
    life.end(dispatch, timed_out()).expect("it was in flight");
    let log = life.log.clone();
    assert_eq!(life.end(dispatch, timed_out()), Err(Refusal::UnknownDispatch { dispatch }));
    assert_eq!(life.log, log);
}

#[test]
fn a_lost_handler_is_started_again_only_if_the_spec_allows_it() {
    let source = SESSION.replace("region = \"north\"", "on_crash = \"rerun\"");
    let mut life = Life::of(&source);
    let dispatch = life.start();
    for attempt in 1..sandglass_liveness::decide::RERUN_ATTEMPTS_MAX {
        let from = life.log.len();
        let commands = life.tell(ended(dispatch, attempt, Outcome::Interrupted)).expect("known");
        assert_eq!(life.kinds(from), ["ended", "dispatched"]);
        let [Command::Start(again)] = &commands[..] else { panic!("{commands:?}") };
        assert_eq!((again.dispatch, again.attempt), (dispatch, attempt + 1));
    }
    let last = sandglass_liveness::decide::RERUN_ATTEMPTS_MAX;
    life.tell(ended(dispatch, last, Outcome::Interrupted)).expect("known");
    assert_eq!(life.state(), "TimedOut", "not forever");
}

#[test]
fn requests_are_refused_with_the_reason() {
    let mut life = Life::unborn(SESSION);
    assert_eq!(life.act("Note"), Err(Refusal::UnknownEntity));
    let mut life = Life::of(SESSION);
    let incarnation = Incarnation::from_bytes([8; 16]);
    let create = Input::Create { name: Life::name(), incarnation, tenant: None, spawned_by: None };
    assert_eq!(life.tell(create), Err(Refusal::EntityExists));
    assert_eq!(
        life.act("Finnish"),
        Err(Refusal::UnknownAction {
            action: "Finnish".to_owned(),
            nearest: Some("Finish".to_owned())
        })
    );
    let foreign = life.act(&format!("\u{1b}[31m{}", "x".repeat(10_000))).expect_err("no action");
    assert!(!foreign.to_string().contains('\u{1b}') && foreign.to_string().len() < 200);
    assert!(matches!(life.act("Finish"), Err(Refusal::NotTaken { .. })));
    let large = Object::from([("text".to_owned(), json!("x".repeat(2 << 20)))]);
    assert!(matches!(life.act_with("Note", large), Err(Refusal::TooLarge { .. })));
    let dispatch = life.start();
    life.end(dispatch, timed_out()).expect("it was in flight");
    assert!(matches!(life.act("Fail"), Err(Refusal::NotTaken { .. })), "terminal");
    assert_eq!(life.entity().sequence, Sequence(2));
}

#[test]
fn effects_set_variables_and_a_guard_reads_them() {
    let source = SESSION.replace("name = \"Pause\"", "name = \"Pause\"\nguard = \"note == 'go'\"");
    let mut life = Life::of(&source);
    life.start();
    assert!(matches!(life.act("Pause"), Err(Refusal::GuardRefused(_))));
    let params = Object::from([("text".to_owned(), json!("go"))]);
    life.act_with("Note", params).expect("taken");
    assert_eq!(life.entity().variables["note"], json!("go"));
    life.act("Pause").expect("the guard holds now");
}

#[test]
fn only_a_request_learns_which_values_a_guard_has_read() {
    let guarded = ["Finish", "Fail"].iter().fold(SESSION.to_owned(), |source, action| {
        let name = format!("name = \"{action}\"");
        source.replace(&name, &format!("{name}\nguard = \"rounds > 0 and note == 'go'\""))
    });
    let mut life = Life::of(&guarded);
    let dispatch = life.start();
    let note = Object::from([("text".to_owned(), json!("confidential"))]);
    life.act_with("Note", note).expect("taken");
    let refused = life.act("Finish").expect_err("the guard does not hold");
    let unmet = "`note == \"go\"` does not hold (note is \"confidential\")";
    assert_eq!(refused.unmet(), Some(unmet));
    let text = "the guard of `Finish` doesn't hold in state `Executing`";
    assert_eq!(refused.to_string(), text);

    let asker = (*life.entity().in_flight()[0].dispatched).clone();
    let asked = ask_of(&Life::other(), &asker, AskUntil::Transition);
    let refused = life.asked("Finish", asked).expect_err("the guard does not hold");
    assert_eq!((refused.unmet(), refused.to_string().as_str()), (None, text));

    let from = life.log.len();
    life.end(dispatch, completed(Some("Finish"))).expect("it was in flight");
    let Outcome::Failed(failure) = outcome(&life.log[from].event).0 else { panic!("a failure") };
    assert_eq!(failure.message, format!("the result's action can't be taken: {text}"));
    let (action, params, ..) = transition(&life.log[from + 1].event);
    let refused = "the guard of `Fail` doesn't hold in state `Executing`";
    assert_eq!((action, &params["refused"]), ("HandlerTimedOut", &json!(refused)));
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn handlers_and_schedules_in_flight_are_bounded() {
    let mut life = Life::of(&busy());
    for _ in 0..sandglass_liveness::decide::IN_FLIGHT_MAX {
        life.act("Fetch").expect("there is room");
    }
    assert!(matches!(life.act("Fetch"), Err(Refusal::TooManyInFlight { .. })));
    let mut life = Life::of(SESSION);
    for _ in 0..sandglass_liveness::decide::SCHEDULES_MAX {
        life.act("Later").expect("there is room");
    }
    assert!(matches!(life.act("Later"), Err(Refusal::TooManySchedules { .. })));
}

#[test]
fn the_sizes_of_variables_and_parameters_are_bounded() {
    let note = |bytes| Object::from([("text".to_owned(), json!("x".repeat(bytes)))]);
    let mut life = Life::of(SESSION);
    life.act_with("Note", note(1_000_000)).expect("it fits");
    let refusal =
        life.act_with("Note", note((1 << 20) - 12)).expect_err("with its name it doesn't");
    assert_eq!(refusal, Refusal::TooLarge { what: "variables", max: 1 << 20 });
    let many: String = (0..40)
        .map(|number| {
            format!(
                "[[integration]]\nname = \"more{number}\"\ntrigger = \"run_tools\"\n\
                 module = \"m\"\ndeadline = \"1s\"\non_failure = \"Fail\"\n"
            )
        })
        .collect();
    let mut life = Life::of(&format!("{SESSION}{many}"));
    let refusal = life.act_with("ProcessToolCalls", note(1_000_000)).expect_err("41 copies");
    assert!(matches!(refusal, Refusal::TooLarge { .. }), "{refusal}");
    assert_eq!(life.act_with("ProcessToolCalls", note(100_000)).expect("41 copies").len(), 41);
}

#[test]
fn a_scheduled_action_comes_due_once() {
    let mut life = Life::of(SESSION);
    life.act("Later").expect("taken");
    let due = life.entity().schedule(0).expect("scheduled").due;
    assert_eq!(due.as_millis(), life.now + 60_000);
    life.now += 60_000;
    let commands = life.tell(Input::ScheduleDue { schedule: 0 }).expect("pending");
    assert_eq!((life.state(), commands.len()), ("Executing", 1));
    assert_eq!(
        life.tell(Input::ScheduleDue { schedule: 0 }),
        Err(Refusal::UnknownSchedule { number: 0 })
    );
    life.act("Pause").expect("taken");
    life.act("Later").expect("taken");
    life.start();
    let from = life.log.len();
    life.tell(Input::ScheduleDue { schedule: 1 }).expect("pending");
    assert_eq!(life.kinds(from), ["schedule_due"], "Executing doesn't take it");
}

#[test]
fn an_ending_that_is_refused_in_its_own_state_falls_back_to_another_ending() {
    let refuse = |source: &str, name: &str| {
        let old = format!("name = \"{name}\"");
        source.replacen(&old, &format!("{old}\nguard = \"rounds > 9\""), 1)
    };
    let once = refuse(SESSION, "HandlerTimedOut");
    let twice = refuse(&once, "Fail");
    let always = refuse(&twice, "Stop");
    for (source, state) in [(once, "Failed"), (twice, "Stopped"), (always, "Executing")] {
        let mut life = Life::of(&source);
        let dispatch = life.start();
        life.end(dispatch, timed_out()).expect("in flight");
        assert_eq!(life.state(), state);
        assert_eq!(divergences(&life.log), 0);
    }
}

#[test]
fn a_handler_that_starts_in_a_terminal_state_ends_with_its_record_only() {
    let source = SESSION
        .replace("to = \"Done\"", "to = \"Done\"\neffect = \"trigger run_tools\"")
        .replace("effect = [\"trigger run_tools\", \"increment rounds\"]", "");
    let outcomes = [completed(None), completed(Some("Finish")), failed(), Outcome::Interrupted];
    for ended in outcomes {
        let mut life = Life::of(&source);
        life.act("ProcessToolCalls").expect("taken in Idle");
        life.act("Finish").expect("taken in Executing");
        let run = life.entity().in_flight()[0].dispatched.clone();
        let before = life.log.len();
        life.tell(Input::HandlerEnded(Arc::new(end_of_run(&run, ended.clone()))))
            .expect("in flight");
        let (outcome, decision) = outcome(&life.log[before].event);
        assert_eq!(outcome, &ended, "it is recorded as it was");
        assert!(matches!(decision, Decision::Superseded { .. }), "{decision:?}");
        assert_eq!((life.state(), life.log.len() - before), ("Done", 1));
        assert_eq!(divergences(&life.log), 0);
    }
}

#[test]
fn a_message_without_endings_changes_nothing() {
    let source =
        SESSION.replace("type = \"wasm\"\nmodule = \"run_tools\"", "type = \"webhook\"").replace(
            "on_failure = \"Fail\"\non_timeout = \"HandlerTimedOut\"\non_cancelled = \"Stop\"\n",
            "",
        );
    let rejection = Rejection { kind: RejectionKind::UnknownModule, message: "none".to_owned() };
    for ended in [completed(None), failed(), Outcome::Rejected(rejection), timed_out()] {
        let mut life = Life::of(&source);
        life.start();
        let run = life.entity().in_flight()[0].dispatched.clone();
        let before = life.log.len();
        life.tell(Input::HandlerEnded(Arc::new(end_of_run(&run, ended.clone()))))
            .expect("in flight");
        let (outcome, decision) = outcome(&life.log[before].event);
        let none = Decision::Superseded { action: NO_ACTION.to_owned() };
        assert_eq!((outcome, decision), (&ended, &none));
        assert_eq!((life.state(), life.log.len() - before), ("Executing", 1));
    }
}

#[test]
fn a_failure_takes_the_route_of_its_category_with_the_failure_as_parameter() {
    let route = |category: &str, action: &str| {
        format!(
            "[[integration.failure_routes]]\ncategory = \"{category}\"\naction = \"{action}\"\n"
        )
    };
    let routes = [
        ("transient", "Pause"),
        ("ambiguous", "Stop"),
        ("integrity", "Finish"),
        ("authorization", "Finish"),
    ];
    let routes: String = routes.iter().map(|(category, action)| route(category, action)).collect();
    let source = SESSION.replace("region = \"north\"\n", &routes);
    let typed = |category: &str| {
        let result = json!({ "typed_failure": { "category": category, "code": "Busy" } });
        let (kind, message) = (FailureKind::TypedFailure, String::new());
        Outcome::Failed(Failure { kind, message, result: Some(result) })
    };
    let with_list = Outcome::Failed(Failure {
        kind: FailureKind::TypedFailure,
        message: String::new(),
        result: Some(json!({ "typed_failure": {
            "category": "transient", "code": "Busy", "details": ["a list"]
        } })),
    });
    let shapeless = Outcome::Failed(Failure {
        kind: FailureKind::InvalidShape,
        message: String::new(),
        result: Some(json!({ "typed_failure": { "category": "transient" } })),
    });
    let trap = Trap { kind: TrapKind::Unreachable, message: "abort".to_owned() };
    let missing = Rejection { kind: RejectionKind::UnknownModule, message: "none".to_owned() };
    let denied = Failure { kind: FailureKind::Denied, message: "no".to_owned(), result: None };
    for (outcome, action, category) in [
        (Outcome::Failed(denied), "Finish", Some("authorization")),
        (typed("transient"), "Pause", Some("transient")),
        (with_list, "Pause", Some("transient")),
        (shapeless, "Stop", Some("ambiguous")),
        (typed("budget"), "Fail", None),
        (Outcome::Trapped(trap), "Stop", Some("ambiguous")),
        (Outcome::Rejected(missing), "Finish", Some("integrity")),
        (failed(), "Fail", None),
        (timed_out(), "HandlerTimedOut", None),
    ] {
        let mut life = Life::of(&source);
        let dispatch = life.start();
        let before = life.log.len();
        life.end(dispatch, outcome).expect("in flight");
        let (taken, params, ..) = transition(&life.log[before + 1].event);
        assert_eq!(taken, action);
        let failure = params.get("failure").map(|failure| failure["category"].clone());
        assert_eq!(failure, category.map(|category| json!(category)), "{action}");
        assert_eq!(divergences(&life.log), 0);
    }
}

#[test]
fn what_a_guest_returns_for_telemetry_alone_is_no_parameter() {
    let mut outcome = completed(Some("Finish"));
    let Outcome::Completed(completion) = &mut outcome else { panic!("a success") };
    for name in ["_gen_ai_input_messages", "_dd_llmobs_tool_spans", "_other"] {
        completion.params.insert(name.to_owned(), json!("text"));
    }
    let mut life = Life::of(SESSION);
    let dispatch = life.start();
    let before = life.log.len();
    life.end(dispatch, outcome.clone()).expect("in flight");
    let (_, params, ..) = transition(&life.log[before + 1].event);
    assert_eq!(params.keys().collect::<Vec<_>>(), ["_other", "answer"]);
    assert_eq!(self::outcome(&life.log[before].event).0, &outcome, "the record has all of it");
    assert_eq!(divergences(&life.log), 0);
}

#[test]
fn a_copy_of_an_entity_shares_its_dispatches() {
    let mut life = Life::of(SESSION);
    life.start();
    let copy = life.entity().clone();
    let [of_copy, of_it] = [&copy, life.entity()].map(|entity| &entity.in_flight()[0].dispatched);
    assert!(Arc::ptr_eq(of_copy, of_it), "it may be 2 MiB, and each decision makes a copy");
}
