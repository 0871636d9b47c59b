//! The metrics of Sandglass as typed methods, one for each event.
//!
//! They report to a recorder that is handed in and not to the process's global
//! one, so that several hosts in one process don't mix.

mod dispatches;
mod expected;
mod family;
mod guest;
mod level;
mod openwop;
mod room;
mod sessions;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit, with_recorder,
};
use sandglass_model::OutcomeKind;

use crate::table::{Families, Prefix};
pub use dispatches::{DispatchEnded, DispatchMetrics, HostCallMetrics};
pub use expected::{ExpectedEvents, ExpectedSessionEvents};
pub(crate) use family::{Counters, Gauges, Histograms, IdleGauges, Source};
pub use family::{LABEL_VALUE_MAX_BYTES, LABEL_VALUES_MAX, OVERFLOW, SERIES_MAX};
use guest::GuestMetrics;
pub use guest::{GuestKind, GuestMetric};
use level::Levels;
pub use level::{Level, LevelGuard, ScopedLevelGuard};
pub use openwop::OpenwopRefusal;
pub use room::SCRAPE_MAX_BYTES;
pub use sessions::{CancelTarget, ResumedBy};

/// Takes what is measured, and reports it. Cheap to clone; the default reports
/// nowhere.
#[derive(Clone, Default)]
pub struct Metrics(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    families: Families,
    levels: Levels,
    guests: GuestMetrics,
}

/// Why a host refuses to take a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The journal takes no appends.
    JournalUnavailable,
    /// The epoch ticker is dead or stalled.
    TickerUnhealthy,
    /// Too many dispatches are waiting in the host.
    QueueFull,
    /// Too many of the integration are waiting.
    IntegrationQueueFull,
    /// Too many of the tenant are waiting.
    TenantQueueFull,
    /// Too many handlers are waiting in asks for one more ask.
    AskingFull,
    /// It didn't get a place in time.
    QueueTimeout,
    /// The host is shutting down.
    ShuttingDown,
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::JournalUnavailable,
        Self::TickerUnhealthy,
        Self::QueueFull,
        Self::IntegrationQueueFull,
        Self::TenantQueueFull,
        Self::AskingFull,
        Self::QueueTimeout,
        Self::ShuttingDown,
    ];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::JournalUnavailable => "journal_unavailable",
            Self::TickerUnhealthy => "ticker_unhealthy",
            Self::QueueFull => "queue_full",
            Self::IntegrationQueueFull => "integration_queue_full",
            Self::TenantQueueFull => "tenant_queue_full",
            Self::AskingFull => "asking_full",
            Self::QueueTimeout => "queue_timeout",
            Self::ShuttingDown => "shutting_down",
        }
    }
}

/// What was found where compiled code is kept on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompiledCode {
    /// The code, as it was written.
    Hit,
    /// Nothing.
    Miss,
    /// Something that isn't as it was written, or is somebody else's.
    Unusable,
}

impl CompiledCode {
    /// The value of the label `found`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
            Self::Unusable => "unusable",
        }
    }
}

/// Why spans were not exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpansDropped {
    /// As many as may wait did.
    QueueFull,
    /// The collector didn't take them.
    NotTaken,
}

impl SpansDropped {
    const ALL: [Self; 2] = [Self::QueueFull, Self::NotTaken];

    /// The value of the label `reason`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NotTaken => "not_taken",
        }
    }
}

/// Something that a guest told and that went over its bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedTelemetry {
    /// A span.
    Span,
    /// An event of a span.
    SpanEvent,
    /// An attribute of a span or event.
    Attribute,
    /// An observation of a metric.
    Metric,
    /// A label of a metric.
    Label,
    /// A line of the log, or a wide event.
    LogLine,
    /// A span of a host call, which its run has beyond those that are recorded.
    HostCallSpan,
}

