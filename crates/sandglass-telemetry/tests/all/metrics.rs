//! Each event is reported under the name, kind and labels of the table.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit as MetricUnit,
};
use sandglass_model::OutcomeKind;
use sandglass_telemetry::metrics::{
    DispatchEnded, GuestKind, GuestMetric, LABEL_VALUES_MAX, Level, OVERFLOW, SCRAPE_MAX_BYTES,
    SERIES_MAX,
};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::table::{CONTRACT, Kind, TABLE, Unit};
use sandglass_telemetry::{Metrics, Prefix};

use crate::{events, scrape};

#[test]
fn every_metric_of_the_table_is_reported_as_defined() {
    let exporter = Exporter::new(Prefix::default());
    events::all_happen(&exporter.metrics());
    let families = scrape::read(&exporter.render());
    assert_eq!(families.len(), TABLE.len());
    for row in TABLE {
        let family = &families[&row.full_name(&Prefix::default())];
        let labels: BTreeSet<String> = row.labels.iter().map(|&label| label.to_owned()).collect();
        assert_eq!(family.kind, row.kind.as_str(), "{}", row.name);
        assert_eq!(family.help, row.help, "{}", row.name);
        assert_eq!(family.labels, labels, "{}", row.name);
        assert!(!family.samples.is_empty(), "{} was never reported", row.name);
    }
}

