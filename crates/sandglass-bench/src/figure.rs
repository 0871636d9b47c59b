//! One figure: its quantiles, its baseline, and whether it meets its goals.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::timing::Samples;

/// The unit of a figure's quantiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Microseconds.
    #[serde(rename = "us")]
    Microseconds,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Bytes.
    #[serde(rename = "bytes")]
    Bytes,
    /// A count.
    #[serde(rename = "things")]
    Count,
}

impl Unit {
    /// The symbol that follows a number in this unit.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Bytes => "B",
            Self::Count => "",
        }
    }

    /// Converts a sample to this unit. Samples of time are in nanoseconds.
    fn of_sample(self, sample: f64) -> f64 {
        match self {
            Self::Nanoseconds | Self::Bytes | Self::Count => sample,
            Self::Microseconds => sample / 1e3,
            Self::Milliseconds => sample / 1e6,
        }
    }
}

/// The result of one measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The median.
    pub p50: f64,
    /// The 99th percentile.
    pub p99: f64,
    /// The unit of these two quantiles and of the baseline.
    pub unit: Unit,
    /// The number of measurements that the quantiles are computed from.
    pub samples: u64,
    /// The median of the baseline, which took turns with the measured code. The baseline is plain
    /// Wasmtime unless the figure's description states otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<f64>,
    /// `p50` divided by `baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// Further values, by name.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
    /// The goals of this figure.
    pub goals: Vec<Goal>,
}

/// An upper bound on a value of a figure, and whether it was met this time.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// The value that is bounded: a field of the figure, or a description of what was computed.
    pub what: &'static str,
    /// The bound.
    pub at_most: f64,
    /// The measured value.
    pub measured: f64,
    /// Whether the measured value is within the bound.
    pub met: bool,
}

impl Figure {
    /// Computes the quantiles of `samples`.
    pub(crate) fn of(samples: &Samples, unit: Unit) -> Self {
        let quantiles = samples.quantiles();
        Self {
            p50: rounded(unit.of_sample(quantiles.p50)),
            p99: rounded(unit.of_sample(quantiles.p99)),
            unit,
            samples: samples.count(),
            baseline: None,
            ratio: None,
            extra: Map::new(),
            goals: Vec::new(),
        }
    }

    /// Adds the median of `baseline`, and the ratio to it.
    pub(crate) fn with_baseline(mut self, baseline: &Samples) -> Self {
        let baseline = rounded(self.unit.of_sample(baseline.quantiles().p50));
        self.baseline = Some(baseline);
        self.ratio = (baseline > 0.0).then(|| rounded(self.p50 / baseline));
        self
    }

    /// Adds a further value.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    /// Adds the goal that `measured` is at most `at_most`.
    pub(crate) fn with_goal(mut self, what: &'static str, at_most: f64, measured: f64) -> Self {
        let measured = rounded(measured);
        self.goals.push(Goal { what, at_most, measured, met: measured <= at_most });
        self
    }

    /// Adds the goal that the ratio to the baseline is at most `at_most`.
    pub(crate) fn with_ratio_goal(self, at_most: f64) -> Self {
        match self.ratio {
            Some(ratio) => self.with_goal("ratio", at_most, ratio),
            None => self,
        }
    }
}

/// Rounds to a thousandth, which is more precise than measurements can be repeated.
pub(crate) fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_judged_by_its_own_unit() {
        let mut samples = Samples::default();
        (1..=100).for_each(|us| samples.push(f64::from(us) * 1e3));
        let mut plain = Samples::default();
        plain.push(25e3);
        let figure =
            Figure::of(&samples, Unit::Microseconds).with_baseline(&plain).with_ratio_goal(1.5);
        assert_eq!((figure.p50, figure.p99, figure.samples), (50.0, 99.0, 100));
        assert_eq!((figure.baseline, figure.ratio), (Some(25.0), Some(2.0)));
        assert!(!figure.goals[0].met);
        let json = serde_json::to_value(figure.with("inside", 3)).expect("plain data");
        assert_eq!((&json["unit"], &json["inside"]), (&"us".into(), &3.into()));
    }
}
