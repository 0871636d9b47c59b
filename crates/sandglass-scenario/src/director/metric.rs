//! Expectations about metrics.

use std::collections::BTreeMap;

use sandglass_telemetry::prometheus::Sample;

use crate::file::Bound;

/// The sum of the samples that are named `name` and have all `labels`; `None` if there is none.
pub(super) fn sum(text: &str, name: &str, labels: &BTreeMap<String, String>) -> Option<f64> {
    let samples = text.lines().filter_map(Sample::parse);
    let fitting = samples.filter(|sample| {
        let holds = |(key, value): (&String, &String)| sample.labels.get(key) == Some(value);
        sample.name == name && labels.iter().all(holds)
    });
    fitting.map(|sample| sample.value).fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

pub(super) fn holds(bound: Bound, value: f64) -> bool {
    match bound {
        Bound::AtLeast(least) => value >= least,
        // Counters and gauges of a scenario are small whole numbers.
        Bound::Equals(wanted) => (value - wanted).abs() < 1e-9,
    }
}

/// The samples named `name`, for people.
pub(super) fn lines_about(text: &str, name: &str) -> Vec<String> {
    let about = |line: &&str| Sample::parse(line).is_some_and(|sample| sample.name == name);
    text.lines().filter(about).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP kills by span\n# TYPE kills counter\n\
        kills{span=\"guest\",type=\"A\"} 2\nkills{span=\"a \\\"b\\\",}\",type=\"A\"} 3\nup 1\n";

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn sums_the_samples_with_the_name_and_all_labels() {
        assert_eq!(sum(TEXT, "kills", &labels(&[])), Some(5.0));
        assert_eq!(sum(TEXT, "kills", &labels(&[("span", "a \"b\",}")])), Some(3.0));
        assert_eq!(sum(TEXT, "kills", &labels(&[("span", "else")])), None);
        assert_eq!(sum(TEXT, "up", &labels(&[])), Some(1.0));
        assert_eq!(sum(TEXT, "kill", &labels(&[])), None);
        assert_eq!(sum("x{a=\"", "x", &labels(&[])), None);
    }
}
