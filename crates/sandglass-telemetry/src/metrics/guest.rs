//! What guests measure: metrics whose names and labels they choose, all below one
//! prefix of names, and bounded so that no guest can fill a scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

use ::metrics::{Key, Label, SharedString};

use super::family::{LABEL_VALUES_MAX, METADATA, OVERFLOW, SharedRecorder};
use super::{Metrics, Told};
use crate::table::Prefix;

/// Series that the guests of one integration may have: a few dozen metrics with a
/// label or two.
const SERIES_PER_INTEGRATION: usize = 500;
/// Series of all guests together: a scrape of some megabytes.
const SERIES_IN_ALL: usize = 5000;
/// What a histogram counts for, because it has a line for each of its buckets.
const SERIES_OF_A_HISTOGRAM: usize = 15;
/// Labels of one observation, `integration` aside; more are of no use in a query.
const LABELS_MAX: usize = 4;
/// Values that one label of one integration's metric may take. A label of more has
/// ids in it, and an id is of no use as a label.
const VALUES_MAX: usize = 20;
/// Longest name of a metric or label, in bytes, and longest value of a label.
const NAME_MAX_BYTES: usize = 100;
/// The label that says whose metric it is.
const INTEGRATION: &str = "integration";
/// Labels that mean something to the exporter itself.
const RESERVED: [&str; 3] = [INTEGRATION, "le", "quantile"];

/// What a guest's metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestKind {
    /// Its values are added up; each is rounded to a whole number.
    Counter,
    /// Its last value holds.
    Gauge,
    /// Its values are counted by size.
    Histogram,
}

/// One observation that a guest makes.
#[derive(Clone, Copy, Debug)]
pub struct GuestMetric<'a> {
    /// Whose guest it is.
    pub integration: &'a str,
    /// The metric, as the guest calls it.
    pub name: &'a str,
    /// What it is.
    pub kind: GuestKind,
    /// What was observed.
    pub value: f64,
    /// Labels and their values.
    pub labels: &'a [(String, String)],
}

/// The metrics of all guests.
pub(super) struct GuestMetrics {
    recorder: SharedRecorder,
    prefix: Prefix,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The kind of each name: whoever comes first decides, because a name with two
    /// kinds can't be exported.
    kinds: BTreeMap<String, GuestKind>,
    integrations: BTreeMap<String, Shares>,
    series: usize,
}

/// What one integration has taken of the bounds.
#[derive(Default)]
struct Shares {
    series: BTreeSet<Vec<Label>>,
    weight: usize,
    /// By metric and label.
    values: BTreeMap<(String, String), BTreeSet<String>>,
}

impl fmt::Debug for GuestMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuestMetrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// Takes what a guest observed; what goes over a bound is counted as dropped.
    pub fn guest_metric(&self, metric: &GuestMetric<'_>) {
        let Some(inner) = &self.0 else { return };
        match inner.guests.admit(metric) {
            Some((key, dropped_labels)) => {
                for _ in 0..dropped_labels {
                    self.telemetry_dropped(metric.integration, Told::Label);
                }
                inner.guests.record(metric, &key);
            }
            None => self.telemetry_dropped(metric.integration, Told::Metric),
        }
    }
}

impl GuestMetrics {
    pub(super) fn new(recorder: SharedRecorder, prefix: &Prefix) -> Self {
        Self { recorder, prefix: prefix.clone(), known: Mutex::default() }
    }

    /// The series that `metric` belongs to, and how many of its labels it loses;
    /// none where it goes over a bound.
    fn admit(&self, metric: &GuestMetric<'_>) -> Option<(Key, usize)> {
        let name = self.name(metric)?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.kinds.get(&name).is_some_and(|kind| *kind != metric.kind) {
            return None;
        }
        let integration = known.integration(metric.integration);
        let (mut labels, dropped) = known.labels(&integration, &name, metric.labels);
        labels.push(Label::new(INTEGRATION, integration.clone()));
        // The name is a part of what tells two series apart.
        let identity: Vec<Label> =
            [Label::new("", name.clone())].into_iter().chain(labels.iter().cloned()).collect();
        known.admit_series(&integration, identity, metric.kind)?;
        known.kinds.insert(name.clone(), metric.kind);
        Some((Key::from_parts(SharedString::from(name), labels), dropped))
    }

