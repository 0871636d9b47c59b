//! Every event that a metric reports, once.

use std::time::Duration;

use sandglass_model::{Action, Directive, Limit, OutcomeKind, SpawnObstacle};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{
    CancelTarget, ClaimReason, CompiledCode, DispatchEnded, DroppedTelemetry, ForwardOutcome,
    Health, Level, OpenwopRefusal, Refusal, RequestFailure, ResumedBy, SpansDropped,
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
        Level::SessionsRunning,
        Level::SessionsSilent,
        Level::SessionsStopping,
        Level::BlockedByWatchdog,
        Level::BlockedWithoutProgress,
        Level::BlockedByShutdown,
        Level::BlockedOtherwise,
    ] {
        drop(metrics.hold(level));
    }
    metrics.expect_dispatches("Session", "Ask", &["host_http_call"]);
    metrics.default_budget_used("run_tools");
    let dispatches = metrics.dispatch_metrics("Session", "Ask");
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
    metrics.host_call_parked("host_http_call", Duration::from_millis(1500));
    metrics.host_call_timed_out("host_http_call");
    metrics.telemetry_dropped("run_tools", DroppedTelemetry::Metric);
    metrics.spans_dropped(SpansDropped::QueueFull, 3);
    metrics.dispatch_interrupted("Session", "Ask");
    metrics.dispatch_refused(Refusal::QueueFull);
    metrics.spawn_refused(SpawnObstacle::TooMany);
    metrics.outcome_superseded("Session", "Ask");
    metrics.tick_interval(Duration::from_millis(10));
    metrics.tick_lateness(Duration::from_micros(80));
    metrics.ticker_health(Health::Healthy);
    metrics.kills_overdue(2);
    metrics.pool(3, 100);
    metrics.module_compiled(second);
    metrics.compiled_code(CompiledCode::Hit);
    metrics.journal_append(Duration::from_millis(1));
    metrics.journal_append_failed();
    metrics.journal_checked(7);
    metrics.journal_health(Health::Unhealthy);
    metrics.transition("Session", "Ask");
    metrics.state_timeout("Session", "Executing");
    metrics.signal_dropped("Session");
    metrics.limit_breached("Session", Limit::RunTimeout, Action::Stop, 1);
    metrics.limit_breached("Session", Limit::HostCallTimeout, Action::Stop, 3);
    metrics.run_stopped("Session", "watchdog_wall_clock_exceeded", Some(Directive::Wait));
    metrics.run_stopped("Session", "completed", None);
    metrics.run_stopped_within("Session", Duration::from_millis(250));
    metrics.session_resumed("Session", ResumedBy::Request);
    metrics.cancel_refused(CancelTarget::Session);
    metrics.cluster_hosts(3);
    metrics.cluster_partitions(22, 1);
    metrics.cluster_lease(Duration::from_millis(4500));
    metrics.partition_claimed(ClaimReason::DeadOwner);
    metrics.partition_taken_over(Duration::from_millis(75));
    metrics.partition_given_away(Duration::from_millis(25));
    metrics.host_declared_dead();
    metrics.host_rejoined();
    metrics.request_forwarded(ForwardOutcome::Ok, Duration::from_millis(2));
    metrics.request_forwarded(ForwardOutcome::Refused, Duration::from_millis(1));
    metrics.request_failed_in_cluster(RequestFailure::OutcomeUnknown);
    metrics.openwop_readers(2);
    metrics.openwop_reader_dropped();
    metrics.openwop_refused(OpenwopRefusal::Runs);
}
