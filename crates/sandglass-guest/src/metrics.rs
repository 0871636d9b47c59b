//! The integration's own metrics, exported together with those of the host.
//!
//! A name keeps the kind with which it was first used. A metric keeps 4 labels, of at most 100 bytes and 20
//! values each. A handler may record 10,000 values; further values are counted and dropped without
//! an error.

use crate::{HostError, backend};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Adds `value`, rounded to a whole number, to a counter.
///
/// # Errors
/// Errors if the name has no ASCII letter or digit, or if the value is not finite or is negative.
pub fn counter(name: &str, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    record(name, Kind::Counter, value, labels)
}

/// Sets a gauge to `value`.
///
/// # Errors
/// Errors if the name has no ASCII letter or digit, or if the value is not finite.
pub fn gauge(name: &str, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    record(name, Kind::Gauge, value, labels)
}

/// Adds the observation `value` to a histogram.
///
/// # Errors
/// Errors if the name has no ASCII letter or digit, or if the value is not finite.
pub fn histogram(name: &str, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    record(name, Kind::Histogram, value, labels)
}

fn record(name: &str, kind: Kind, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    // JSON has only finite numbers, and the core ABI passes metrics as JSON.
    if !value.is_finite() {
        return Err(HostError::new(format!("the value of the metric `{name}` is not finite")));
    }
    backend::metric(name, kind, value, labels)
}
