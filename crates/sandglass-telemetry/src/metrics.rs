//! The metrics of Sandglass as typed methods, one for each event.
//!
//! They report to a given recorder instead of the global one of the process, so that several hosts in
//! one process do not mix.

mod cluster;
mod dispatches;
mod expected;
mod family;
mod guest;
mod labels;
mod level;
mod openwop;
mod scrape_size;
mod sessions;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_recorder,
};
use sandglass_model::{OutcomeKind, SpawnObstacle};

use crate::table::{Families, Prefix};
pub use dispatches::{DispatchEnded, DispatchMetrics, HostCallMetrics};
pub use expected::{ExpectedEvents, ExpectedSessionEvents};
pub(crate) use family::{Counters, Gauges, Histograms, IdleGauges, Source};
pub use family::{LABEL_VALUE_MAX_BYTES, LABEL_VALUES_MAX, OVERFLOW, SERIES_MAX};
use guest::GuestMetrics;
pub use guest::{GuestKind, GuestMetric};
pub(crate) use labels::named;
pub use labels::{
    CancelTarget, ClaimReason, CompiledCode, DroppedTelemetry, ForwardOutcome, Health,
    OpenwopRefusal, Refusal, RequestFailure, ResumedBy, SpansDropped,
};
use level::Levels;
pub use level::{Level, LevelGuard, ScopedLevelGuard};
pub use scrape_size::SCRAPE_MAX_BYTES;

/// Reports measurements. Cheap to clone; the default reports nowhere.
#[derive(Clone, Default)]
pub struct Metrics(Option<Arc<Inner>>);

struct Inner {
    families: Families,
    levels: Levels,
    guests: GuestMetrics,
}

impl Metrics {
    /// Reports to `recorder`, with names that begin with `prefix`.
    ///
    /// Handles of counters and histograms are cached, so a recorder with an idle timeout must apply it
    /// to gauges only.
    #[must_use]
    pub fn new(recorder: Arc<dyn Recorder + Send + Sync>, prefix: &Prefix) -> Self {
        Self::with_recorder(recorder, IdleGauges::Dropped, prefix, SCRAPE_MAX_BYTES)
    }

    pub(crate) fn with_recorder(
        recorder: Arc<dyn Recorder + Send + Sync>,
        idle_gauges: IdleGauges,
        prefix: &Prefix,
        scrape_max_bytes: usize,
    ) -> Self {
        let shared = Arc::clone(&recorder);
        let mut source = Source::new(shared, idle_gauges, prefix.clone(), scrape_max_bytes);
        let families = Families::new(&mut source);
        source.scrape_size.count_folded_in(families.folded.handle([]));
        let inner = Inner {
            levels: Levels::new(&families),
            families,
            guests: GuestMetrics::new(recorder, prefix),
        };
        let metrics = Self(Some(Arc::new(inner)));
        metrics.expect_known_events();
        metrics
    }

    /// Reports to the global recorder of the process, which must already be installed.
    #[must_use]
    pub fn global(prefix: &Prefix) -> Self {
        Self::new(Arc::new(GlobalRecorder), prefix)
    }

    /// Reports nowhere.
    #[must_use]
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Whether measurements are reported anywhere.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    fn families(&self) -> Option<&Families> {
        self.0.as_deref().map(|inner| &inner.families)
    }

    #[inline]
    fn report(&self, report: impl FnOnce(&Families)) {
        if let Some(families) = self.families() {
            report(families);
        }
    }

    /// A dispatch was found that had been in flight when its host ended.
    pub fn dispatch_interrupted(&self, entity_type: &str, action: &str) {
        let outcome = OutcomeKind::Interrupted.as_str();
        self.report(|families| families.dispatches.count([entity_type, action, outcome]));
    }

    /// A dispatch was refused.
    pub fn dispatch_refused(&self, reason: Refusal) {
        self.report(|families| families.refused.count([reason.as_str()]));
    }

    /// An entity was not spawned.
    pub fn spawn_refused(&self, reason: SpawnObstacle) {
        self.report(|families| families.spawns_refused.count([reason.as_str()]));
    }

    /// The entity's state no longer takes the action of an ending.
    pub fn outcome_superseded(&self, entity_type: &str, action: &str) {
        self.report(|families| families.superseded.count([entity_type, action]));
    }

    /// There was no memory left to record a handler.
    pub fn recording_refused(&self) {
        self.report(|families| families.recordings_refused.count([]));
    }

    /// A host call of `function` waited for the lease of its host for `time` before it began, or its
    /// handler ended.
    pub fn host_call_parked(&self, function: &str, time: Duration) {
        self.report(|families| families.host_call_parked.report([function], time.as_secs_f64()));
    }

    /// A host call was ended because it took too long.
    pub fn host_call_timed_out(&self, function: &str) {
        self.report(|families| families.host_call_timeouts.count([function]));
    }

