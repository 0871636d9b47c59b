//! Metrics, spans and logs of Sandglass: each name is defined once here, with its unit and help text,
//! together with the set-up of Prometheus, OTLP and the log.
//!
//! It holds no logic: other crates call one typed method per event, such as
//! [`Metrics::dispatch_refused`], and never name a metric.
//!
//! Start with [`table`], which lists every metric, and [`trace`], which starts spans whose ids are
//! decided beforehand. [`Telemetry`] bundles both for a host or a runtime.
//!
//! The features `prometheus`, `otlp` and `logs` are enabled by default; without them, an embedder
//! compiles no exporter.

#[cfg(feature = "logs")]
pub mod logs;
pub mod metrics;
#[cfg(feature = "otlp")]
pub mod otlp;
#[cfg(feature = "prometheus")]
pub mod prometheus;
#[cfg(any(feature = "logs", feature = "otlp"))]
mod shown;
pub mod table;
pub mod trace;

pub use metrics::Metrics;
pub use table::Prefix;
pub use trace::{Span, SpanStart, Tracer};

/// Metrics and spans of one part of Sandglass. Cheap to clone; the default reports nowhere, at no cost.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    /// The metrics.
    pub metrics: Metrics,
    /// The spans.
    pub tracer: Tracer,
}

impl Telemetry {
    /// Reports nowhere.
    #[must_use]
    pub fn disabled() -> Self {
        Self::default()
    }
}
