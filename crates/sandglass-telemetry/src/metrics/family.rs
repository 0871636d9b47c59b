//! One metric with all its label combinations: bounded in number, and with cached handles of counters
//! and histograms, so that reporting allocates nothing.
//!
//! The handle of a gauge is requested each time, unless the recorder keeps idle gauges: after a recorder
//! has dropped an idle gauge, a cached handle would report nowhere.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};

use sandglass_model::text::is_unprintable;

use super::scrape_size::{Priority, ScrapeSize, SeriesSize, header_size};
use crate::table::{Definition, Kind, Prefix, Unit};

/// Distinct values of one label: more than any deployment has entity types, actions or host functions.
pub const LABEL_VALUES_MAX: usize = 200;
/// Combinations of label values that one metric remembers, with a series of their own or under
/// [`OVERFLOW`]. Three labels at their maximum would be 8 million.
pub const SERIES_MAX: usize = 1000;
/// Longest label value, in bytes: longer than any name that Sandglass accepts.
pub const LABEL_VALUE_MAX_BYTES: usize = 256;
/// The label value of everything that came after a maximum was reached.
pub const OVERFLOW: &str = "other";

pub(super) const METADATA: Metadata<'static> =
    Metadata::new("sandglass_telemetry", Level::INFO, Some("sandglass_telemetry"));

/// The recorder that metrics report to.
pub(crate) type SharedRecorder = Arc<dyn Recorder + Send + Sync>;

/// What a recorder does with gauges that are not set for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleGauges {
    /// They stay, and so do their handles.
    #[cfg_attr(
        not(feature = "prometheus"),
        allow(dead_code, reason = "only our exporter keeps them")
    )]
    Kept,
    /// They may be dropped, so a handle must be requested each time.
    Dropped,
}

/// The numbered values of one label, shared by all metrics that have it.
struct LabelValues {
    name: &'static str,
    codes: RwLock<BTreeMap<Box<str>, u16>>,
}

impl LabelValues {
    fn new(name: &'static str) -> Self {
        Self { name, codes: RwLock::new(BTreeMap::from([(OVERFLOW.into(), 0)])) }
    }

    /// The number of `value`, and the value that is reported: itself or [`OVERFLOW`].
    fn admit<'v>(&self, value: &'v str) -> (u16, &'v str) {
        if value.len() > LABEL_VALUE_MAX_BYTES {
            return (0, OVERFLOW);
        }
        if let Some(code) = self.codes.read().unwrap_or_else(PoisonError::into_inner).get(value) {
            return (*code, value);
        }
        let mut codes = self.codes.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(code) = codes.get(value) {
            return (*code, value);
        }
        match u16::try_from(codes.len()) {
            // The overflow value itself does not count.
            Ok(code) if codes.len() <= LABEL_VALUES_MAX => {
                codes.insert(value.into(), code);
                (code, value)
            }
            _ => (0, OVERFLOW),
        }
    }
}

/// What all families share.
pub(crate) struct Source {
    recorder: SharedRecorder,
    idle_gauges: IdleGauges,
    prefix: Prefix,
    pub(super) scrape_size: Arc<ScrapeSize>,
    labels: BTreeMap<&'static str, Arc<LabelValues>>,
}

impl Source {
    /// For metrics that together make a scrape of at most `scrape_max_bytes`.
    pub(super) fn new(
        recorder: SharedRecorder,
        idle_gauges: IdleGauges,
        prefix: Prefix,
        scrape_max_bytes: usize,
    ) -> Self {
        let scrape_size = Arc::new(ScrapeSize::new(scrape_max_bytes));
        Self { recorder, idle_gauges, prefix, scrape_size, labels: BTreeMap::new() }
    }

    fn label(&mut self, name: &'static str) -> Arc<LabelValues> {
        self.labels.entry(name).or_insert_with(|| Arc::new(LabelValues::new(name))).clone()
    }

    fn describe(&self, definition: &Definition) {
        let unit = match definition.unit {
            Unit::Count => Some(::metrics::Unit::Count),
            Unit::Seconds => Some(::metrics::Unit::Seconds),
            Unit::Bytes => Some(::metrics::Unit::Bytes),
            // A recorder that appends units would change the names that are a contract; it has no unit
            // for ratios.
            Unit::Milliseconds | Unit::Ratio => None,
        };
        let name = definition.full_name(&self.prefix);
        describe(&self.recorder, definition.kind, name, unit, definition.help);
    }
}