impl DroppedTelemetry {
    /// The value of the label `what`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Span => "span",
            Self::SpanEvent => "span_event",
            Self::Attribute => "attribute",
            Self::Metric => "metric",
            Self::Label => "label",
            Self::LogLine => "log_line",
            Self::HostCallSpan => "host_call_span",
        }
    }
}

/// Whether something that dispatch depends on works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Healthy,
    /// It doesn't, and dispatch is refused.
    Unhealthy,
}

impl Health {
    const fn as_gauge(self) -> f64 {
        match self {
            Self::Healthy => 1.0,
            Self::Unhealthy => 0.0,
        }
    }
}

impl Metrics {
    /// Reports to `recorder`, with names that begin with `prefix`.
    ///
    /// Handles of counters and histograms are kept, so a recorder with an idle
    /// timeout must apply it to gauges only.
    #[must_use]
    pub fn new(recorder: Arc<dyn Recorder + Send + Sync>, prefix: &Prefix) -> Self {
        Self::with_scrape_limit(recorder, prefix, SCRAPE_MAX_BYTES)
    }

    /// The same, where a scrape may have `scrape_max_bytes`. What is exported in any case
    /// takes about 32 KiB, and is exported where less is given, too.
    #[must_use]
    pub fn with_scrape_limit(
        recorder: Arc<dyn Recorder + Send + Sync>,
        prefix: &Prefix,
        scrape_max_bytes: usize,
    ) -> Self {
        Self::of_recorder(recorder, IdleGauges::Dropped, prefix, scrape_max_bytes)
    }

    /// The same, where it is known what becomes of idle gauges.
    pub(crate) fn of_recorder(
        recorder: Arc<dyn Recorder + Send + Sync>,
        idle_gauges: IdleGauges,
        prefix: &Prefix,
        scrape_max_bytes: usize,
    ) -> Self {
        let shared = Arc::clone(&recorder);
        let mut source = Source::new(shared, idle_gauges, prefix.clone(), scrape_max_bytes);
        let families = Families::new(&mut source);
        source.room().count_folded_in(families.folded.handle([]));
        let inner = Inner {
            levels: Levels::new(&families),
            families,
            guests: GuestMetrics::new(recorder, prefix),
        };
        let metrics = Self(Some(Arc::new(inner)));
        metrics.expect_what_has_no_names();
        metrics
    }

    /// Reports to the process's global recorder, which must have been installed
    /// before.
    #[must_use]
    pub fn global(prefix: &Prefix) -> Self {
        Self::new(Arc::new(GlobalRecorder), prefix)
    }

    /// Reports nowhere.
    #[must_use]
    pub fn disabled() -> Self {
        Self::default()
    }

    /// Whether what is measured is reported anywhere.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    #[inline]
    fn families(&self) -> Option<&Families> {
        self.0.as_deref().map(|inner| &inner.families)
    }

    /// A dispatch was found that had been in flight when its host ended.
    pub fn dispatch_interrupted(&self, entity_type: &str, action: &str) {
        let Some(families) = self.families() else { return };
        families.dispatches.count([entity_type, action, OutcomeKind::Interrupted.as_str()]);
    }

    /// A dispatch was refused.
    pub fn dispatch_refused(&self, reason: Refusal) {
        let Some(families) = self.families() else { return };
        families.refused.count([reason.as_str()]);
    }

    /// An ending's action is no longer taken by the entity's state.
    pub fn outcome_superseded(&self, entity_type: &str, action: &str) {
        let Some(families) = self.families() else { return };
        families.superseded.count([entity_type, action]);
    }

    /// A run found no memory left for its recording.
    pub fn recording_refused(&self) {
        let Some(families) = self.families() else { return };
        families.recordings_refused.count([]);
    }

    /// A host call was ended because it took too long.
    pub fn host_call_timed_out(&self, function: &str) {
        let Some(families) = self.families() else { return };
        families.host_call_timeouts.count([function]);
    }

