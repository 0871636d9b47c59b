//! One metric with all its label combinations: bounded in number, and with the
//! handles of counters and histograms kept, so that reporting allocates nothing.
//!
//! Gauges are asked for each time, unless the recorder is known to keep them: one that
//! drops idle gauges would leave a kept handle reporting to nobody.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};

use sandglass_model::text::is_unprintable;

use super::room::{Need, Room, Weight, header};
use crate::table::{Definition, Kind, Prefix, Unit};

/// Distinct values that one label may take: more than any deployment has entity
/// types, actions or host functions.
pub const LABEL_VALUES_MAX: usize = 200;
/// Combinations of label values that one metric keeps in mind, with a series of their own
/// or under [`OVERFLOW`], because three labels at their maximum would still be 8 million.
pub const SERIES_MAX: usize = 1000;
/// Longest label value, in bytes: longer than any name that Sandglass lets in.
pub const LABEL_VALUE_MAX_BYTES: usize = 256;
/// The value that stands for all that came after a maximum was reached.
pub const OVERFLOW: &str = "other";

pub(super) const METADATA: Metadata<'static> =
    Metadata::new("sandglass_telemetry", Level::INFO, Some("sandglass_telemetry"));

/// The recorder that metrics report to.
pub(crate) type SharedRecorder = Arc<dyn Recorder + Send + Sync>;

/// What becomes of the gauges of a recorder that nobody sets for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdleGauges {
    /// They stay, and so do handles of them.
    Kept,
    /// They may be dropped, so that a handle has to be asked for each time.
    Dropped,
}

/// The values that one label has taken, numbered. Shared by all metrics that
/// have this label.
#[derive(Debug)]
struct LabelValues {
    name: &'static str,
    codes: RwLock<BTreeMap<Box<str>, u16>>,
}

impl LabelValues {
    fn new(name: &'static str) -> Self {
        Self { name, codes: RwLock::new(BTreeMap::from([(OVERFLOW.into(), 0)])) }
    }

    /// The number of `value`, and the value to report: itself or [`OVERFLOW`].
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
            // The overflow value itself doesn't count.
            Ok(code) if codes.len() <= LABEL_VALUES_MAX => {
                codes.insert(value.into(), code);
                (code, value)
            }
            _ => (0, OVERFLOW),
        }
    }
}

/// What families are made from.
pub(crate) struct Source {
    recorder: SharedRecorder,
    idle_gauges: IdleGauges,
    prefix: Prefix,
    room: Arc<Room>,
    labels: BTreeMap<&'static str, Arc<LabelValues>>,
}

impl Source {
    /// Of metrics that together make a scrape of at most `scrape_max_bytes`.
    pub(super) fn new(
        recorder: SharedRecorder,
        idle_gauges: IdleGauges,
        prefix: Prefix,
        scrape_max_bytes: usize,
    ) -> Self {
        let room = Arc::new(Room::new(scrape_max_bytes));
        Self { recorder, idle_gauges, prefix, room, labels: BTreeMap::new() }
    }

    pub(super) fn room(&self) -> &Room {
        &self.room
    }

    fn label(&mut self, name: &'static str) -> Arc<LabelValues> {
        self.labels.entry(name).or_insert_with(|| Arc::new(LabelValues::new(name))).clone()
    }

    fn describe(&self, definition: &Definition) {
        let name = definition.full_name(&self.prefix).into();
        let help = definition.help.into();
        let unit = match definition.unit {
            Unit::Count => Some(::metrics::Unit::Count),
            Unit::Seconds => Some(::metrics::Unit::Seconds),
            Unit::Bytes => Some(::metrics::Unit::Bytes),
            // A recorder that appends units to names would break the contract
            // names, and knows no ratio.
            Unit::Milliseconds | Unit::Ratio => None,
        };
        match definition.kind {
            Kind::Counter => self.recorder.describe_counter(name, unit, help),
            Kind::Gauge => self.recorder.describe_gauge(name, unit, help),
            Kind::Histogram => self.recorder.describe_histogram(name, unit, help),
        }
    }
}

/// What a family keeps for one combination of label values.
pub(crate) trait Kept: Clone {
    fn make(recorder: &SharedRecorder, idle_gauges: IdleGauges, key: Key) -> Self;
}

impl Kept for Counter {
    fn make(recorder: &SharedRecorder, _: IdleGauges, key: Key) -> Self {
        recorder.register_counter(&key, &METADATA)
    }
}

