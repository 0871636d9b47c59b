//! Metrics of the integration's own, exported beside those of the host.
//!
//! A name has the kind that it had first. Of the labels 4 are kept, of at most 100 bytes
//! and with at most 20 values each. A run may record 10,000 values; more are counted and
//! dropped, and answered as if they had been taken.

use crate::{HostError, backend};

/// What a metric does with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Adds `value` to a counter; rounded to a whole number.
///
/// # Errors
/// The name has no letter or digit of ASCII, or the value is not finite, or below zero.
pub fn counter(name: &str, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    record(name, Kind::Counter, value, labels)
}

/// Sets a gauge to `value`.
///
/// # Errors
/// The name has no letter or digit of ASCII, or the value is not finite.
pub fn gauge(name: &str, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    record(name, Kind::Gauge, value, labels)
}

/// Gives a histogram `value` as one more observation.
///
/// # Errors
/// The name has no letter or digit of ASCII, or the value is not finite.
pub fn histogram(name: &str, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    record(name, Kind::Histogram, value, labels)
}

fn record(name: &str, kind: Kind, value: f64, labels: &[(&str, &str)]) -> Result<(), HostError> {
    // JSON has no other numbers, and one of the two ABIs is JSON.
    if !value.is_finite() {
        return Err(HostError::new(format!("the value of the metric `{name}` is not finite")));
    }
    backend::metric(name, kind, value, labels)
}
