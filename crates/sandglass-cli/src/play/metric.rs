//! Metrics, read back from the text that Prometheus would get.

use std::collections::BTreeMap;

use crate::scenario::Bound;

/// The sum of the samples named `name` whose labels hold `labels`; none where
/// there is no such sample.
pub(super) fn sum(text: &str, name: &str, labels: &BTreeMap<String, String>) -> Option<f64> {
    let samples = text.lines().filter_map(sample);
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

/// The lines about `name`, for people to see what there is.
pub(super) fn lines_about(text: &str, name: &str) -> Vec<String> {
    let about = |line: &&str| sample(line).is_some_and(|sample| sample.name == name);
    text.lines().filter(about).map(str::to_owned).collect()
}

struct Sample<'t> {
    name: &'t str,
    labels: BTreeMap<String, String>,
    value: f64,
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => read_labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// Reads `key="value",...}`; a value escapes `\`, `"` and line breaks with `\`.
fn read_labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next()? {
                (at, '"') => break at,
                (_, '\\') => match chars.next()?.1 {
                    'n' => value.push('\n'),
                    escaped => value.push(escaped),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(key.trim().to_owned(), value);
        rest = &after[end + 1..];
    }
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
    fn sums_what_fits() {
        assert_eq!(sum(TEXT, "kills", &labels(&[])), Some(5.0));
        assert_eq!(sum(TEXT, "kills", &labels(&[("span", "a \"b\",}")])), Some(3.0));
        assert_eq!(sum(TEXT, "kills", &labels(&[("span", "else")])), None);
        assert_eq!(sum(TEXT, "up", &labels(&[])), Some(1.0));
        assert_eq!(sum(TEXT, "kill", &labels(&[])), None);
        assert_eq!(sum("x{a=\"", "x", &labels(&[])), None);
    }
}