impl Kept for Histogram {
    fn make(recorder: &SharedRecorder, _: IdleGauges, key: Key) -> Self {
        recorder.register_histogram(&key, &METADATA)
    }
}

/// How a gauge is come by.
#[derive(Clone)]
pub(super) enum KeptGauge {
    Handle(Gauge),
    AskedFor(Arc<Key>, SharedRecorder),
}

impl Kept for KeptGauge {
    fn make(recorder: &SharedRecorder, idle_gauges: IdleGauges, key: Key) -> Self {
        match idle_gauges {
            IdleGauges::Kept => Self::Handle(recorder.register_gauge(&key, &METADATA)),
            IdleGauges::Dropped => Self::AskedFor(Arc::new(key), Arc::clone(recorder)),
        }
    }
}

impl KeptGauge {
    pub(super) fn set(&self, value: f64) {
        match self {
            Self::Handle(gauge) => gauge.set(value),
            Self::AskedFor(key, recorder) => recorder.register_gauge(key, &METADATA).set(value),
        }
    }
}

struct Family<K, const N: usize> {
    recorder: SharedRecorder,
    idle_gauges: IdleGauges,
    room: Arc<Room>,
    weight: Weight,
    name: SharedString,
    labels: [Arc<LabelValues>; N],
    kept: RwLock<BTreeMap<[u16; N], Series<K>>>,
    /// The one that there is, where there are no labels.
    only: OnceLock<Series<K>>,
}

/// Where a combination of label values is reported.
#[derive(Clone)]
struct Series<K> {
    kept: K,
    /// It is not its own, but the one of what overflows.
    folded: bool,
}

/// The series of one combination of label values, looked up when it is first reported to.
pub(super) struct Looked<K>(OnceLock<Series<K>>);

impl<K> Default for Looked<K> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<K> fmt::Debug for Looked<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looked").finish_non_exhaustive()
    }
}

impl<K, const N: usize> fmt::Debug for Family<K, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<K: Kept, const N: usize> Family<K, N> {
    fn new(source: &mut Source, definition: &'static Definition) -> Self {
        source.describe(definition);
        let family = Self {
            name: definition.full_name(&source.prefix).into(),
            labels: std::array::from_fn(|at| source.label(definition.labels[at])),
            recorder: source.recorder.clone(),
            idle_gauges: source.idle_gauges,
            room: source.room.clone(),
            weight: Weight::of(definition, &source.prefix),
            kept: RwLock::default(),
            only: OnceLock::new(),
        };
        // What overflows must have a place to go, and all is described in any case.
        family.room.take(header(definition, &source.prefix), Need::Always);
        family.room.take(family.weight_of([OVERFLOW; N]), Need::Always);
        family
    }

    /// Reports to the series of `values`.
    fn observe(&self, values: [&str; N], report: impl FnOnce(&K)) {
        if N == 0 {
            self.tell(self.only.get_or_init(|| self.get(values)), report);
        } else {
            self.tell(&self.get(values), report);
        }
    }

    /// The same, where `looked` is of those values.
    fn observe_looked(&self, looked: &Looked<K>, values: [&str; N], report: impl FnOnce(&K)) {
        self.tell(looked.0.get_or_init(|| self.get(values)), report);
    }

    fn tell(&self, series: &Series<K>, report: impl FnOnce(&K)) {
        if series.folded {
            self.room.fold();
        }
        report(&series.kept);
    }

