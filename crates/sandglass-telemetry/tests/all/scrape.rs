//! A scrape in Prometheus's text format, read back; and one in which every event
//! has happened.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sandglass_model::OutcomeKind;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{DispatchEnded, Health, Level, Refusal};

/// What a scrape says of one metric.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// The names of the labels that its samples have, `le` left out.
    pub(crate) labels: BTreeSet<String>,
    /// Samples by what is written before the value.
    pub(crate) samples: BTreeMap<String, f64>,
}

/// Reads a scrape, by metric.
pub(crate) fn read(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help line has a text");
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type line has a kind");
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| {
                    name.strip_suffix(suffix).filter(|it| families.contains_key(*it))
                })
                .unwrap_or(name);
            let family = families.get_mut(base).expect("a sample follows its type");
            family.labels.extend(
                labels
                    .split(',')
                    .filter_map(|label| Some(label.split_once('=')?.0.to_owned()))
                    .filter(|label| label != "le"),
            );
            family.samples.insert(series.to_owned(), value.parse().expect("a number"));
        }
    }
    families
}

/// Reports every event once, with different values where values can differ.
pub(crate) fn everything_happens(metrics: &Metrics) {
    let second = Duration::from_secs(1);
    for level in [
        Level::Queued,
        Level::InFlight,
        Level::LiveDispatches,
        Level::LiveStores,
        Level::LingeringCalls,
        Level::Entities,
    ] {
        drop(metrics.hold(level));
    }
    metrics.expect_dispatches("Session", "Ask", &["host_http_call"]);
    metrics.default_budget_used("run_tools");
    metrics.queue_wait("Session", Duration::from_millis(3));
    metrics.dispatch_started("Session", "Ask", Duration::from_millis(1500));
    metrics.host_call("host_http_call", second);
    metrics.deadline_exceeded("Session", "Ask", "host_http_call");
    metrics.kill_latency("Session", Duration::from_micros(1250));
    for outcome in [OutcomeKind::TimedOut, OutcomeKind::Completed] {
        metrics.dispatch_ended(&DispatchEnded {
            entity_type: "Session",
            action: "Ask",
            outcome,
            budget: 2 * second,
            duration: second,
            overrun: Duration::from_millis(1),
        });
    }
    metrics.memory_peak("Session", 1 << 20);
    metrics.dispatch_interrupted("Session", "Ask");
    metrics.dispatch_refused(Refusal::QueueFull);
    metrics.outcome_superseded("Session", "Ask");
    metrics.tick_interval(Duration::from_millis(10));
    metrics.tick_lateness(Duration::from_micros(80));
    metrics.ticker_health(Health::Healthy);
    metrics.pool(3, 100);
    metrics.module_compiled(second);
    metrics.journal_append(Duration::from_millis(1));
    metrics.journal_append_failed();
    metrics.journal_health(Health::Unhealthy);
    metrics.transition("Session", "Ask");
    metrics.state_timeout("Session", "Executing");
    metrics.signal_dropped("Session");
}
