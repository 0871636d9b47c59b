//! The origin of one run's telemetry: its tenant and integration, its secrets, its rates, and the
//! counts of what was dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sandglass_model::TelemetryDropped;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::DroppedTelemetry;

use super::tenant_rate::Rates;
use crate::covered;
use crate::secret::Redactor;

/// What the log, the spans and the metrics of one run have in common.
#[derive(Debug)]
pub struct RunTelemetry {
    /// The tenant of the dispatch.
    pub tenant: Arc<str>,
    /// The name of the integration.
    pub integration: Arc<str>,
    /// Removes secrets from text for people.
    pub redactor: Redactor,
    /// Where telemetry is counted.
    pub metrics: Metrics,
    pub(super) rates: Arc<Rates>,
    /// How many lines it has logged, including dropped ones.
    pub(super) lines: AtomicU32,
    /// Whether a line was dropped because the tenant exceeded its rate.
    pub(super) is_over_rate: AtomicBool,
    dropped: Dropped,
}

// Shared by the telemetry of one run. `Guest` measures the redactor.
covered!(RunTelemetry: tenant, integration, redactor, metrics, rates, lines, is_over_rate, dropped);

/// Counts of what exceeded a bound of the run.
#[derive(Debug, Default)]
struct Dropped {
    spans: AtomicU64,
    span_events: AtomicU64,
    attributes: AtomicU64,
    metrics: AtomicU64,
    log_lines: AtomicU64,
}

impl RunTelemetry {
    /// Sends telemetry of the tenant and the integration `whose`.
    pub fn new(
        (tenant, integration): (Arc<str>, Arc<str>),
        redactor: Redactor,
        metrics: Metrics,
        rates: Arc<Rates>,
    ) -> Self {
        Self {
            tenant,
            integration,
            redactor,
            metrics,
            rates,
            lines: AtomicU32::new(0),
            is_over_rate: AtomicBool::new(false),
            dropped: Dropped::default(),
        }
    }

    /// The telemetry of the integration `x`; its clock stands still.
    #[cfg(test)]
    pub fn of_tests(redactor: Redactor, metrics: Metrics) -> Self {
        use sandglass_model::{Clock, Monotonic, WallTime};

        #[derive(Debug)]
        struct StoppedClock;
        impl Clock for StoppedClock {
            fn now(&self) -> Monotonic {
                Monotonic::from_nanos(1)
            }
            fn wall(&self) -> WallTime {
                WallTime::default()
            }
        }
        let clock: Arc<dyn Clock> = Arc::new(StoppedClock);
        Self::new(("a".into(), "x".into()), redactor, metrics, Arc::new(Rates::new(&clock)))
    }

    /// Counts something that is dropped because it exceeded a bound.
    pub(super) fn drop_one(&self, what: DroppedTelemetry) {
        self.metrics.telemetry_dropped(&self.integration, what);
        let Dropped { spans, span_events, attributes, metrics, log_lines } = &self.dropped;
        let count = match what {
            DroppedTelemetry::Span => spans,
            DroppedTelemetry::SpanEvent => span_events,
            DroppedTelemetry::Attribute => attributes,
            DroppedTelemetry::Metric => metrics,
            DroppedTelemetry::LogLine => log_lines,
            // These are not bounds of one run.
            DroppedTelemetry::Label | DroppedTelemetry::HostCallSpan => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How much was dropped so far.
    pub(super) fn dropped(&self) -> TelemetryDropped {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Dropped { spans, span_events, attributes, metrics, log_lines } = &self.dropped;
        TelemetryDropped {
            spans: count(spans),
            span_events: count(span_events),
            attributes: count(attributes),
            metrics: count(metrics),
            log_lines: count(log_lines),
        }
    }

    /// Counts `many` dropped things in the metrics.
    pub fn drop_many(&self, what: DroppedTelemetry, many: u64) {
        self.metrics.telemetry_dropped_many(&self.integration, what, many);
    }
}
