//! Every metric and span name of Sandglass, once, with its unit and help; and
//! the set-up of Prometheus, OTLP and logs. It measures what it is told and
//! decides nothing.

pub mod logs;
pub mod metrics;
pub mod otlp;
pub mod prometheus;
pub mod table;
pub mod trace;

pub use metrics::Metrics;
pub use table::Prefix;
pub use trace::{Span, SpanStart, Tracer};

/// Where a part of Sandglass reports what it does. Cheap to clone; the default
/// reports nowhere and costs nothing.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// Its metrics.
    pub metrics: Metrics,
    /// Its spans.
    pub tracer: Tracer,
}

impl Telemetry {
    /// Reports nowhere.
    #[must_use]
    pub fn disabled() -> Self {
        Self::default()
    }
}