    /// Something that a guest of `integration` told went nowhere.
    pub fn telemetry_dropped(&self, integration: &str, what: DroppedTelemetry) {
        self.telemetry_dropped_many(integration, what, 1);
    }

    /// The same, of so many.
    pub fn telemetry_dropped_many(&self, integration: &str, what: DroppedTelemetry, many: u64) {
        let Some(families) = self.families() else { return };
        families.telemetry_dropped.add([integration, what.as_str()], many);
    }

    /// So many spans were not exported.
    pub fn spans_dropped(&self, reason: SpansDropped, spans: u64) {
        let Some(families) = self.families() else { return };
        families.spans_dropped.add([reason.as_str()], spans);
    }

    /// An integration without a budget of its own was dispatched.
    pub fn default_budget_used(&self, integration: &str) {
        let Some(families) = self.families() else { return };
        families.default_budgets.count([integration]);
    }

    /// A host call of `function` took `time`.
    #[inline]
    pub fn host_call(&self, function: &str, time: Duration) {
        let Some(families) = self.families() else { return };
        families.host_call.record([function], time.as_secs_f64());
    }

    /// Two ticks of the epoch were `interval` apart, while guests ran.
    pub fn tick_interval(&self, interval: Duration) {
        let Some(families) = self.families() else { return };
        families.tick_interval_ms.record([], millis(interval));
    }

    /// A tick came `lateness` later than asked for.
    pub fn tick_lateness(&self, lateness: Duration) {
        let Some(families) = self.families() else { return };
        families.tick_lateness.record([], lateness.as_secs_f64());
    }

    /// Whether the epoch ticker keeps time.
    pub fn ticker_health(&self, health: Health) {
        let Some(families) = self.families() else { return };
        families.ticker_healthy.set([], health.as_gauge());
    }

    /// So many handlers are more than a second past their deadline, and have not ended.
    pub fn kills_overdue(&self, handlers: usize) {
        let Some(families) = self.families() else { return };
        families.kills_overdue.set([], u32::try_from(handlers).unwrap_or(u32::MAX).into());
    }

    /// The pool has `slots` instance slots, of which `in_use` are taken.
    pub fn pool(&self, in_use: usize, slots: usize) {
        let Some(families) = self.families() else { return };
        families.pool_slots_in_use.set([], in_use as f64);
        families.pool_slots.set([], slots as f64);
    }

    /// A module was compiled in `time`.
    pub fn module_compiled(&self, time: Duration) {
        let Some(families) = self.families() else { return };
        families.compile.record([], time.as_secs_f64());
    }

    /// Compiled code was looked for on disk.
    pub fn compiled_code(&self, found: CompiledCode) {
        let Some(families) = self.families() else { return };
        families.compiled_code.count([found.as_str()]);
    }

    /// An append was durable after `time`.
    pub fn journal_append(&self, time: Duration) {
        let Some(families) = self.families() else { return };
        families.journal_append.record([], time.as_secs_f64());
    }

    /// An append failed.
    pub fn journal_append_failed(&self) {
        let Some(families) = self.families() else { return };
        families.journal_append_failures.count([]);
    }

    /// Whether the journal takes appends.
    pub fn journal_health(&self, health: Health) {
        let Some(families) = self.families() else { return };
        families.journal_available.set([], health.as_gauge());
    }

    /// An entity took a transition.
    pub fn transition(&self, entity_type: &str, action: &str) {
        let Some(families) = self.families() else { return };
        families.transitions.count([entity_type, action]);
    }

    /// A state timer fired.
    pub fn state_timeout(&self, entity_type: &str, state: &str) {
        let Some(families) = self.families() else { return };
        families.state_timeouts.count([entity_type, state]);
    }

    /// A signal was dropped because the entity's mailbox was full.
    pub fn signal_dropped(&self, entity_type: &str) {
        let Some(families) = self.families() else { return };
        families.signals_dropped.count([entity_type]);
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

/// Passes on to whatever recorder the process has installed.
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
