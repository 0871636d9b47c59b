//! Every event that a metric reports, once.

use std::time::Duration;

use sandglass_model::OutcomeKind;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{
    CompiledCode, DispatchEnded, Health, Level, Refusal, SpansDropped, Told,
};

/// Reports every event once, with different values where values can differ.
pub(crate) fn all_happen(metrics: &Metrics) {
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
    let dispatches = metrics.of_dispatches("Session", "Ask");
    dispatches.queue_wait(Duration::from_millis(3));
    dispatches.started(Duration::from_millis(1500));
    metrics.host_call("host_http_call", second);
    dispatches.deadline_exceeded("host_http_call");
    dispatches.kill_latency(Duration::from_micros(1250));
    for outcome in [OutcomeKind::TimedOut, OutcomeKind::Completed] {
        dispatches.ended(&DispatchEnded {
            outcome,
            budget: 2 * second,
            duration: second,
            overrun: Duration::from_millis(1),
        });
    }
    dispatches.memory_peak(1 << 20);
    dispatches.soft_deadline_passed();
    metrics.host_call_timed_out("host_http_call");
    metrics.telemetry_dropped("run_tools", Told::Metric);
    metrics.spans_dropped(SpansDropped::QueueFull, 3);
    metrics.dispatch_interrupted("Session", "Ask");
    metrics.dispatch_refused(Refusal::QueueFull);
    metrics.outcome_superseded("Session", "Ask");
    metrics.tick_interval(Duration::from_millis(10));
    metrics.tick_lateness(Duration::from_micros(80));
    metrics.ticker_health(Health::Healthy);
    metrics.pool(3, 100);
    metrics.module_compiled(second);
    metrics.compiled_code(CompiledCode::Hit);
    metrics.journal_append(Duration::from_millis(1));
    metrics.journal_append_failed();
    metrics.journal_health(Health::Unhealthy);
    metrics.transition("Session", "Ask");
    metrics.state_timeout("Session", "Executing");
    metrics.signal_dropped("Session");
}
