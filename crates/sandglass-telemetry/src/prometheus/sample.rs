//! Samples, read back from the text format of Prometheus
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::collections::BTreeMap;

/// One sample: a line of the text that Prometheus scrapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'t> {
    /// The name of the metric, with the suffix of a histogram's sample.
    pub name: &'t str,
    /// The labels, without escapes.
    pub labels: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl<'t> Sample<'t> {
    /// Reads one line; `None` if it is a comment or no sample.
    #[must_use]
    pub fn parse(line: &'t str) -> Option<Self> {
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => read_labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }
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