#[test]
fn values_are_in_the_unit_of_the_metric() {
    let exporter = Exporter::new(Prefix::default());
    events::all_happen(&exporter.metrics());
    let text = exporter.render();
    for line in [
        r#"temper_handler_deadline_remaining_ms{entity_type="Session",action="Ask"} 1500"#,
        r#"temper_handler_deadline_exceeded_total{entity_type="Session",action="Ask",dying_span="host_http_call"} 1"#,
        r#"temper_handler_deadline_exceeded_total{entity_type="Session",action="Ask",dying_span="guest"} 0"#,
        r#"temper_handler_kill_latency_ms_sum{entity_type="Session"} 1.25"#,
        r#"temper_handler_kill_latency_ms_bucket{entity_type="Session",le="1"} 0"#,
        r#"temper_handler_kill_latency_ms_bucket{entity_type="Session",le="2.5"} 1"#,
        "temper_wasm_epoch_tick_interval_ms_sum 10",
        r#"temper_handler_dispatches_total{entity_type="Session",action="Ask",outcome="timed_out"} 1"#,
        r#"temper_handler_dispatches_total{entity_type="Session",action="Ask",outcome="trapped"} 0"#,
        r#"temper_handler_budget_used_ratio_sum{entity_type="Session",action="Ask"} 0.5"#,
        r#"temper_handler_overrun_seconds_sum{entity_type="Session",action="Ask"} 0.001"#,
        "temper_wasm_epoch_ticker_healthy 1",
        "temper_handler_kills_overdue 2",
        "temper_journal_available 0",
        "temper_handlers_in_flight 0",
        r#"temper_session_limit_breaches_total{entity_type="Session",limit="run_timeout",breach_action="stop"} 1"#,
        r#"temper_session_limit_breaches_total{entity_type="Session",limit="host_call_timeout",breach_action="stop"} 3"#,
        r#"temper_session_run_stops_total{entity_type="Session",code="watchdog_wall_clock_exceeded",directive="wait"} 1"#,
        r#"temper_session_run_stops_total{entity_type="Session",code="completed",directive="none"} 1"#,
        r#"temper_session_stopping_seconds_sum{entity_type="Session"} 0.25"#,
        r#"temper_session_resumes_total{entity_type="Session",by="request"} 1"#,
        r#"temper_sessions{status="blocked",code="no_progress"} 0"#,
        "temper_cluster_partitions 22",
        "temper_cluster_partitions_unserved 1",
        "temper_cluster_lease_remaining_seconds 4.5",
        r#"temper_cluster_claims_total{reason="dead_owner"} 1"#,
        r#"temper_cluster_claims_total{reason="free"} 0"#,
        "temper_cluster_takeover_seconds_sum 0.075",
        "temper_cluster_move_seconds_sum 0.025",
        r#"temper_cluster_forwards_total{outcome="refused"} 1"#,
        "temper_cluster_forward_seconds_count 1",
        r#"temper_cluster_request_failures_total{code="outcome_unknown"} 1"#,
        r#"temper_cluster_request_failures_total{code="owner_moving"} 0"#,
        r#"temper_cancels_refused_total{of="session"} 1"#,
        r#"temper_cancels_refused_total{of="dispatch"} 0"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn the_contract_names_are_exported_before_any_event() {
    let exporter = Exporter::new(Prefix::default());
    let _metrics = exporter.metrics();
    let text = exporter.render();
    for row in TABLE {
        let line = format!("# TYPE {} {}", row.full_name(&Prefix::default()), row.kind.as_str());
        assert_eq!(text.lines().filter(|found| *found == line).count(), 1, "{line}");
    }
    assert!(text.contains("temper_wasm_epoch_tick_interval_ms_count 0"));
    assert!(text.contains(r#"temper_handler_dispatches_refused_total{reason="queue_full"} 0"#));
}

#[test]
fn another_prefix_changes_every_name() {
    let exporter = Exporter::new(Prefix::new("acme_actors").expect("valid"));
    events::all_happen(&exporter.metrics());
    let families = scrape::read(&exporter.render());
    assert!(families.keys().all(|name| name.starts_with("acme_actors_")));
    assert_eq!(families["acme_actors_handler_kill_latency_ms"].kind, "histogram");
    for bad in ["", "Temper", "1st", "a-b", "a b", "temper_", "é"] {
        assert!(Prefix::new(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn two_exporters_in_one_process_do_not_mix() {
    let (one, other) = (Exporter::new(Prefix::default()), Exporter::new(Prefix::default()));
    let (reporting, _silent) = (one.metrics(), other.metrics());
    reporting.transition("Session", "Ask");
    assert!(one.render().contains("entity_transitions_total{"));
    assert!(!other.render().contains("entity_transitions_total{"));
}

#[test]
fn a_label_with_too_many_values_overflows_into_one() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let many = LABEL_VALUES_MAX + 50;
    for nth in 0..many {
        metrics.default_budget_used(&format!("integration-{nth}"));
    }
    metrics.default_budget_used(&"x".repeat(1000));
    let families = scrape::read(&exporter.render());
    let samples = &families["temper_handler_default_budgets_total"].samples;
    assert_eq!(samples.len(), LABEL_VALUES_MAX + 1);
    let overflow = format!("temper_handler_default_budgets_total{{integration=\"{OVERFLOW}\"}}");
    assert_eq!(samples[&overflow], 51.0);
    assert_eq!(samples.values().sum::<f64>(), 251.0);
}

#[test]
fn a_metric_with_too_many_combinations_overflows_into_one() {
    let exporter = Exporter::with_scrape_limit(Prefix::default(), usize::MAX);
    let metrics = exporter.metrics();
    for entity in 0..40 {
        for action in 0..40 {
            metrics.transition(&format!("type-{entity}"), &format!("action-{action}"));
            let dispatches =
                metrics.dispatch_metrics(&format!("type-{entity}"), &format!("action-{action}"));
            dispatches.started(Duration::from_secs(1));
        }
    }
    let families = scrape::read(&exporter.render());
    let samples = &families["temper_entity_transitions_total"].samples;
    assert_eq!(samples.len(), SERIES_MAX + 1);
    assert_eq!(samples.values().sum::<f64>(), 1600.0);
    let gauges = &families["temper_handler_deadline_remaining_ms"].samples;
    assert_eq!(gauges.len(), SERIES_MAX + 1);
}

#[test]
fn cached_series_report_like_uncached_ones() {
    let ended = DispatchEnded {
        outcome: OutcomeKind::Completed,
        budget: Duration::from_secs(2),
        duration: Duration::from_secs(1),
        overrun: Duration::ZERO,
    };
    // With space for a series of its own, and without.
    for (room, labels, folded) in
        [(SCRAPE_MAX_BYTES, ["Session", "Ask"], 0), (0, [OVERFLOW, OVERFLOW], 16)]
    {
        let exporter = Exporter::with_scrape_limit(Prefix::default(), room);
        let metrics = exporter.metrics();
        let kept = metrics.dispatch_metrics("Session", "Ask");
        for dispatches in [&kept, &kept, &kept, &metrics.dispatch_metrics("Session", "Ask")] {
            dispatches.ended(&ended);
            dispatches.memory_peak(1);
        }
        let [entity_type, action] = labels;
        let of = format!("entity_type=\"{entity_type}\",action=\"{action}\"");
        let text = exporter.render();
        for line in [
            format!("temper_handler_duration_seconds_count{{{of}}} 4"),
            format!("temper_handler_budget_used_ratio_sum{{{of}}} 2"),
            format!("temper_metric_observations_folded_total {folded}"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}

/// A recorder that may drop a gauge after each time that it is set.
#[derive(Clone, Default)]
struct Forgetful(Arc<Mutex<Vec<Asked>>>);

/// A gauge that was asked for by this name.
type Asked = (String, Arc<AtomicU64>);

impl Recorder for Forgetful {
    fn describe_counter(&self, _: KeyName, _: Option<MetricUnit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<MetricUnit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<MetricUnit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let gauge = Arc::<AtomicU64>::default();
        self.0.lock().expect("no panic").push((key.name().to_owned(), Arc::clone(&gauge)));
        Gauge::from_arc(gauge)
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_gauge_is_requested_each_time_if_the_recorder_may_have_dropped_it() {
    let recorder = Forgetful::default();
    let metrics = Metrics::new(Arc::new(recorder.clone()), &Prefix::default());
    let held = metrics.hold(Level::InFlight);
    let holding = metrics.hold_scoped(Level::InFlight);
    drop(held);
    drop(holding);
    let gauges = recorder.0.lock().expect("no panic");
    let of_level = gauges.iter().filter(|(name, _)| name == "temper_handlers_in_flight");
    let set: Vec<f64> =
        of_level.map(|(_, bits)| f64::from_bits(bits.load(Ordering::Relaxed))).collect();
    assert_eq!(set, [0.0, 1.0, 2.0, 1.0, 0.0]);
}

#[test]
fn a_level_decreases_however_its_guard_is_dropped() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let held = metrics.hold(Level::LiveStores);
    let unwinding = metrics.clone();
    let panicked = std::thread::spawn(move || {
        let _held = unwinding.hold(Level::LiveStores);
        panic!("a holder that panics");
    });
    assert!(panicked.join().is_err());
    assert!(exporter.render().contains("temper_wasm_live_stores 1"));
    drop(held);
    assert!(exporter.render().contains("temper_wasm_live_stores 0"));
}

#[test]
fn levels_count_correctly_on_many_threads() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| drop(metrics.hold(Level::InFlight))));
        }
    });
    assert!(exporter.render().contains("temper_handlers_in_flight 0"));
}

#[test]
fn disabled_metrics_accept_every_event() {
    events::all_happen(&Metrics::disabled());
    events::all_happen(&Metrics::global(&Prefix::default()));
}

#[test]
fn names_are_unique_and_follow_the_rules_of_prometheus() {
    let names: BTreeSet<&str> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), TABLE.len());
    for contract in CONTRACT {
        assert!(names.contains(contract), "{contract}");
    }
    for row in TABLE {
        let name = row.name;
        let buckets = row.buckets;
        assert_eq!(row.kind == Kind::Histogram, !buckets.is_empty(), "{name}");
        assert!(buckets.windows(2).all(|pair| pair[0] < pair[1]), "{name}");
        assert!(!row.help.is_empty() && !row.help.ends_with('.'), "{name}");
        assert!(!row.labels.iter().any(|label| label.ends_with("_id") || *label == "le"), "{name}");
        if CONTRACT.contains(&name) {
            continue;
        }
        assert_eq!(row.kind == Kind::Counter, name.ends_with("_total"), "{name}");
        let suffix = match row.unit {
            Unit::Seconds => "_seconds",
            Unit::Bytes => "_bytes",
            Unit::Ratio => "_ratio",
            Unit::Count => "",
            Unit::Milliseconds => panic!("{name}: only the contract has milliseconds"),
        };
        assert!(name.ends_with(suffix), "{name}");
    }
}

fn observed<'a>(name: &'a str, value: f64, labels: &'a [(String, String)]) -> GuestMetric<'a> {
    GuestMetric {
        tenant: "a",
        integration: "run_tools",
        name,
        kind: GuestKind::Counter,
        value,
        labels,
    }
}

#[test]
fn metrics_of_guests_have_a_name_space_of_their_own() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let labels = [("Tool".to_owned(), "grep".to_owned()), ("le".to_owned(), "1".to_owned())];
    metrics.guest_metric(&observed("tool.calls", 2.0, &labels));
    metrics.guest_metric(&observed("temper_tool.calls", 1.0, &labels));
    metrics.guest_metric(&GuestMetric { kind: GuestKind::Gauge, ..observed("queue", 2.5, &[]) });
    let histogram = GuestMetric { kind: GuestKind::Histogram, ..observed("phase_ms", 7.0, &[]) };
    metrics.guest_metric(&histogram);
    // A name has the kind that it had first, also where another integration asks.
    metrics.guest_metric(&GuestMetric {
        integration: "other",
        ..observed("phase_ms_total", 1.0, &[])
    });
    metrics.guest_metric(&GuestMetric { kind: GuestKind::Gauge, integration: "x", ..histogram });
    let text = exporter.render();
    for line in [
        r#"temper_guest_tool_calls_total{tool="grep",integration="run_tools"} 3"#,
        "# HELP temper_guest_queue Measured by the guests of the integration",
        r#"temper_guest_queue{integration="run_tools"} 2.5"#,
        r#"temper_guest_phase_ms_bucket{integration="run_tools",le="10"} 1"#,
        r#"temper_handler_telemetry_dropped_total{integration="run_tools",what="label"} 2"#,
        r#"temper_handler_telemetry_dropped_total{integration="x",what="metric"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_guests_counter_saturates() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    for value in [5.0, 1e300, 7.0] {
        metrics.guest_metric(&observed("far", value, &[]));
    }
    let end = format!("temper_guest_far_total{{integration=\"run_tools\"}} {}", u64::MAX);
    let text = exporter.render();
    assert!(text.lines().any(|line| line == end), "{text}");
}

#[test]
fn a_name_that_collides_with_another_is_dropped_and_counted() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let observe = |kind, name| {
        metrics.guest_metric(&GuestMetric { kind, ..observed(name, 1.0, &[]) });
    };
    for (kind, name) in [
        (GuestKind::Histogram, "b"),
        (GuestKind::Counter, "b"),
        (GuestKind::Gauge, "b_bucket"),
        (GuestKind::Gauge, "h_sum"),
        (GuestKind::Histogram, "h"),
        (GuestKind::Counter, "c"),
        (GuestKind::Counter, "c_total"),
        (GuestKind::Counter, "c.total"),
    ] {
        observe(kind, name);
    }
    let text = exporter.render();
    for line in [
        r#"temper_guest_b_count{integration="run_tools"} 1"#,
        r#"temper_guest_h_sum{integration="run_tools"} 1"#,
        r#"temper_guest_c_total{integration="run_tools"} 1"#,
        r#"temper_handler_telemetry_dropped_total{integration="run_tools",what="metric"} 5"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_flood_of_names_or_values_of_one_integration_leaves_series_for_others() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    for nth in 0..2000 {
        let labels = [("id".to_owned(), format!("session-{nth}"))];
        metrics.guest_metric(&observed("asked", 1.0, &labels));
        metrics.guest_metric(&observed(&format!("name_{nth}"), 1.0, &[]));
    }
    let calm = GuestMetric { integration: "calm", ..observed("asked", 1.0, &[]) };
    metrics.guest_metric(&calm);
    let families = scrape::read(&exporter.render());
    let guests: Vec<_> =
        families.iter().filter(|(name, _)| name.starts_with("temper_guest_")).collect();
    let series: usize = guests.iter().map(|(_, family)| family.samples.len()).sum();
    assert_eq!(series, 501);
    let asked = &families["temper_guest_asked_total"].samples;
    assert_eq!(asked.len(), 22, "20 values, {OVERFLOW}, and the other integration");
    assert_eq!(asked.values().sum::<f64>(), 2001.0);
    let dropped = &families["temper_handler_telemetry_dropped_total"].samples;
    assert_eq!(dropped.values().sum::<f64>(), 2000.0 - (500.0 - 21.0));
}

