//! Receives the host's own metrics, as an embedder's recorder does: its gauges, and how late each
//! of its ticks was.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use sandglass_telemetry::{Metrics, Prefix, Telemetry};

use crate::timing::Samples;

/// The end of the name of the histogram that records how late ticks were.
const LATENESS: &str = "wasm_epoch_tick_lateness_seconds";

/// The metrics that a host reported.
#[derive(Clone, Default)]
pub(crate) struct HostMetrics {
    /// By name. The host has a fixed table of gauges, so there are few.
    gauges: Arc<Mutex<BTreeMap<String, Arc<AtomicU64>>>>,
    lateness: Arc<Lateness>,
}

#[derive(Default)]
struct Lateness(Mutex<Samples>);

impl HostMetrics {
    /// Telemetry that reports to this recorder.
    pub(crate) fn telemetry(&self) -> Telemetry {
        let metrics = Metrics::new(Arc::new(self.clone()), &Prefix::default());
        Telemetry { metrics, ..Telemetry::disabled() }
    }

    /// The gauge whose name ends with `name`; zero if it was never set.
    pub(crate) fn gauge(&self, name: &str) -> f64 {
        let gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        let found = gauges.iter().find(|(key, _)| key.ends_with(name));
        found.map_or(0.0, |(_, bits)| f64::from_bits(bits.load(Ordering::Acquire)))
    }

    /// Takes the lateness of all ticks since the previous call.
    pub(crate) fn take_lateness(&self) -> Samples {
        mem::take(&mut *self.lateness.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl fmt::Debug for HostMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMetrics").finish_non_exhaustive()
    }
}

impl HistogramFn for Lateness {
    fn record(&self, seconds: f64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seconds * 1e9);
    }
}

impl Recorder for HostMetrics {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.gauges.lock().unwrap_or_else(PoisonError::into_inner);
        Gauge::from_arc(Arc::clone(gauges.entry(key.name().to_owned()).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        if key.name().ends_with(LATENESS) {
            Histogram::from_arc(Arc::clone(&self.lateness))
        } else {
            Histogram::noop()
        }
    }
}
