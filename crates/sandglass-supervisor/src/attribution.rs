//! Describes in traces and in the log how a run ended.

use sandglass_model::{Outcome, RunReport, TraceContext};
use sandglass_telemetry::Span;
use sandglass_telemetry::trace::names;

use crate::node::Work;

/// Completes the span of a run, and logs what an operator should see.
pub fn describe(span: &Span, report: &RunReport, work: &Work) {
    if span.is_recorded() {
        complete(span, report);
        if matches!(work, Work::Invoke(_))
            && let Some((kind, limit, observed)) = breach(&report.outcome)
        {
            span.set(&[
                (names::CAP_KIND, kind.into()),
                (names::CAP_LIMIT, limit.into()),
                // As in the event of the breach: a guest may end just at its limit.
                (names::CAP_OBSERVED, observed.max(limit.saturating_add(1)).into()),
            ]);
        }
    }
    let dispatch = report.dispatch_id;
    let TraceContext { trace_id, span_id, .. } = report.trace;
    match &report.outcome {
        Outcome::Completed(_) => {}
        Outcome::TimedOut(exceeded) => {
            span.error(names::HANDLER_DEADLINE_EXCEEDED, &exceeded.to_string());
            tracing::warn!(%dispatch, %trace_id, %span_id, overrun_us = exceeded.overrun_us, "{exceeded}");
        }
        other => {
            let Some((kind, message)) = other.error() else { return };
            span.error(&kind, &message);
            tracing::info!(%dispatch, %trace_id, %span_id, outcome = %other.kind(), kind, "handler ended: {message}");
        }
    }
}

fn complete(span: &Span, report: &RunReport) {
    span.set(&[
        (names::OUTCOME, report.outcome.kind().as_str().into()),
        (names::BUDGET_MS, report.deadline.budget_ms.into()),
        (names::ELAPSED_MS, report.deadline.elapsed_ms.into()),
        (names::OVERRUN_US, report.deadline.overrun_us.into()),
        (names::DEADLINE_OWNER, report.deadline.owner.as_str().into()),
    ]);
    if let Some(module) = report.module {
        span.set(&[(names::MODULE_HASH, module.to_string().as_str().into())]);
    }
    if let Some(dying_span) = &report.dying_span {
        span.set(&[(names::DYING_SPAN, dying_span.as_str().into())]);
    }
}

/// The limit of OpenWOP that a node of a pack breached, if it did, its value, and what was observed.
fn breach(outcome: &Outcome) -> Option<(&'static str, u64, u64)> {
    match outcome {
        // The names of limits are those that node packs have for them.
        Outcome::Limit(breach) => Some((breach.kind.as_str(), breach.limit, breach.observed)),
        Outcome::TimedOut(exceeded) => {
            Some(("wasm-execution-time", exceeded.budget_ms, exceeded.elapsed_ms))
        }
        _ => None,
    }
}
