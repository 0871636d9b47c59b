//! Who speaks when a guest tells something: whose guest it is, what must not be
//! said, and where what goes over a bound is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use sandglass_model::TelemetryDropped;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::DroppedTelemetry;

use super::tenant_rate::Rates;
use crate::covered;
use crate::secret::Redactor;

/// One run, as logs, traces and metrics hear it.
#[derive(Debug)]
pub struct Speaker {
    /// The tenant of the dispatch.
    pub tenant: Arc<str>,
    /// The name of the integration.
    pub integration: Arc<str>,
    /// Removes secrets from text for people.
    pub redactor: Redactor,
    /// Where telemetry is counted.
    pub metrics: Metrics,
    pub(super) rates: Arc<Rates>,
    /// How many lines it has written to the log, or would have.
    pub(super) lines: AtomicU32,
    /// Whether a line of it was dropped because its tenant logs too much.
    pub(super) is_over_rate: AtomicBool,
    dropped: Dropped,
}

// Shared by the telemetry of one run. `Guest` measures the redactor.
covered!(Speaker: tenant, integration, redactor, metrics, rates, lines, is_over_rate, dropped);

/// What of it went over a bound of the run, and so nowhere.
#[derive(Debug, Default)]
struct Dropped {
    spans: AtomicU64,
    span_events: AtomicU64,
    attributes: AtomicU64,
    metrics: AtomicU64,
    log_lines: AtomicU64,
}

impl Speaker {
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

    /// A speaker of the integration `x`, for whose tenant no time passes.
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

    /// Counts something that goes nowhere because it went over a bound.
    pub(super) fn drop_one(&self, what: DroppedTelemetry) {
        self.metrics.telemetry_dropped(&self.integration, what);
        let Dropped { spans, span_events, attributes, metrics, log_lines } = &self.dropped;
        let count = match what {
            DroppedTelemetry::Span => spans,
            DroppedTelemetry::SpanEvent => span_events,
            DroppedTelemetry::Attribute => attributes,
            DroppedTelemetry::Metric => metrics,
            DroppedTelemetry::LogLine => log_lines,
            // Those are not what one run told too much of.
            DroppedTelemetry::Label | DroppedTelemetry::HostCallSpan => return,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// How much went over a bound of the run so far.
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

    /// The same, of so many.
    pub fn drop_many(&self, what: DroppedTelemetry, many: u64) {
        self.metrics.telemetry_dropped_many(&self.integration, what, many);
    }
}
