//! What is measured and traced: the killed handler and its transition in one trace.

use sandglass_model::Event;
use sandglass_telemetry::{Prefix, Telemetry, Tracer, prometheus::Exporter};

use crate::world::{Act, SESSION, World};

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
async fn what_a_spec_can_count_and_its_journal_are_in_the_first_scrape() {
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
async fn a_run_that_its_host_loses_is_counted_once_as_interrupted() {
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
