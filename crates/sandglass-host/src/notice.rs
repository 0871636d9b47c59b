//! Tells people, once and while it happens, that a run has come to its soft deadline, or
//! without one has used most of its budget: traces, metrics and the log. It ends nothing.
//!
//! ```text
//! ticker: it is time --> run: due --> woken, or after its slice --> polled --> tell
//! ```

use std::time::Duration;

use sandglass_model::{DispatchId, Monotonic, TraceContext};
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::DispatchMetrics;
use sandglass_telemetry::trace::names;

use crate::deadline::StartedDeadline;
use crate::functions::Functions;
use crate::run::Run;

/// What is told of one run, and when.
pub(crate) struct Notice<'a> {
    pub(crate) run: &'a Run,
    pub(crate) span: &'a Span,
    pub(crate) metrics: &'a DispatchMetrics,
    pub(crate) functions: &'a Functions,
    pub(crate) deadline: &'a StartedDeadline,
    pub(crate) at: Monotonic,
    pub(crate) about: About<'a>,
}

/// Whose run it is.
pub(crate) struct About<'a> {
    pub(crate) dispatch: DispatchId,
    pub(crate) trace: TraceContext,
    pub(crate) integration: &'a str,
    pub(crate) entity_type: &'a str,
    pub(crate) action: &'a str,
}

impl Notice<'_> {
    /// When the ticker is to wake the run, to tell. A warning that is longer than the budget is
    /// due as the run begins, and told at its first poll: nobody is woken for it.
    pub(crate) fn wakes_at(&self) -> Option<Monotonic> {
        if self.at <= self.deadline.start {
            self.run.notice_is_due();
            return None;
        }
        Some(self.at)
    }

    /// Tells where that is due. It costs a look at a word that the ticker writes.
    #[inline]
    pub(crate) fn tell_if_due(&self, now: impl FnOnce() -> Monotonic) {
        if self.run.takes_notice() {
            self.tell(now());
        }
    }

    /// The run was off the CPU at `off_cpu`: tells what it had no occasion to tell before.
    pub(crate) fn close(&self, off_cpu: Monotonic) {
        if off_cpu >= self.at && self.run.ends_notices() {
            self.tell(off_cpu);
        }
    }

    #[cold]
    fn tell(&self, now: Monotonic) {
        let (doing, _) = self.run.present.look(self.functions);
        let running = doing.as_str();
        let budget_ms = self.deadline.budget_ms();
        let elapsed_ms = whole_ms(now.since(self.deadline.start));
        let left = self.deadline.at.since(self.at);
        self.span.event(
            names::SOFT_DEADLINE_PASSED,
            &[
                (names::RUNNING, running.into()),
                (names::ELAPSED_MS, elapsed_ms.into()),
                (names::BUDGET_MS, budget_ms.into()),
                (names::SOFT_BEFORE_MS, whole_ms(left).into()),
            ],
        );
        let About { dispatch, trace, integration, entity_type, action } = &self.about;
        self.metrics.soft_deadline_passed();
        let TraceContext { trace_id, span_id, .. } = trace;
        tracing::warn!(
            %dispatch, %trace_id, %span_id, integration, entity_type, action, running, elapsed_ms, budget_ms,
            "the handler still runs, in {running}, {elapsed_ms} ms into its budget of {budget_ms} ms"
        );
    }
}

fn whole_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
