//! A scrape in Prometheus's text format, read back.

use std::collections::{BTreeMap, BTreeSet};

/// What a scrape says of one metric.
#[derive(Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    /// The names of the labels that its samples have, `le` left out.
    pub(crate) labels: BTreeSet<String>,
    /// Samples by what is written before the value.
    pub(crate) samples: BTreeMap<String, f64>,
}

/// Reads a scrape, by metric.
pub(crate) fn read(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("a help line has a text");
            families.entry(name.to_owned()).or_default().help = help.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a type line has a kind");
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else {
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|suffix| {
                    name.strip_suffix(suffix).filter(|it| families.contains_key(*it))
                })
                .unwrap_or(name);
            let family = families.get_mut(base).expect("a sample follows its type");
            family.labels.extend(
                labels
                    .split(',')
                    .filter_map(|label| Some(label.split_once('=')?.0.to_owned()))
                    .filter(|label| label != "le"),
            );
            family.samples.insert(series.to_owned(), value.parse().expect("a number"));
        }
    }
    families
}