pub(super) fn describe(
    recorder: &SharedRecorder,
    kind: Kind,
    name: String,
    unit: Option<::metrics::Unit>,
    help: &'static str,
) {
    let (name, help) = (name.into(), help.into());
    match kind {
        Kind::Counter => recorder.describe_counter(name, unit, help),
        Kind::Gauge => recorder.describe_gauge(name, unit, help),
        Kind::Histogram => recorder.describe_histogram(name, unit, help),
    }
}

/// The handle that a family caches for one combination of label values.
pub(crate) trait Handle: Clone {
    type Value;
    /// Whether a series without labels is exported before its first value.
    const IS_EXPORTED_EMPTY: bool;

    fn make(recorder: &SharedRecorder, idle_gauges: IdleGauges, key: Key) -> Self;

    fn report(&self, value: Self::Value);

    /// Exports the series without a value, if it needs more than to be made.
    fn export_empty(&self) {}
}

impl Handle for Counter {
    type Value = u64;
    const IS_EXPORTED_EMPTY: bool = true;

    fn make(recorder: &SharedRecorder, _: IdleGauges, key: Key) -> Self {
        recorder.register_counter(&key, &METADATA)
    }

    fn report(&self, value: u64) {
        self.increment(value);
    }

    fn export_empty(&self) {
        self.increment(0);
    }
}

impl Handle for Histogram {
    type Value = f64;
    const IS_EXPORTED_EMPTY: bool = true;

    fn make(recorder: &SharedRecorder, _: IdleGauges, key: Key) -> Self {
        recorder.register_histogram(&key, &METADATA)
    }

    fn report(&self, value: f64) {
        self.record(value);
    }
}

/// The handle of a gauge.
#[derive(Clone)]
pub(crate) enum GaugeHandle {
    Handle(Gauge),
    Renewed(Arc<Key>, SharedRecorder),
}

impl Handle for GaugeHandle {
    type Value = f64;
    const IS_EXPORTED_EMPTY: bool = false;

    fn make(recorder: &SharedRecorder, idle_gauges: IdleGauges, key: Key) -> Self {
        match idle_gauges {
            IdleGauges::Kept => Self::Handle(recorder.register_gauge(&key, &METADATA)),
            IdleGauges::Dropped => Self::Renewed(Arc::new(key), Arc::clone(recorder)),
        }
    }

    fn report(&self, value: f64) {
        match self {
            Self::Handle(gauge) => gauge.set(value),
            Self::Renewed(key, recorder) => recorder.register_gauge(key, &METADATA).set(value),
        }
    }
}

/// A counter with `N` labels.
pub(crate) type Counters<const N: usize> = Family<Counter, N>;
/// A histogram with `N` labels.
pub(crate) type Histograms<const N: usize> = Family<Histogram, N>;
/// A gauge with `N` labels.
pub(crate) type Gauges<const N: usize> = Family<GaugeHandle, N>;

/// One metric with `N` labels.
pub(crate) struct Family<K, const N: usize> {
    recorder: SharedRecorder,
    idle_gauges: IdleGauges,
    scrape_size: Arc<ScrapeSize>,
    series_size: SeriesSize,
    name: SharedString,
    labels: [Arc<LabelValues>; N],
    series: RwLock<BTreeMap<[u16; N], Series<K>>>,
    /// The only series, if there are no labels.
    only: CachedSeries<K>,
}

/// The series of a combination of label values.
#[derive(Clone)]
struct Series<K> {
    handle: K,
    /// Whether it is the shared series of [`OVERFLOW`] instead of its own.
    is_folded: bool,
}

/// A cache of the series of one combination of label values, filled by the first report.
pub(super) struct CachedSeries<K>(OnceLock<Series<K>>);

impl<K> Default for CachedSeries<K> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<K> fmt::Debug for CachedSeries<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedSeries").finish_non_exhaustive()
    }
}

