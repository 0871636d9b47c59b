//! How large a scrape gets: by what a host does it stays what it was, and by what its
//! specs and guests are called it stays within its bound.

use std::time::Duration;

use sandglass_model::OutcomeKind;
use sandglass_telemetry::metrics::{
    DispatchEnded, DroppedTelemetry, ExpectedEvents, SCRAPE_MAX_BYTES,
};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::table::TABLE;
use sandglass_telemetry::{Metrics, Prefix};

use crate::scrape;

/// Reports all that can come of one dispatch.
fn dispatch(
    metrics: &Metrics,
    nth: u32,
    names @ [entity_type, action, dying_span, integration]: [&str; 4],
) {
    let took = Duration::from_micros(u64::from(nth));
    ended(metrics, nth, names);
    let dispatches = metrics.dispatch_metrics(entity_type, action);
    dispatches.queue_wait(took);
    dispatches.started(Duration::from_millis(u64::from(nth)));
    metrics.host_call(dying_span, took);
    dispatches.memory_peak(u64::from(nth) << 10);
    metrics.transition(entity_type, action);
    metrics.telemetry_dropped(integration, DroppedTelemetry::Span);
    metrics.default_budget_used(integration);
    dispatches.soft_deadline_passed();
    metrics.outcome_superseded(entity_type, action);
    metrics.state_timeout(entity_type, action);
    metrics.signal_dropped(entity_type);
    metrics.host_call_timed_out(dying_span);
    metrics.tick_interval(took);
    metrics.journal_append(took);
}

/// Reports how a dispatch ended: every other one at its deadline.
fn ended(metrics: &Metrics, nth: u32, [entity_type, action, dying_span, _]: [&str; 4]) {
    let took = Duration::from_micros(u64::from(nth));
    let dispatches = metrics.dispatch_metrics(entity_type, action);
    let outcome = if nth.is_multiple_of(2) {
        dispatches.deadline_exceeded(dying_span);
        dispatches.kill_latency(took);
        OutcomeKind::TimedOut
    } else {
        OutcomeKind::Completed
    };
    dispatches.ended(&DispatchEnded {
        outcome,
        budget: Duration::from_secs(1),
        duration: took,
        overrun: took,
    });
}

/// What became of a metric's observations: how many there are, and how many of them are
/// under the overflow value.
fn counted(text: &str, name: &str) -> (f64, f64) {
    let families = scrape::read(text);
    let samples = &families[name].samples;
    let folded = samples.iter().filter(|(series, _)| series.contains("\"other\""));
    (samples.values().sum(), folded.map(|(_, count)| *count).sum())
}

#[test]
fn a_million_dispatches_of_a_dozen_actions_have_their_labels_in_less_than_200_kib() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let types = ["Session", "Order", "Shipment", "Invoice"];
    let actions = ["ProcessToolCalls", "ChargeCustomer", "NotifyPartner"];
    let spans = ["guest", "host_http_call", "wasi_snapshot_preview1.poll_oneoff"];
    for entity_type in types {
        for action in actions {
            metrics.expect_dispatches(entity_type, action, &spans[1..]);
        }
    }
    let names = |at: usize| [types[at % 4], actions[at / 4 % 3], spans[at / 12 % 3], "run_tools"];
    for nth in 0..1_000_u32 {
        dispatch(&metrics, nth, names(nth as usize));
    }
    for nth in 1_000..1_000_000_u32 {
        ended(&metrics, nth, names(nth as usize));
        if nth % 10_000 == 0 {
            exporter.upkeep();
        }
    }
    let text = exporter.render();
    assert!(text.len() < SCRAPE_MAX_BYTES, "{} bytes", text.len());
    assert!(text.lines().any(|line| line == "temper_metric_observations_folded_total 0"));
    assert_eq!(counted(&text, "temper_handler_dispatches_total"), (1_000_000.0, 0.0));
}

#[test]
fn ten_thousand_hostile_names_of_each_kind_stay_under_200_kib_and_nothing_is_lost() {
    for filler in ["x", "é", "\"", "\n"] {
        let exporter = Exporter::new(Prefix::default());
        let metrics = exporter.metrics();
        for nth in 0..20_000_u32 {
            let name = |kind: &str| format!("{kind}-{}-{}", nth % 10_000, filler.repeat(100));
            let names = ["type", "action", "span", "integration"].map(name);
            dispatch(&metrics, nth, names.each_ref().map(String::as_str));
        }
        let text = exporter.render();
        assert!(text.len() < SCRAPE_MAX_BYTES, "{} bytes", text.len());
        let (all, folded) = counted(&text, "temper_entity_transitions_total");
        assert!(all == 20_000.0 && folded > 19_000.0, "{folded} of {all}");
        let (all, folded) = counted(&text, "temper_handler_deadline_exceeded_total");
        assert!(all == 10_000.0 && folded < all, "{folded} of {all}");
        let (folded, _) = counted(&text, "temper_metric_observations_folded_total");
        assert!(folded > 100_000.0, "{folded}");
        for row in TABLE {
            let line = format!("# TYPE {} ", row.full_name(&Prefix::default()));
            assert_eq!(text.matches(&line).count(), 1, "{line}");
        }
    }
}

#[test]
fn expected_events_leave_half_of_the_scrape_to_actual_ones() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let types: Vec<String> = (0..100).map(|nth| format!("Type{nth}")).collect();
    for entity_type in &types {
        let actions = vec!["Ask", "Answer", "Stop"];
        metrics.expect(&ExpectedEvents {
            entity_type,
            dispatching: actions,
            ..ExpectedEvents::default()
        });
    }
    let expected = exporter.render();
    assert!(expected.len() < SCRAPE_MAX_BYTES / 2, "{} bytes", expected.len());
    assert!(expected.contains("entity_type=\"Type0\""), "{expected}");
    // The last type has no zeros, and still a series of its own.
    assert!(!expected.contains("entity_type=\"Type99\""), "{expected}");
    metrics.dispatch_metrics("Type99", "Ask").deadline_exceeded("guest");
    let name = "temper_handler_deadline_exceeded_total";
    assert_eq!(counted(&exporter.render(), name), (1.0, 0.0));
}

#[test]
fn a_larger_scrape_has_more_labels_and_the_smallest_has_every_metric() {
    let size_in = |room| {
        let exporter = Exporter::with_scrape_limit(Prefix::default(), room);
        let metrics = exporter.metrics();
        for nth in 0..100_u32 {
            let names = ["type", "action", "span", "of"].map(|kind| format!("{kind}-{nth}"));
            dispatch(&metrics, nth, names.each_ref().map(String::as_str));
        }
        exporter.render().len()
    };
    let [none, some, more] = [0, SCRAPE_MAX_BYTES, 4 * SCRAPE_MAX_BYTES].map(size_in);
    assert!(none < 32 * 1024 && none < some, "{none} bytes");
    assert!(some < SCRAPE_MAX_BYTES && more > 2 * SCRAPE_MAX_BYTES, "{some}, {more} bytes");
    assert!(more < 4 * SCRAPE_MAX_BYTES, "{more} bytes");
}
