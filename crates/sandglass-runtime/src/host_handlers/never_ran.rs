//! The reports of handlers that the host never saw, counted as the host counts.

use std::time::Duration;

use sandglass_host::{Error, Host};
use sandglass_model::report::micros;
use sandglass_model::{
    Cause, DeadlineOwner, DeadlineReport, HandlerDeadlineExceeded, Limit, Monotonic, Outcome,
    Overrun, Rejection, RejectionKind, RunReport, TimeSplit,
};
use sandglass_telemetry::metrics::{DispatchEnded, DispatchMetrics};

use crate::handlers::HandlerRun;

/// The span that a report names if a handler died before it was instantiated.
const INSTANTIATE: &str = "instantiate";

/// The outcome and cause of a handler that did not start.
pub(super) type NeverRan = (Outcome, Cause);

pub(super) fn rejected(rejection: Rejection) -> NeverRan {
    (Outcome::Rejected(rejection), Cause::NotStarted)
}

pub(super) fn too_late(run: &HandlerRun) -> NeverRan {
    rejected(Rejection {
        kind: RejectionKind::HostUnavailable,
        message: format!(
            "module `{}` was not compiled within the {} ms of schedule_to_start_timeout",
            run.dispatched.module,
            run.schedule_to_start.as_millis()
        ),
    })
}

/// The breach of its limit on queueing by a handler that has `waited` for its module.
pub(super) fn started_too_late(run: &HandlerRun, waited: Duration) -> Overrun {
    Overrun::once(Limit::ScheduleToStartTimeout, run.schedule_to_start, waited)
}

/// The end of a handler that the host did not start; `None` if it did.
pub(super) fn refused(error: &Error) -> Option<NeverRan> {
    if let Error::Lost = error {
        return None;
    }
    let message = error.to_string();
    Some(rejected(Rejection { kind: RejectionKind::HostUnavailable, message }))
}

/// The report of a handler that the host never saw, counted as the host counts. (A lost handler is
/// counted when its end is recorded, as are those that a restart finds.)
pub(super) fn never_ran(
    host: &Host,
    run: &HandlerRun,
    never: NeverRan,
    compile: Duration,
) -> RunReport {
    let (outcome, cause) = never;
    dispatches(host, run).ended(&DispatchEnded {
        outcome: outcome.kind(),
        budget: Duration::from_millis(run.dispatched.budget_ms),
        duration: Duration::ZERO,
        overrun: Duration::ZERO,
    });
    let time_split_us = TimeSplit { compile: micros(compile), ..TimeSplit::default() };
    let wall_us = micros(compile);
    RunReport { time_split_us, wall_us, ..RunReport::unreported(&run.dispatched, outcome, cause) }
}

/// The report of a handler whose asker's deadline passed while it was compiled. Like the host for a
/// handler that was queued, it names the instantiation as the dying span.
pub(super) fn expired(
    host: &Host,
    run: &HandlerRun,
    began: Monotonic,
    now: Monotonic,
) -> RunReport {
    let parent = run.not_after.unwrap_or(now);
    let dispatched = &run.dispatched;
    let waited = now.since(began);
    let budget_ms = u64::try_from(parent.since(began).as_millis()).unwrap_or(u64::MAX);
    let elapsed_ms = u64::try_from(waited.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let deadline = DeadlineReport {
        budget_ms,
        // The deadline has passed, so report more than the budget even within the same millisecond.
        elapsed_ms: elapsed_ms.max(budget_ms.saturating_add(1)),
        overrun_us: micros(now.since(parent)),
        owner: DeadlineOwner::Parent,
    };
    let time_split_us = TimeSplit { compile: micros(waited), ..TimeSplit::default() };
    let exceeded = HandlerDeadlineExceeded {
        integration: dispatched.integration.clone(),
        entity_type: run.entity.entity_type().to_owned(),
        entity_id: run.entity.id().to_owned(),
        action: dispatched.action.clone(),
        attempt: dispatched.attempt,
        budget_ms: deadline.budget_ms,
        elapsed_ms: deadline.elapsed_ms,
        overrun_us: deadline.overrun_us,
        owner: deadline.owner,
        dying_span: INSTANTIATE.to_owned(),
        dying_call: None,
        backtrace: Vec::new(),
        host_calls: 0,
        time_split_us,
        trace_id: dispatched.trace.trace_id,
    };
    dispatches(host, run).deadline_exceeded(INSTANTIATE);
    let never = (Outcome::TimedOut(Box::new(exceeded)), Cause::ParentDeadline);
    let report = never_ran(host, run, never, waited);
    RunReport { deadline, dying_span: Some(INSTANTIATE.to_owned()), ..report }
}

fn dispatches(host: &Host, run: &HandlerRun) -> DispatchMetrics {
    let metrics = &host.telemetry().metrics;
    metrics.dispatch_metrics(run.entity.entity_type(), &run.dispatched.action)
}

#[cfg(test)]
mod tests {
    use sandglass_model::{Busy, BusyScope, OutcomeKind};

    use super::*;

    #[test]
    fn only_a_run_that_was_not_started_is_rejected() {
        let busy = Busy { scope: BusyScope::Host, limit: 1, retry_after_ms: 50 };
        assert_eq!(refused(&Error::Lost), None, "its effects may have landed");
        for error in [Error::Busy(busy), Error::ShuttingDown] {
            let never = refused(&error).map(|(outcome, cause)| (outcome.kind(), cause));
            assert_eq!(never, Some((OutcomeKind::Rejected, Cause::NotStarted)), "{error}");
        }
    }
}
