//! The origin of one run's telemetry: its tenant and integration, its secrets, its rates, and the
//! counts of what was dropped.

use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};

use sandglass_model::TelemetryDropped;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::DroppedTelemetry;

use super::tenant_rate::Rates;
use crate::covered;
use crate::secret::Redactor;
use crate::sync::lock;

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
    /// What exceeded a bound of the run.
    dropped: Mutex<TelemetryDropped>,
}

// Shared by the telemetry of one run. `Guest` measures the redactor.
covered!(RunTelemetry: tenant, integration, redactor, metrics, rates, lines, is_over_rate, dropped);

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
            dropped: Mutex::default(),
        }
    }

    /// The telemetry of the integration `x`; its clock stands still.
    #[cfg(test)]
    pub fn of_tests(redactor: Redactor, metrics: Metrics) -> Self {
        let clock: Arc<dyn sandglass_model::Clock> = Arc::new(crate::testing::SetClock::at(1));
        Self::new(("a".into(), "x".into()), redactor, metrics, Arc::new(Rates::new(&clock)))
    }

    /// Counts something that is dropped because it exceeded a bound.
    pub(super) fn drop_one(&self, what: DroppedTelemetry) {
        self.metrics.telemetry_dropped(&self.integration, what);
        let mut dropped = lock(&self.dropped);
        *match what {
            DroppedTelemetry::Span => &mut dropped.spans,
            DroppedTelemetry::SpanEvent => &mut dropped.span_events,
            DroppedTelemetry::Attribute => &mut dropped.attributes,
            DroppedTelemetry::Metric => &mut dropped.metrics,
            DroppedTelemetry::LogLine => &mut dropped.log_lines,
            // These are not bounds of one run.
            DroppedTelemetry::Label | DroppedTelemetry::HostCallSpan => return,
        } += 1;
    }

    /// How much was dropped so far.
    pub(super) fn dropped(&self) -> TelemetryDropped {
        *lock(&self.dropped)
    }
}