    /// Telemetry of a guest of `integration` was dropped.
    pub fn telemetry_dropped(&self, integration: &str, what: DroppedTelemetry) {
        self.telemetry_dropped_many(integration, what, 1);
    }

    /// As [`Metrics::telemetry_dropped`], `count` times.
    pub fn telemetry_dropped_many(&self, integration: &str, what: DroppedTelemetry, count: u64) {
        self.report(|families| {
            families.telemetry_dropped.report([integration, what.as_str()], count)
        });
    }

    /// `count` spans were not exported.
    pub fn spans_dropped(&self, reason: SpansDropped, count: u64) {
        self.report(|families| families.spans_dropped.report([reason.as_str()], count));
    }

    /// An integration that declares no budget was dispatched.
    pub fn default_budget_used(&self, integration: &str) {
        self.report(|families| families.default_budgets.count([integration]));
    }

    /// A host call of `function` took `time`.
    #[inline]
    pub fn host_call(&self, function: &str, time: Duration) {
        self.report(|families| families.host_call.report([function], time.as_secs_f64()));
    }

    /// Two epoch ticks were `interval` apart while guests were executing.
    pub fn tick_interval(&self, interval: Duration) {
        self.report(|families| families.tick_interval_ms.report([], millis(interval)));
    }

    /// A tick came `lateness` after its scheduled time.
    pub fn tick_lateness(&self, lateness: Duration) {
        self.report(|families| families.tick_lateness.report([], lateness.as_secs_f64()));
    }

    /// Whether the epoch ticker keeps time.
    pub fn ticker_health(&self, health: Health) {
        self.report(|families| families.ticker_healthy.report([], health.as_gauge()));
    }

    /// The number of handlers that are more than a second past their deadline and have not ended.
    pub fn kills_overdue(&self, handlers: usize) {
        self.report(|families| families.kills_overdue.report([], handlers as f64));
    }

    /// The pool has `slots` instance slots, of which `in_use` are taken.
    pub fn pool(&self, in_use: usize, slots: usize) {
        self.report(|families| {
            families.pool_slots_in_use.report([], in_use as f64);
            families.pool_slots.report([], slots as f64);
        });
    }

    /// A module was compiled in `time`.
    pub fn module_compiled(&self, time: Duration) {
        self.report(|families| families.compile.report([], time.as_secs_f64()));
    }

    /// Compiled code was looked up on disk.
    pub fn compiled_code(&self, found: CompiledCode) {
        self.report(|families| families.compiled_code.count([found.as_str()]));
    }

    /// An append was durable after `time`.
    pub fn journal_append(&self, time: Duration) {
        self.report(|families| families.journal_append.report([], time.as_secs_f64()));
    }

    /// An append failed.
    pub fn journal_append_failed(&self) {
        self.report(|families| families.journal_append_failures.count([]));
    }

    /// The outcomes of `appends` to a database were unknown until they were looked up.
    pub fn journal_commits_unknown(&self, appends: u64) {
        self.report(|families| families.journal_unknown_commits.report([], appends));
    }

    /// A database has lost so many `records` that it had acknowledged.
    pub fn journal_records_lost(&self, records: u64) {
        self.report(|families| families.journal_lost_records.report([], records));
    }

    /// All records of the journal up to `position` have been checked.
    pub fn journal_checked(&self, position: u64) {
        #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
        self.report(|families| families.journal_checked_position.report([], position as f64));
    }

    /// Whether the journal takes appends.
    pub fn journal_health(&self, health: Health) {
        self.report(|families| families.journal_available.report([], health.as_gauge()));
    }

    /// An entity took a transition.
    pub fn transition(&self, entity_type: &str, action: &str) {
        self.report(|families| families.transitions.count([entity_type, action]));
    }

    /// A state timer fired.
    pub fn state_timeout(&self, entity_type: &str, state: &str) {
        self.report(|families| families.state_timeouts.count([entity_type, state]));
    }

    /// A signal was dropped because the entity's mailbox was full.
    pub fn signal_dropped(&self, entity_type: &str) {
        self.report(|families| families.signals_dropped.count([entity_type]));
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Metrics(enabled)" } else { "Metrics(disabled)" })
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Forwards to the recorder that the process has installed.
struct GlobalRecorder;

impl Recorder for GlobalRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        with_recorder(|recorder| recorder.describe_counter(name, unit, help));
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        with_recorder(|recorder| recorder.describe_gauge(name, unit, help));
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        with_recorder(|recorder| recorder.describe_histogram(name, unit, help));
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        with_recorder(|recorder| recorder.register_counter(key, metadata))
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        with_recorder(|recorder| recorder.register_gauge(key, metadata))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        with_recorder(|recorder| recorder.register_histogram(key, metadata))
    }
}
