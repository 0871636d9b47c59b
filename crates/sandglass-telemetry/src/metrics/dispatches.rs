//! What is measured of every dispatch and every host call: with its series looked up once
//! for all of the same labels, and not for each observation.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Counter, Histogram};
use sandglass_model::OutcomeKind;

use super::family::{KeptGauge, Looked};
use super::{Metrics, millis};

/// The metrics of the handlers of one action of one entity type. Cheap to clone; the
/// default reports nowhere.
#[derive(Clone, Default)]
pub struct DispatchMetrics(Option<Arc<Dispatches>>);

struct Dispatches {
    metrics: Metrics,
    entity_type: Box<str>,
    action: Box<str>,
    queue_wait: Looked<Histogram>,
    deadline_remaining_ms: Looked<KeptGauge>,
    deadline_remaining: Looked<Histogram>,
    completed: Looked<Counter>,
    duration: Looked<Histogram>,
    budget_used: Looked<Histogram>,
    peak_memory: Looked<Histogram>,
}

/// How a dispatch ended, in figures.
#[derive(Clone, Copy, Debug)]
pub struct DispatchEnded {
    /// How it ended.
    pub outcome: OutcomeKind,
    /// The budget that it had.
    pub budget: Duration,
    /// From when its guest might run to its end.
    pub duration: Duration,
    /// From its deadline to its end; only looked at where it timed out.
    pub overrun: Duration,
}

impl Metrics {
    /// The metrics of handlers of `action` of `entity_type`: to be kept where there are many.
    #[must_use]
    pub fn dispatch_metrics(&self, entity_type: &str, action: &str) -> DispatchMetrics {
        DispatchMetrics(self.is_enabled().then(|| {
            Arc::new(Dispatches {
                metrics: self.clone(),
                entity_type: entity_type.into(),
                action: action.into(),
                queue_wait: Looked::default(),
                deadline_remaining_ms: Looked::default(),
                deadline_remaining: Looked::default(),
                completed: Looked::default(),
                duration: Looked::default(),
                budget_used: Looked::default(),
                peak_memory: Looked::default(),
            })
        }))
    }

    /// The metric of host calls of `function`: to be kept where there are many.
    #[must_use]
    pub fn host_call_metrics(&self, function: &str) -> HostCallMetrics {
        HostCallMetrics {
            metrics: self.clone(),
            function: function.into(),
            looked: Looked::default(),
        }
    }
}

impl DispatchMetrics {
    /// A dispatch waited for `wait` until its guest might run.
    pub fn queue_wait(&self, wait: Duration) {
        let Some((of, families)) = self.looked() else { return };
        families.queue_wait.record_looked(&of.queue_wait, [&of.entity_type], wait.as_secs_f64());
    }

    /// A guest may run now, with `remaining` of its budget.
    pub fn started(&self, remaining: Duration) {
        let Some((of, families)) = self.looked() else { return };
        let labels = of.labels();
        families.deadline_remaining_ms.set_looked(
            &of.deadline_remaining_ms,
            labels,
            millis(remaining),
        );
        families.deadline_remaining.record_looked(
            &of.deadline_remaining,
            labels,
            remaining.as_secs_f64(),
        );
    }

    /// A dispatch has ended.
    pub fn ended(&self, ended: &DispatchEnded) {
        let Some((of, families)) = self.looked() else { return };
        let DispatchEnded { outcome, budget, duration, overrun } = *ended;
        let (labels, outcomes) = (of.labels(), [&*of.entity_type, &*of.action, outcome.as_str()]);
        families.duration.record_looked(&of.duration, labels, duration.as_secs_f64());
        if outcome == OutcomeKind::Completed {
            families.dispatches.count_looked(&of.completed, outcomes);
            if !budget.is_zero() {
                let used = duration.as_secs_f64() / budget.as_secs_f64();
                families.budget_used.record_looked(&of.budget_used, labels, used);
            }
            return;
        }
        families.dispatches.count(outcomes);
        if outcome == OutcomeKind::TimedOut {
            families.overrun.record(labels, overrun.as_secs_f64());
        }
    }

    /// A handler had at most `bytes` of linear memory.
    pub fn memory_peak(&self, bytes: u64) {
        let Some((of, families)) = self.looked() else { return };
        families.peak_memory.record_looked(&of.peak_memory, [&of.entity_type], bytes as f64);
    }

    /// A handler was killed at its deadline, in `dying_span`.
    pub fn deadline_exceeded(&self, dying_span: &str) {
        let Some((of, families)) = self.looked() else { return };
        families.deadline_exceeded.count([&of.entity_type, &of.action, dying_span]);
    }

    /// A kill took `latency` from the deadline to the guest off the CPU.
    pub fn kill_latency(&self, latency: Duration) {
        let Some((of, families)) = self.looked() else { return };
        families.kill_latency_ms.record([&of.entity_type], millis(latency));
    }

    /// A handler was still running at its soft deadline, or without one when it had used the
    /// share of its budget at which that is told.
    pub fn soft_deadline_passed(&self) {
        let Some((of, families)) = self.looked() else { return };
        families.soft_deadlines.count(of.labels());
    }

    #[inline]
    fn looked(&self) -> Option<(&Dispatches, &crate::table::Families)> {
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
    looked: Looked<Histogram>,
}

impl HostCallMetrics {
    /// A call took `time`.
    #[inline]
    pub fn took(&self, time: Duration) {
        let Some(families) = self.metrics.families() else { return };
        families.host_call.record_looked(&self.looked, [&self.function], time.as_secs_f64());
    }
}
