//! Notifies people, once and while it happens, that a run has passed its soft deadline or has used
//! most of its budget: in traces, metrics and the log. It ends nothing.
//!
//! ```text
//! ticker: set_notice_due --> run: woken, or its slice ends --> polled --> send
//! ```

use std::time::Duration;

use sandglass_model::{DispatchId, Monotonic, TraceContext};
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::DispatchMetrics;
use sandglass_telemetry::trace::names;

use crate::deadline::StartedDeadline;
use crate::functions::Functions;
use crate::run::Run;

/// The notice about one run.
#[derive(Debug)]
pub struct Notice<'a> {
    /// The handler run.
    pub run: &'a Run,
    /// The span of the run.
    pub span: &'a Span,
    /// Where the notice is counted.
    pub metrics: &'a DispatchMetrics,
    /// The names of host functions.
    pub functions: &'a Functions,
    /// The deadline of the run.
    pub deadline: &'a StartedDeadline,
    /// When the notice is due.
    pub at: Monotonic,
    /// What the log names.
    pub about: About<'a>,
}

/// What the log names.
#[derive(Debug)]
pub struct About<'a> {
    /// The dispatch.
    pub dispatch: DispatchId,
    /// The span of the run.
    pub trace: TraceContext,
    /// The name of the integration.
    pub integration: &'a str,
    /// The type of the entity.
    pub entity_type: &'a str,
    /// The action that was dispatched.
    pub action: &'a str,
}

impl Notice<'_> {
    /// When the ticker wakes the run for the notice. `None` if the notice is due at once, because the
    /// warning is longer than the budget: then the first poll sends it.
    pub fn wakes_at(&self) -> Option<Monotonic> {
        if self.at <= self.deadline.start {
            self.run.set_notice_due();
            return None;
        }
        Some(self.at)
    }

    /// Sends the notice if it is due. Otherwise it costs one atomic load.
    #[inline]
    pub fn send_if_due(&self, now: impl FnOnce() -> Monotonic) {
        if self.run.take_notice() {
            self.send(now());
        }
    }

    /// The run has ended, off the CPU at `off_cpu`. Sends the notice if it was due and is not sent.
    pub fn close(&self, off_cpu: Monotonic) {
        if off_cpu >= self.at && self.run.end_notices() {
            self.send(off_cpu);
        }
    }

    #[cold]
    fn send(&self, now: Monotonic) {
        let (doing, _) = self.run.present.read(self.functions);
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
