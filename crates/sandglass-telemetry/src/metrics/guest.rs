//! The metrics of guests, who choose names and labels. All names have one prefix, and all numbers are
//! bounded, so that no guest can fill a scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use ::metrics::{Key, Label, SharedString};

use super::family::{LABEL_VALUES_MAX, METADATA, OVERFLOW, SharedRecorder, describe, printable};
use super::{DroppedTelemetry, Metrics};
use crate::table::Prefix;

/// Series of the guests of one integration: a few dozen metrics with a label or two for each of two
/// tenants.
const SERIES_PER_INTEGRATION: usize = 1000;
/// Series of all guests together: a scrape of some megabytes.
const SERIES_IN_ALL: usize = 5000;
/// A histogram counts as this many series, because it has a line for each of its buckets.
const SERIES_OF_A_HISTOGRAM: usize = 15;
/// Labels of one observation, without `integration`; more are of no use in a query.
const LABELS_MAX: usize = 4;
/// Distinct values of one label of one metric of an integration. A label with more contains ids, which
/// are of no use as labels.
const VALUES_MAX: usize = 20;
/// Longest name of a metric or label, in bytes, and longest value of a label.
const NAME_MAX_BYTES: usize = 100;
/// The help text: only the guests know the meaning.
const HELP: &str = "Measured by the guests of the integration";
/// The label with the integration.
const INTEGRATION: &str = "integration";
/// Labels with a meaning for the exporter.
const RESERVED: [&str; 3] = [INTEGRATION, "le", "quantile"];

/// The kind of a metric of a guest. Values of a counter are rounded to whole numbers.
pub use crate::table::Kind as GuestKind;

/// One observation of a guest.
#[derive(Clone, Copy, Debug)]
pub struct GuestMetric<'a> {
    /// The tenant of the handler.
    pub tenant: &'a str,
    /// The integration of the guest.
    pub integration: &'a str,
    /// The name, as the guest writes it.
    pub name: &'a str,
    /// The kind.
    pub kind: GuestKind,
    /// The observed value.
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
    /// The owner of each name with which a line of a scrape begins: the first metric that uses it,
    /// because a name with two meanings cannot be exported. There are a few for each series.
    names: BTreeMap<String, (String, GuestKind)>,
    integrations: BTreeMap<String, Shares>,
    weight: Weight,
}

/// How much of the bounds one integration has used.
#[derive(Default)]
struct Shares {
    /// With the value of each counter.
    series: BTreeMap<Vec<Label>, u64>,
    weight: Weight,
    /// How the guests write the name of each metric. Two spellings with the same exported name would be
    /// added up.
    written: BTreeMap<String, String>,
    /// By metric and label.
    values: BTreeMap<(String, String), BTreeSet<String>>,
}

/// A number of series, in total and by tenant.
#[derive(Default)]
struct Weight {
    all: usize,
    tenants: BTreeMap<String, usize>,
}

impl Weight {
    /// Whether `tenant` may add `weight`, if all tenants together may have `most`. One tenant gets at most
    /// half of what the others have left, so that the next tenant always gets some.
    fn has_room(&self, tenant: &str, weight: usize, most: usize) -> bool {
        let held = self.tenants.get(tenant).copied().unwrap_or_default();
        held + weight <= (most - (self.all - held)) / 2
    }

    fn add(&mut self, tenant: &str, weight: usize) {
        self.all += weight;
        *self.tenants.entry(tenant.to_owned()).or_default() += weight;
    }
}

impl Metrics {
    /// Reports an observation of a guest. One that exceeds a bound is counted as dropped.
    pub fn guest_metric(&self, metric: &GuestMetric<'_>) {
        let Some(inner) = &self.0 else { return };
        match inner.guests.admit(metric) {
            Some(admitted) => {
                for _ in 0..admitted.dropped_labels {
                    self.telemetry_dropped(metric.integration, DroppedTelemetry::Label);
                }
                inner.guests.record(metric, &admitted);
            }
            None => self.telemetry_dropped(metric.integration, DroppedTelemetry::Metric),
        }
    }
}

impl GuestMetrics {
    pub(super) fn new(recorder: SharedRecorder, prefix: &Prefix) -> Self {
        Self { recorder, prefix: prefix.clone(), known: Mutex::default() }
    }

    /// The series of `metric`; `None` if it exceeds a bound, or another metric has its name.
    fn admit(&self, metric: &GuestMetric<'_>) -> Option<Admitted> {
        let name = self.name(metric)?;
        let own = format!("{}_", self.prefix);
        let written = metric.name.strip_prefix(&own).unwrap_or(metric.name);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let integration = known.integration(metric.integration);
        if !known.is_free(&name, metric.kind) || !known.is_written(&integration, &name, written) {
            return None;
        }
        let (mut labels, dropped) = known.labels(&integration, &name, metric.labels);
        labels.push(Label::new(INTEGRATION, integration.clone()));
        // The name is part of the identity of a series.
        let identity: Vec<Label> =
            [Label::new("", name.clone())].into_iter().chain(labels.iter().cloned()).collect();
        let counted = known.admit_series((metric.tenant, &integration), identity, metric.kind)?;
        let increment = whole(metric.value).min(u64::MAX - *counted);
        if metric.kind == GuestKind::Counter {
            *counted += increment;
        }
        if known.take(&integration, &name, metric.kind, written) {
            describe(&self.recorder, metric.kind, name.clone(), None, HELP);
        }
        let key = Key::from_parts(SharedString::from(name), labels);
        Some(Admitted { key, dropped_labels: dropped, increment })
    }