#[test]
fn a_flood_of_names_of_one_tenant_leaves_series_for_others_in_the_same_integrations() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let flood = |tenant: &str, integration: &str, first: usize| {
        for nth in first..first + 2000 {
            let name = format!("name_{nth}");
            let metric = observed(&name, 1.0, &[]);
            metrics.guest_metric(&GuestMetric { tenant, integration, ..metric });
        }
        let families = scrape::read(&exporter.render());
        families.keys().filter(|name| name.starts_with("temper_guest_")).count()
    };
    assert_eq!(flood("a", "run_tools", 0), 500);
    assert_eq!(flood("b", "run_tools", 10_000), 500 + 250, "half of what is left");
    assert_eq!(flood("a", "second", 20_000), 500 + 250 + 500);
    for nth in 0..20 {
        flood("a", &format!("integration-{nth}"), 30_000 + 2000 * nth);
    }
    let by_a = (5000 - 250) / 2;
    assert_eq!(flood("a", "last", 100_000), by_a + 250);
    assert_eq!(flood("c", "last", 110_000), by_a + 250 + 500);
}

#[test]
fn a_million_labels_of_a_guest_are_bounded_and_counted() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let labels: Vec<(String, String)> =
        (0..1_000_000).map(|nth| (format!("label_{nth}"), "x".to_owned())).collect();
    metrics.guest_metric(&observed("asked", 1.0, &labels));
    for nth in 0..20_000 {
        let labels = [(format!("label_{nth}"), format!("value-{nth}"))];
        metrics.guest_metric(&observed("asked", 1.0, &labels));
    }
    let families = scrape::read(&exporter.render());
    let asked = &families["temper_guest_asked_total"];
    assert_eq!(asked.samples.len(), 500);
    let dropped = &families["temper_handler_telemetry_dropped_total"].samples;
    let count = |what| {
        dropped[&format!(
            "temper_handler_telemetry_dropped_total{{integration=\"run_tools\",what=\"{what}\"}}"
        )]
    };
    assert_eq!(count("label"), 1_000_000.0 - 4.0);
    assert_eq!(count("metric"), 20_000.0 - 499.0);
}

#[test]
fn a_scrape_contains_no_control_characters() {
    let exporter = Exporter::new(Prefix::default());
    let metrics = exporter.metrics();
    let foreign = "\u{1b}]0;x\u{7}\u{9b}31m\r\u{202e}\n";
    let labels = [(foreign.to_owned(), foreign.to_owned()), ("a".to_owned(), foreign.to_owned())];
    metrics.guest_metric(&GuestMetric { integration: foreign, ..observed("asked", 1.0, &labels) });
    metrics.guest_metric(&observed(&format!("{foreign}b"), 1.0, &labels));
    metrics.transition(foreign, foreign);
    metrics.host_call(foreign, Duration::from_secs(1));
    let text = exporter.render();
    let drives = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(drives), "{text:?}");
    assert!(text.contains(r#"temper_guest_asked_total{a="?]0;x??31m???","#), "{text}");
    // Read back, each line is one sample.
    assert_eq!(scrape::read(&text)["temper_entity_transitions_total"].samples.len(), 1);
}