impl<K: Handle, const N: usize> Family<K, N> {
    pub(crate) fn new(source: &mut Source, definition: &'static Definition) -> Self {
        source.describe(definition);
        let family = Self {
            name: definition.full_name(&source.prefix).into(),
            labels: std::array::from_fn(|at| source.label(definition.labels[at])),
            recorder: source.recorder.clone(),
            idle_gauges: source.idle_gauges,
            scrape_size: source.scrape_size.clone(),
            series_size: SeriesSize::of(definition, &source.prefix),
            series: RwLock::default(),
            only: CachedSeries::default(),
        };
        // Every metric has its header and its overflow series, however little is left.
        let header = header_size(definition, &source.prefix);
        family.scrape_size.take(header, Priority::Always);
        family.scrape_size.take(family.size_of([OVERFLOW; N]), Priority::Always);
        if N == 0 && K::IS_EXPORTED_EMPTY {
            family.get([OVERFLOW; N]).handle.export_empty();
        }
        family
    }

    /// Reports `value` to the series of `labels`.
    pub(crate) fn report(&self, labels: [&str; N], value: K::Value) {
        if N == 0 {
            self.report_cached(&self.only, labels, value);
        } else {
            self.report_to(&self.get(labels), value);
        }
    }

    /// As [`Family::report`], with a cache for these labels.
    pub(super) fn report_cached(
        &self,
        cache: &CachedSeries<K>,
        labels: [&str; N],
        value: K::Value,
    ) {
        self.report_to(cache.0.get_or_init(|| self.get(labels)), value);
    }

    fn report_to(&self, series: &Series<K>, value: K::Value) {
        if series.is_folded {
            self.scrape_size.count_folded();
        }
        series.handle.report(value);
    }

    /// The handle of the series of `labels`.
    pub(super) fn handle(&self, labels: [&str; N]) -> K {
        self.get(labels).handle
    }

    fn get(&self, values: [&str; N]) -> Series<K> {
        let mut codes = [0; N];
        let mut admitted = [OVERFLOW; N];
        for (at, value) in values.into_iter().enumerate() {
            (codes[at], admitted[at]) = self.labels[at].admit(value);
        }
        let known = self.series.read().unwrap_or_else(PoisonError::into_inner).get(&codes).cloned();
        let mut series = known.unwrap_or_else(|| self.make(codes, admitted));
        series.is_folded |= admitted != values;
        series
    }

    /// The series of a new combination: its own, if the scrape has room for it.
    fn make(&self, codes: [u16; N], values: [&str; N]) -> Series<K> {
        let own = |values| {
            let handle = K::make(&self.recorder, self.idle_gauges, self.key(values));
            Series { handle, is_folded: false }
        };
        let mut all = self.series.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&codes) {
            return known.clone();
        }
        if codes == [0; N] || self.has_room(all.len(), values) {
            return all.entry(codes).or_insert_with(|| own(values)).clone();
        }
        let overflow = all.entry([0; N]).or_insert_with(|| own([OVERFLOW; N])).clone();
        let series = Series { is_folded: true, ..overflow };
        if all.len() <= SERIES_MAX {
            // So the next observation of this combination only needs the read lock.
            all.insert(codes, series.clone());
        }
        series
    }

    /// Whether one more combination may have a series of its own, if `known` are remembered.
    fn has_room(&self, known: usize, values: [&str; N]) -> bool {
        known < SERIES_MAX && self.scrape_size.take(self.size_of(values), self.series_size.priority)
    }

    fn size_of(&self, values: [&str; N]) -> usize {
        let names = self.labels.iter().map(|label| label.name);
        self.series_size.with(names.zip(values.map(printable).iter().map(AsRef::as_ref)))
    }

    fn key(&self, values: [&str; N]) -> Key {
        let labels: Vec<Label> = self
            .labels
            .iter()
            .zip(values)
            .map(|(label, value)| Label::new(label.name, printable(value).into_owned()))
            .collect();
        Key::from_parts(self.name.clone(), labels)
    }
}

/// `value` without control characters, which would act on a terminal that shows a scrape.
pub(super) fn printable(value: &str) -> Cow<'_, str> {
    if value.contains(is_unprintable) {
        value.replace(is_unprintable, "?").into()
    } else {
        value.into()
    }
}

impl<const N: usize> Counters<N> {
    pub(crate) fn count(&self, labels: [&str; N]) {
        self.report(labels, 1);
    }

    /// Exports the series at zero. A counter that first appears at 1 hides its first event from
    /// `increase()`.
    pub(crate) fn expect(&self, labels: [&str; N]) {
        self.handle(labels).export_empty();
    }

    /// As [`Counters::expect`], as long as half of the scrape is free.
    pub(super) fn expect_in_half(&self, labels: [&str; N]) {
        if self.scrape_size.is_half_free() {
            self.expect(labels);
        }
    }
}
