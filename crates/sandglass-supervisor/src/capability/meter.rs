//! Metrics that guests report, in a bounded number of observations.

use std::sync::Arc;

use sandglass_telemetry::metrics::{DroppedTelemetry, GuestKind, GuestMetric};

use super::run_telemetry::RunTelemetry;
use crate::measured;

/// Most observations of one run; a handler that measures each of its steps makes a few hundred.
/// Further ones are counted as dropped.
const OBSERVATIONS_MAX: u32 = 10_000;

/// The metrics of one run.
#[derive(Debug)]
pub struct Meter {
    telemetry: Arc<RunTelemetry>,
    observations: u32,
}

measured!(Meter: telemetry, observations);

/// Why an observation is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMetric {
    /// The metric has no name.
    #[error("the metric has no name: a letter or digit of ASCII, at least")]
    NoName,
    /// The value is not a finite number.
    #[error("the metric's value is not finite")]
    NotFinite,
    /// A counter would decrease.
    #[error("a counter only goes up, and the value is below zero")]
    CounterGoesDown,
}

impl Meter {
    pub(super) fn new(telemetry: Arc<RunTelemetry>) -> Self {
        Self { telemetry, observations: 0 }
    }

    /// Takes one observation of a metric. Above the bound it is dropped and counted.
    ///
    /// # Errors
    /// The observation is invalid.
    pub fn observe(
        &mut self,
        name: &str,
        kind: GuestKind,
        value: f64,
        labels: Vec<(String, String)>,
    ) -> Result<(), InvalidMetric> {
        if !name.contains(|c: char| c.is_ascii_alphanumeric()) {
            return Err(InvalidMetric::NoName);
        }
        if !value.is_finite() {
            return Err(InvalidMetric::NotFinite);
        }
        if kind == GuestKind::Counter && value < 0.0 {
            return Err(InvalidMetric::CounterGoesDown);
        }
        if self.observations >= OBSERVATIONS_MAX {
            self.telemetry.drop_one(DroppedTelemetry::Metric);
            return Ok(());
        }
        self.observations += 1;
        let redactor = &self.telemetry.redactor;
        let name = redactor.text(name.to_owned());
        let redacted = |(label, value)| (redactor.text(label), redactor.text(value));
        let labels: Vec<_> = labels.into_iter().map(redacted).collect();
        self.telemetry.metrics.guest_metric(&GuestMetric {
            tenant: &self.telemetry.tenant,
            integration: &self.telemetry.integration,
            name: &name,
            kind,
            value,
            labels: &labels,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Redactor, Secret};
    use sandglass_telemetry::Prefix;
    use sandglass_telemetry::prometheus::Exporter;

    fn meter() -> (Meter, Exporter) {
        let exporter = Exporter::new(Prefix::default());
        let redactor = Redactor::default();
        redactor.hide(&Secret::new("hunter22"));
        let metrics = exporter.metrics();
        (Meter::new(Arc::new(RunTelemetry::of_tests(redactor, metrics))), exporter)
    }

    #[test]
    fn invalid_observations_are_rejected_with_their_reason() {
        let (mut meter, _exporter) = meter();
        let mut observe = |name, kind, value| meter.observe(name, kind, value, Vec::new());
        assert_eq!(observe("", GuestKind::Gauge, 1.0), Err(InvalidMetric::NoName));
        assert_eq!(observe("é.", GuestKind::Gauge, 1.0), Err(InvalidMetric::NoName));
        assert_eq!(observe("a", GuestKind::Gauge, f64::NAN), Err(InvalidMetric::NotFinite));
        assert_eq!(observe("a", GuestKind::Counter, -1.0), Err(InvalidMetric::CounterGoesDown));
        assert_eq!(observe("a", GuestKind::Gauge, -1.0), Ok(()));
    }

    #[test]
    fn excess_observations_are_counted_and_secrets_are_removed() {
        let (mut meter, exporter) = meter();
        for _ in 0..OBSERVATIONS_MAX + 5 {
            let labels = vec![("token".to_owned(), "hunter22".to_owned())];
            meter.observe("a", GuestKind::Counter, 1.0, labels).expect("valid");
        }
        let text = exporter.render();
        let counted = r#"temper_guest_a_total{token="[redacted]",integration="x"} 10000"#;
        assert!(text.contains(counted), "{text}");
        let dropped = r#"temper_handler_telemetry_dropped_total{integration="x",what="metric"} 5"#;
        assert!(text.contains(dropped), "{text}");
    }
}
