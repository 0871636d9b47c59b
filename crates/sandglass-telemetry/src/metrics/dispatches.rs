//! Metrics about dispatches and host calls. Their series are looked up once for all observations with
//! equal labels, because these are the most frequent ones.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Counter, Histogram};
use sandglass_model::OutcomeKind;

use super::family::{CachedSeries, GaugeHandle};
use super::{Metrics, millis};

/// The metrics of the handlers of one action of one entity type. Cheap to clone; the
/// default reports nowhere.
#[derive(Clone, Default)]
pub struct DispatchMetrics(Option<Arc<Dispatches>>);

#[derive(Default)]
struct Dispatches {
    metrics: Metrics,
    entity_type: Box<str>,
    action: Box<str>,
    queue_wait: CachedSeries<Histogram>,
    deadline_remaining_ms: CachedSeries<GaugeHandle>,
    deadline_remaining: CachedSeries<Histogram>,
    completed: CachedSeries<Counter>,
    duration: CachedSeries<Histogram>,
    budget_used: CachedSeries<Histogram>,
    peak_memory: CachedSeries<Histogram>,
}

/// How a dispatch ended, in figures.
#[derive(Clone, Copy, Debug)]
pub struct DispatchEnded {
    /// How it ended.
    pub outcome: OutcomeKind,
    /// The budget that it had.
    pub budget: Duration,
    /// From when its guest was permitted to start to its end.
    pub duration: Duration,
    /// From its deadline to its end; only used if it timed out.
    pub overrun: Duration,
}

impl Metrics {
    /// The metrics of handlers of `action` of `entity_type`. Cache them if there are many.
    #[must_use]
    pub fn dispatch_metrics(&self, entity_type: &str, action: &str) -> DispatchMetrics {
        DispatchMetrics(self.is_enabled().then(|| {
            Arc::new(Dispatches {
                metrics: self.clone(),
                entity_type: entity_type.into(),
                action: action.into(),
                ..Dispatches::default()
            })
        }))
    }

    /// The metric of host calls of `function`. Cache it if there are many.
    #[must_use]
    pub fn host_call_metrics(&self, function: &str) -> HostCallMetrics {
        HostCallMetrics {
            metrics: self.clone(),
            function: function.into(),
            cache: CachedSeries::default(),
        }
    }
}

impl DispatchMetrics {
    /// A dispatch waited for `wait` until its guest was permitted to start.
    pub fn queue_wait(&self, wait: Duration) {
        let Some((of, families)) = self.families() else { return };
        families.queue_wait.report_cached(&of.queue_wait, [&of.entity_type], wait.as_secs_f64());
    }

    /// A guest is permitted to start, with `remaining` of its budget.
    pub fn started(&self, remaining: Duration) {
        let Some((of, families)) = self.families() else { return };
        let labels = of.labels();
        families.deadline_remaining_ms.report_cached(
            &of.deadline_remaining_ms,
            labels,
            millis(remaining),
        );
        families.deadline_remaining.report_cached(
            &of.deadline_remaining,
            labels,
            remaining.as_secs_f64(),
        );
    }

    /// A dispatch has ended.
    pub fn ended(&self, ended: &DispatchEnded) {
        let Some((of, families)) = self.families() else { return };
        let DispatchEnded { outcome, budget, duration, overrun } = *ended;
        let (labels, outcomes) = (of.labels(), [&*of.entity_type, &*of.action, outcome.as_str()]);
        families.duration.report_cached(&of.duration, labels, duration.as_secs_f64());
        if outcome == OutcomeKind::Completed {
            families.dispatches.report_cached(&of.completed, outcomes, 1);
            if !budget.is_zero() {
                let used = duration.as_secs_f64() / budget.as_secs_f64();
                families.budget_used.report_cached(&of.budget_used, labels, used);
            }
            return;
        }
        families.dispatches.count(outcomes);
        if outcome == OutcomeKind::TimedOut {
            families.overrun.report(labels, overrun.as_secs_f64());
        }
    }

    /// The largest linear memory of a handler had `bytes`.
    pub fn memory_peak(&self, bytes: u64) {
        let Some((of, families)) = self.families() else { return };
        families.peak_memory.report_cached(&of.peak_memory, [&of.entity_type], bytes as f64);
    }

    /// A handler was killed at its deadline, in `dying_span`.
    pub fn deadline_exceeded(&self, dying_span: &str) {
        let Some((of, families)) = self.families() else { return };
        families.deadline_exceeded.count([&of.entity_type, &of.action, dying_span]);
    }

    /// A kill took `latency` from the deadline until the guest was off the CPU.
    pub fn kill_latency(&self, latency: Duration) {
        let Some((of, families)) = self.families() else { return };
        families.kill_latency_ms.report([&of.entity_type], millis(latency));
    }

    /// A handler was in flight at its soft deadline, or, if it declares none, when it had used the default
    /// share of its budget.
    pub fn soft_deadline_passed(&self) {
        let Some((of, families)) = self.families() else { return };
        families.soft_deadlines.count(of.labels());
    }

    #[inline]
    fn families(&self) -> Option<(&Dispatches, &crate::table::Families)> {
        let of = self.0.as_deref()?;
        Some((of, of.metrics.families()?))
    }
}

impl Dispatches {
    fn labels(&self) -> [&str; 2] {
        [&self.entity_type, &self.action]
    }
}

impl fmt::Debug for DispatchMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels = self.0.as_ref().map(|of| of.labels());
        f.debug_tuple("DispatchMetrics").field(&labels).finish()
    }
}

/// The metric of host calls of one function.
#[derive(Debug)]
pub struct HostCallMetrics {
    metrics: Metrics,
    function: Box<str>,
    cache: CachedSeries<Histogram>,
}

impl HostCallMetrics {
    /// A call took `time`.
    #[inline]
    pub fn took(&self, time: Duration) {
        let Some(families) = self.metrics.families() else { return };
        families.host_call.report_cached(&self.cache, [&self.function], time.as_secs_f64());
    }
}
