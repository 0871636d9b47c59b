//! What is measured and traced: the killed handler and its transition in one trace.

use sandglass_liveness::session::LimitSettings;
use sandglass_model::{Event, StopCause};
use sandglass_runtime::{SessionResume, SessionStop};
use sandglass_telemetry::{Prefix, Telemetry, Tracer, prometheus::Exporter};

use crate::world::{Act, SESSION, World, completed, one, pass, pass_ms};

#[tokio::test(start_paused = true)]
async fn the_transition_of_a_killed_handler_is_a_child_of_its_span() {
    let (tracer, captured) = Tracer::capturing();
    let telemetry = Telemetry { tracer, ..Telemetry::disabled() };
    let world = World::reporting(SESSION, &[Act::Hang], telemetry).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.until("TimedOut").await;
    let killed = world.script.started.lock().expect("no panic")[0].clone();
    let spans = captured.spans();
    let transitions: Vec<_> =
        spans.iter().filter(|span| span.name == "sandglass.transition").collect();
    let [request, timed_out] = &transitions[..] else { panic!("{spans:#?}") };
    assert_eq!(killed.parent.map(|parent| parent.span_id), Some(request.span_id));
    assert_eq!(timed_out.attributes["sandglass.action"], "HandlerTimedOut");
    assert_eq!(timed_out.trace_id, killed.dispatched.trace.trace_id);
    assert_eq!(timed_out.parent, Some(killed.dispatched.trace.span_id));
    assert_ne!(timed_out.span_id, killed.dispatched.trace.span_id);
    let records = world.records().await;
    let Some(Event::Transition { trace, .. }) = records.last().map(|record| &record.event) else {
        panic!("{records:?}")
    };
    assert_eq!(*trace, killed.dispatched.trace, "the record names the killed span");
}

