//! Metrics, read back from the text that Prometheus gets
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::collections::BTreeMap;

/// One line of it.
pub(crate) struct Sample<'t> {
    pub(crate) name: &'t str,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// What a line says; none of a comment, and of what is no sample.
pub(crate) fn sample(line: &str) -> Option<Sample<'_>> {
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