    /// The exported name.
    fn name(&self, metric: &GuestMetric<'_>) -> Option<String> {
        let name = plain(metric.name)?;
        // Guests that know the prefix of their host may write it.
        let own = format!("{}_", self.prefix);
        let name = name.strip_prefix(&own).unwrap_or(&name);
        let total = if metric.kind == GuestKind::Counter && !name.ends_with("_total") {
            "_total"
        } else {
            ""
        };
        Some(format!("{}_guest_{name}{total}", self.prefix))
    }

    fn record(&self, metric: &GuestMetric<'_>, admitted: &Admitted) {
        let key = &admitted.key;
        match metric.kind {
            GuestKind::Counter => {
                self.recorder.register_counter(key, &METADATA).increment(admitted.increment);
            }
            GuestKind::Gauge => self.recorder.register_gauge(key, &METADATA).set(metric.value),
            GuestKind::Histogram => {
                self.recorder.register_histogram(key, &METADATA).record(metric.value);
            }
        }
    }
}

/// An observation that is reported.
struct Admitted {
    key: Key,
    dropped_labels: usize,
    /// The increment of a counter, limited so that the counter saturates instead of wrapping around.
    increment: u64,
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, as the counter does"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

/// The names with which lines of the metric `name` begin, and the name of its family.
fn names_of(name: &str, kind: GuestKind) -> Vec<String> {
    let suffixed = |suffix: &str| format!("{name}{suffix}");
    match kind {
        GuestKind::Counter => {
            let family = name.strip_suffix("_total").unwrap_or(name);
            vec![name.to_owned(), family.to_owned()]
        }
        GuestKind::Gauge => vec![name.to_owned()],
        GuestKind::Histogram => {
            vec![name.to_owned(), suffixed("_bucket"), suffixed("_sum"), suffixed("_count")]
        }
    }
}

impl Known {
    /// Whether no other metric owns one of the names of this one.
    fn is_free(&self, name: &str, kind: GuestKind) -> bool {
        names_of(name, kind).iter().all(|taken| {
            self.names.get(taken).is_none_or(|(other, its)| other == name && *its == kind)
        })
    }

    /// Whether the integration has always used this spelling of the name.
    fn is_written(&self, integration: &str, name: &str, written: &str) -> bool {
        let before = self.integrations.get(integration).and_then(|it| it.written.get(name));
        // Integrations that share this entry are unrelated.
        integration == OVERFLOW || before.is_none_or(|before| before == written)
    }

    /// Registers the names of the metric. Returns whether it is new.
    fn take(&mut self, integration: &str, name: &str, kind: GuestKind, written: &str) -> bool {
        let is_new = !self.names.contains_key(name);
        for taken in names_of(name, kind) {
            self.names.entry(taken).or_insert_with(|| (name.to_owned(), kind));
        }
        if let Some(shares) = self.integrations.get_mut(integration) {
            shares.written.entry(name.to_owned()).or_insert_with(|| written.to_owned());
        }
        is_new
    }

    fn integration(&mut self, name: &str) -> String {
        let name = &*printable(name);
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

    /// Registers a series, unless it is known, and returns its counter; `None` if a bound is reached.
    fn admit_series(
        &mut self,
        (tenant, integration): (&str, &str),
        identity: Vec<Label>,
        kind: GuestKind,
    ) -> Option<&mut u64> {
        let shares = self.integrations.entry(integration.to_owned()).or_default();
        if !shares.series.contains_key(&identity) {
            let weight = if kind == GuestKind::Histogram { SERIES_OF_A_HISTOGRAM } else { 1 };
            let has_room = shares.weight.has_room(tenant, weight, SERIES_PER_INTEGRATION)
                && self.weight.has_room(tenant, weight, SERIES_IN_ALL);
            if !has_room {
                return None;
            }
            shares.weight.add(tenant, weight);
            self.weight.add(tenant, weight);
        }
        Some(shares.series.entry(identity).or_default())
    }
}

impl Shares {
    /// `value`, or [`OVERFLOW`] if the label has too many values.
    fn value(&mut self, metric: &str, label: &str, value: &str) -> String {
        /// Labels that are tracked: as many as all series can have.
        const LABELS_KEPT: usize = SERIES_PER_INTEGRATION * LABELS_MAX;
        let value = &*printable(value);
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

/// `name` in the spelling of Prometheus: lower-case letters, digits and single `_`. `None` if it is too
/// long or contains none of these characters.
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
    fn names_are_converted_to_the_spelling_of_prometheus() {
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