    fn get(&self, values: [&str; N]) -> Series<K> {
        let mut codes = [0; N];
        let mut admitted = [OVERFLOW; N];
        for (at, value) in values.into_iter().enumerate() {
            (codes[at], admitted[at]) = self.labels[at].admit(value);
        }
        let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner).get(&codes).cloned();
        let mut series = kept.unwrap_or_else(|| self.make(codes, admitted));
        series.folded |= admitted != values;
        series
    }

    /// The series of its own of a combination that is new, where there is room for one.
    fn make(&self, codes: [u16; N], values: [&str; N]) -> Series<K> {
        let own = |values| {
            let kept = K::make(&self.recorder, self.idle_gauges, self.key(values));
            Series { kept, folded: false }
        };
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(&codes) {
            return known.clone();
        }
        if codes == [0; N] || self.has_room(kept.len(), values) {
            return kept.entry(codes).or_insert_with(|| own(values)).clone();
        }
        let overflow = kept.entry([0; N]).or_insert_with(|| own([OVERFLOW; N])).clone();
        let series = Series { folded: true, ..overflow };
        if kept.len() <= SERIES_MAX {
            // The next observation of it finds this without a lock that others wait for.
            kept.insert(codes, series.clone());
        }
        series
    }

    /// Whether one more may have a series of its own, where `known` are kept in mind.
    fn has_room(&self, known: usize, values: [&str; N]) -> bool {
        known < SERIES_MAX && self.room.take(self.weight_of(values), self.weight.need())
    }

    fn weight_of(&self, values: [&str; N]) -> usize {
        let names = self.labels.iter().map(|label| label.name);
        self.weight.with(names.zip(values.map(printable).iter().map(AsRef::as_ref)))
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

/// `value` without what would drive the terminal of somebody who looks at a scrape.
pub(super) fn printable(value: &str) -> Cow<'_, str> {
    if value.contains(is_unprintable) {
        value.replace(is_unprintable, "?").into()
    } else {
        value.into()
    }
}

/// A counter with `N` labels.
#[derive(Debug)]
pub(crate) struct Counters<const N: usize>(Family<Counter, N>);

impl<const N: usize> Counters<N> {
    pub(crate) fn new(source: &mut Source, definition: &'static Definition) -> Self {
        let family = Self(Family::new(source, definition));
        if N == 0 {
            family.expect([OVERFLOW; N]);
        }
        family
    }

    pub(crate) fn count(&self, labels: [&str; N]) {
        self.add(labels, 1);
    }

    pub(crate) fn add(&self, labels: [&str; N], more: u64) {
        self.0.observe(labels, |counter| counter.increment(more));
    }

    /// As [`Counters::count`], where `looked` is of these labels.
    pub(super) fn count_looked(&self, looked: &Looked<Counter>, labels: [&str; N]) {
        self.0.observe_looked(looked, labels, |counter| counter.increment(1));
    }

    /// Has the series exported at zero. A counter that first appears at 1 hides
    /// its first event from `increase()`.
    pub(crate) fn expect(&self, labels: [&str; N]) {
        self.0.get(labels).kept.increment(0);
    }

    /// The same, so long as half of the room for series is free.
    pub(super) fn expect_in_half(&self, labels: [&str; N]) {
        if self.0.room.is_half_free() {
            self.expect(labels);
        }
    }

    /// What counts under `labels`.
    pub(super) fn handle(&self, labels: [&str; N]) -> Counter {
        self.0.get(labels).kept
    }
}

/// A histogram with `N` labels.
#[derive(Debug)]
pub(crate) struct Histograms<const N: usize>(Family<Histogram, N>);

impl<const N: usize> Histograms<N> {
    pub(crate) fn new(source: &mut Source, definition: &'static Definition) -> Self {
        let family = Self(Family::new(source, definition));
        if N == 0 {
            // Registered, and so exported empty.
            let _ = family.0.get([OVERFLOW; N]);
        }
        family
    }

    pub(crate) fn record(&self, labels: [&str; N], value: f64) {
        self.0.observe(labels, |histogram| histogram.record(value));
    }

    /// As [`Histograms::record`], where `looked` is of these labels.
    pub(super) fn record_looked(&self, looked: &Looked<Histogram>, labels: [&str; N], value: f64) {
        self.0.observe_looked(looked, labels, |histogram| histogram.record(value));
    }
}

/// A gauge with `N` labels.
#[derive(Debug)]
pub(crate) struct Gauges<const N: usize>(Family<KeptGauge, N>);

impl<const N: usize> Gauges<N> {
    pub(crate) fn new(source: &mut Source, definition: &'static Definition) -> Self {
        Self(Family::new(source, definition))
    }

    pub(crate) fn set(&self, labels: [&str; N], value: f64) {
        self.0.observe(labels, |gauge| gauge.set(value));
    }

    /// As [`Gauges::set`], where `looked` is of these labels.
    pub(super) fn set_looked(&self, looked: &Looked<KeptGauge>, labels: [&str; N], value: f64) {
        self.0.observe_looked(looked, labels, |gauge| gauge.set(value));
    }

    /// How the gauge of `labels` is come by.
    pub(super) fn handle(&self, labels: [&str; N]) -> KeptGauge {
        self.0.get(labels).kept
    }
}