#[tokio::test(start_paused = true)]
async fn transitions_timers_and_appends_are_counted() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let world = World::reporting(SESSION, &[], telemetry).await;
    world.send("Wait").await.expect("taken");
    world.until("Abandoned").await;
    world.journal.set_failing(Some("disk full".to_owned()));
    let other = world.runtime.create(crate::world::two()).await;
    assert!(other.is_err(), "{other:?}");
    let text = exporter.render();
    for expected in [
        r#"temper_entity_transitions_total{entity_type="Session",action="Wait"} 1"#,
        r#"temper_entity_transitions_total{entity_type="Session",action="Abandon"} 1"#,
        r#"temper_entity_state_timeouts_total{entity_type="Session",state="Waiting"} 1"#,
        "temper_journal_append_failures_total 1",
        "temper_entities_loaded 0",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_scrape_contains_the_counters_of_a_spec_and_its_journal() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let undeclared = SESSION.replacen("deadline = ", "# deadline = ", 1);
    assert_ne!(undeclared, SESSION, "the session declares a deadline");
    let _world = World::reporting(&undeclared, &[], telemetry).await;
    let text = exporter.render();
    for expected in [
        "temper_journal_available 1",
        r#"temper_handler_default_budgets_total{integration="run_tools"} 0"#,
        r#"temper_entity_state_timeouts_total{entity_type="Session",state="Waiting"} 0"#,
        r#"temper_handler_dispatches_total{entity_type="Session",action="ProcessToolCalls",outcome="timed_out"} 0"#,
        r#"temper_handler_deadline_exceeded_total{entity_type="Session",action="ProcessToolCalls",dying_span="guest"} 0"#,
        r#"temper_handler_soft_deadlines_total{entity_type="Session",action="ProcessToolCalls"} 0"#,
        r#"temper_handler_outcomes_superseded_total{entity_type="Session",action="ProcessToolCalls"} 0"#,
        r#"temper_entity_transitions_total{entity_type="Session",action="Wait"} 0"#,
        r#"temper_entity_signals_dropped_total{entity_type="Session"} 0"#,
    ] {
        assert!(text.lines().any(|line| line == expected), "{expected} in {text}");
    }
    let waits = r#"temper_handler_dispatches_total{entity_type="Session",action="Wait""#;
    assert!(!text.contains(waits), "it starts no handler: {text}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_its_host_loses_is_counted_once_as_interrupted() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let world = World::reporting(SESSION, &[Act::Panic], telemetry).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.until("Waiting").await;
    let text = exporter.render();
    let counted = |line: &&str| line.contains("dispatches_total{") && !line.ends_with(" 0");
    let lines: Vec<&str> = text.lines().filter(counted).collect();
    let [line] = lines[..] else { panic!("{text}") };
    assert!(line.contains(r#"outcome="interrupted""#) && line.ends_with(" 1"), "{line}");
}

/// The value of the series that is written so.
#[track_caller]
fn value(exporter: &Exporter, series: &str) -> f64 {
    let text = exporter.render();
    let found = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {series} in {text}")).parse().expect("a number")
}

/// How many sessions are running, silent, stopping and blocked.
fn by_status(exporter: &Exporter) -> [f64; 4] {
    let of = [
        ("running", "none"),
        ("silent", "none"),
        ("stopping", "none"),
        ("blocked", "watchdog_wall_clock_exceeded"),
    ];
    of.map(|(status, code)| {
        value(exporter, &format!("temper_sessions{{status=\"{status}\",code=\"{code}\"}}"))
    })
}

fn reported() -> (Exporter, Telemetry) {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    (exporter, telemetry)
}

const BREACHES: &str = "temper_session_limit_breaches_total{entity_type=\"Session\"";
const STOPS: &str = "temper_session_run_stops_total{entity_type=\"Session\"";
const RESUMES: &str = "temper_session_resumes_total{entity_type=\"Session\"";

#[tokio::test(start_paused = true)]
async fn sessions_are_counted_by_status_and_each_of_their_records_once() {
    let (exporter, telemetry) = reported();
    let limits = "run_timeout = \"1000s\"\ninactivity_warn = \"600s\"\nabort_timeout = \"10s\"";
    let spec = format!("{SESSION}\n[limits]\n{limits}\n");
    let acts = [Act::Hang, Act::Answer(5, completed())];
    let world = World::reporting(&spec, &acts, telemetry).await;
    let breaches = [
        format!("{BREACHES},limit=\"inactivity_warn\",breach_action=\"record\"}}"),
        format!("{BREACHES},limit=\"run_timeout\",breach_action=\"stop\"}}"),
        format!("{BREACHES},limit=\"abort_timeout\",breach_action=\"stop\"}}"),
    ];
    let (watchdog, completed) = (
        format!("{STOPS},code=\"watchdog_wall_clock_exceeded\",directive=\"wait\"}}"),
        format!("{STOPS},code=\"completed\",directive=\"none\"}}"),
    );
    let resumed = format!("{RESUMES},by=\"request\"}}");
    let never = [
        format!("{BREACHES},limit=\"host_call_timeout\",breach_action=\"stop\"}}"),
        format!("{BREACHES},limit=\"schedule_to_start_timeout\",breach_action=\"stop\"}}"),
        format!("{STOPS},code=\"parent_stopped\",directive=\"cancel\"}}"),
    ];
    for series in breaches.iter().chain(&never).chain([&watchdog, &completed, &resumed]) {
        assert_eq!(value(&exporter, series), 0.0, "{series}");
    }
    assert!(!exporter.render().contains("by=\"retry\""), "its spec lets nothing be retried");

    pass(200).await;
    world.send("ProcessToolCalls").await.expect("taken");
    assert_eq!(by_status(&exporter), [1.0, 0.0, 0.0, 0.0]);
    pass(601).await;
    assert_eq!(by_status(&exporter), [0.0, 1.0, 0.0, 0.0]);
    pass_ms(199_002).await;
    assert_eq!(by_status(&exporter), [0.0, 0.0, 1.0, 0.0]);
    pass_ms(10_002).await;
    assert_eq!(by_status(&exporter), [0.0, 0.0, 0.0, 1.0]);
    for series in breaches.iter().chain([&watchdog]) {
        assert_eq!(value(&exporter, series), 1.0, "{series}");
    }
    let of = "{entity_type=\"Session\"}";
    assert_eq!(value(&exporter, &format!("temper_session_stopping_seconds_count{of}")), 1.0);
    let took = value(&exporter, &format!("temper_session_stopping_seconds_sum{of}"));
    assert!((10.0..11.0).contains(&took), "{took}");
    pass(90_000).await;
    assert_eq!(value(&exporter, "temper_entities_loaded"), 0.0, "it sleeps");
    assert_eq!(by_status(&exporter), [0.0, 0.0, 0.0, 1.0]);

    let (again, telemetry) = reported();
    let world = world.restart_reporting(10, telemetry).await;
    assert_eq!(by_status(&again), [0.0, 0.0, 0.0, 1.0]);
    for series in breaches.iter().chain([&watchdog]) {
        assert_eq!(value(&again, series), 0.0, "{series} was counted before");
    }
    let (by, reason) = ("ann".to_owned(), String::new());
    let limits = LimitSettings::default();
    let resume = SessionResume { by, reason, expected_run: None, limits };
    world.runtime.resume_session(&one(), resume).await.expect("blocked");
    assert_eq!(by_status(&again), [1.0, 0.0, 0.0, 0.0]);
    world.until("Done").await;
    assert_eq!((value(&again, &resumed), value(&again, &completed)), (1.0, 1.0));
    assert_eq!(by_status(&again), [0.0; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_counted_and_so_is_a_stop_that_is_recorded_late() {
    let (exporter, telemetry) = reported();
    let limits = "run_timeout = \"1000s\"\nretry = { run_timeout = 1 }";
    let spec = format!("{SESSION}\n[limits]\n{limits}\n");
    let world = World::reporting(&spec, &[Act::Linger(3), Act::Linger(3)], telemetry).await;
    let stopped = |code: &str, directive: &str| {
        value(&exporter, &format!("{STOPS},code=\"{code}\",directive=\"{directive}\"}}"))
    };
    let (watchdog, cancelled) = ("watchdog_wall_clock_exceeded", "operator_cancelled");
    assert_eq!((stopped(watchdog, "retry"), stopped(watchdog, "wait")), (0.0, 0.0));
    pass(200).await;
    world.send("ProcessToolCalls").await.expect("taken");
    pass(850).await;
    assert_eq!(value(&exporter, &format!("{RESUMES},by=\"retry\"}}")), 1.0);
    assert_eq!((stopped(watchdog, "retry"), stopped(watchdog, "wait")), (1.0, 0.0));
    assert_eq!(by_status(&exporter), [1.0, 0.0, 0.0, 0.0]);
    let took = "temper_session_stopping_seconds_sum{entity_type=\"Session\"}";
    let before = value(&exporter, took);

    world.journal.set_failing(Some("disk full".to_owned()));
    let (by, reason) = ("ann".to_owned(), String::new());
    let cause = StopCause::Operator { by, reason };
    let stop = SessionStop { run_seq: None, cause };
    let answer = world.runtime.stop_session(&one(), stop).await;
    assert!(!answer.expect("it runs").is_recorded);
    pass(60).await;
    assert_eq!(stopped(cancelled, "cancel"), 0.0);
    world.journal.set_failing(None);
    world.until("Stopped").await;
    assert_eq!(stopped(cancelled, "cancel"), 1.0);
    let took = value(&exporter, took) - before;
    assert!(took >= 60.0, "it began long before that was recorded: {took}");
}

#[tokio::test(start_paused = true)]
async fn a_record_of_many_breaches_counts_as_many() {
    let (exporter, telemetry) = reported();
    let spec = format!("{SESSION}\n[limits]\n");
    let world = World::reporting(&spec, &[Act::SlowCalls(7)], telemetry).await;
    world.send("ProcessToolCalls").await.expect("taken");
    world.until("Done").await;
    let series = format!("{BREACHES},limit=\"host_call_timeout\",breach_action=\"stop\"}}");
    assert_eq!(value(&exporter, &series), 7.0);
}
