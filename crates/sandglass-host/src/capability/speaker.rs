//! Who speaks when a guest tells something: whose guest it is, what must not be
//! said, and where what goes over a bound is counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::Told;

use crate::secret::Redactor;

/// One run, as logs, traces and metrics hear it.
#[derive(Debug)]
pub(crate) struct Speaker {
    pub(crate) integration: Arc<str>,
    pub(crate) redactor: Redactor,
    pub(crate) metrics: Metrics,
    /// How many lines it has written to the log, or would have.
    pub(super) lines: AtomicU32,
}

impl Speaker {
    pub(crate) fn new(integration: Arc<str>, redactor: Redactor, metrics: Metrics) -> Self {
        Self { integration, redactor, metrics, lines: AtomicU32::new(0) }
    }

    /// Counts something that goes nowhere because it went over a bound.
    pub(super) fn drop_one(&self, what: Told) {
        self.metrics.telemetry_dropped(&self.integration, what);
    }

    /// The same, of so many.
    pub(crate) fn drop_many(&self, what: Told, many: u64) {
        self.metrics.telemetry_dropped_many(&self.integration, what, many);
    }
}