    /// The name under which it is exported.
    fn name(&self, metric: &GuestMetric<'_>) -> Option<String> {
        let name = plain(metric.name)?;
        // Guests that know their host's prefix write it themselves.
        let own = format!("{}_", self.prefix);
        let name = name.strip_prefix(&own).unwrap_or(&name);
        let total = if metric.kind == GuestKind::Counter && !name.ends_with("_total") {
            "_total"
        } else {
            ""
        };
        Some(format!("{}_guest_{name}{total}", self.prefix))
    }

    fn record(&self, metric: &GuestMetric<'_>, key: &Key) {
        match metric.kind {
            GuestKind::Counter => {
                #[allow(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "such a cast saturates, and nobody counts further than that"
                )]
                let count = metric.value.round() as u64;
                self.recorder.register_counter(key, &METADATA).increment(count);
            }
            GuestKind::Gauge => self.recorder.register_gauge(key, &METADATA).set(metric.value),
            GuestKind::Histogram => {
                self.recorder.register_histogram(key, &METADATA).record(metric.value);
            }
        }
    }
}

impl Known {
    fn integration(&mut self, name: &str) -> String {
        let known = self.integrations.contains_key(name);
        if name.len() <= NAME_MAX_BYTES && (known || self.integrations.len() < LABEL_VALUES_MAX) {
            name.to_owned()
        } else {
            OVERFLOW.to_owned()
        }
    }

    fn labels(
        &mut self,
        integration: &str,
        metric: &str,
        given: &[(String, String)],
    ) -> (Vec<Label>, usize) {
        let shares = self.integrations.entry(integration.to_owned()).or_default();
        let mut labels: Vec<Label> = Vec::new();
        let mut dropped = 0;
        for (label, value) in given {
            let usable = plain(label)
                .filter(|label| !label.starts_with(|first: char| first.is_ascii_digit()))
                .filter(|label| !RESERVED.contains(&label.as_str()))
                .filter(|label| labels.iter().all(|taken| taken.key() != label));
            match usable {
                Some(label) if labels.len() < LABELS_MAX => {
                    let value = shares.value(metric, &label, value);
                    labels.push(Label::new(label, value));
                }
                _ => dropped += 1,
            }
        }
        labels.sort();
        (labels, dropped)
    }

    /// Takes the place that a series needs, unless it has one; nothing where there
    /// is none left.
    fn admit_series(
        &mut self,
        integration: &str,
        identity: Vec<Label>,
        kind: GuestKind,
    ) -> Option<()> {
        let shares = self.integrations.entry(integration.to_owned()).or_default();
        if shares.series.contains(&identity) {
            return Some(());
        }
        let weight = if kind == GuestKind::Histogram { SERIES_OF_A_HISTOGRAM } else { 1 };
        if shares.weight + weight > SERIES_PER_INTEGRATION || self.series + weight > SERIES_IN_ALL {
            return None;
        }
        shares.series.insert(identity);
        shares.weight += weight;
        self.series += weight;
        Some(())
    }
}

impl Shares {
    /// `value`, or [`OVERFLOW`] where the label has taken too many.
    fn value(&mut self, metric: &str, label: &str, value: &str) -> String {
        /// Labels that are kept track of: as many as all series can have.
        const LABELS_KEPT: usize = SERIES_PER_INTEGRATION * LABELS_MAX;
        let place = (metric.to_owned(), label.to_owned());
        if value.len() > NAME_MAX_BYTES
            || (self.values.len() >= LABELS_KEPT && !self.values.contains_key(&place))
        {
            return OVERFLOW.to_owned();
        }
        let taken = self.values.entry(place).or_default();
        if taken.len() >= VALUES_MAX && !taken.contains(value) {
            return OVERFLOW.to_owned();
        }
        taken.insert(value.to_owned());
        value.to_owned()
    }
}

/// `name` as Prometheus spells names: lower-case letters, digits and single `_`;
/// nothing where none of that is in it, or too much.
fn plain(name: &str) -> Option<String> {
    if name.len() > NAME_MAX_BYTES {
        return None;
    }
    let spelled: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' })
        .collect();
    let parts: Vec<&str> = spelled.split('_').filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelled_as_prometheus_wants_them() {
        for (name, spelled) in [
            ("tool.calls", Some("tool_calls")),
            ("Tokens/Used", Some("tokens_used")),
            ("__x__", Some("x")),
            ("\u{1b}[31m", Some("31m")),
            ("é", None),
            ("", None),
        ] {
            assert_eq!(plain(name).as_deref(), spelled, "{name:?}");
        }
        assert_eq!(plain(&"x".repeat(NAME_MAX_BYTES + 1)), None);
    }
}
