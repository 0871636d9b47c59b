//! One execution of a handler of a run: how it waits, what stops it, and its reports.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{
    Cancellation, CancelledBy, Cause, Failure, FailureKind, Outcome, RunReport, WallTime,
};
use sandglass_runtime::{HandlerRun, StopRequest, until};
use sandglass_workflow::error::RunError;
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::runs::Runs;

/// Time until an operation that failed temporarily is tried again, in milliseconds.
const RETRY_AFTER_MS: u64 = 1_000;

/// The field of a failure's result with the response that the host did not accept.
const RESPONSE: &str = "response";

/// Why a handler ends before it has decided what comes next.
pub(crate) type Ended = Box<RunReport>;

/// One execution of a handler of a run.
pub(crate) struct Execution {
    pub(crate) engine: Arc<Engine>,
    pub(crate) run: HandlerRun,
}

impl Execution {
    /// Waits until the run is stopped. The shutdown of a host stops no run: the next start of the
    /// host continues what this one does not finish, as the definition says.
    pub(crate) async fn stop_requested(&self) -> StopRequest {
        let request = self.run.stop.killed().await;
        if request.cause == Cause::Shutdown {
            return std::future::pending().await;
        }
        request
    }

    /// The result of `work`, unless the run is stopped first.
    pub(crate) async fn unless_stopped<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, StopRequest> {
        tokio::select! {
            biased;
            request = self.stop_requested() => Err(request),
            result = work => Ok(result),
        }
    }

    /// Waits until `millis` after `since`, or after now.
    pub(crate) async fn wait(
        &self,
        millis: u64,
        since: Option<WallTime>,
    ) -> Result<(), StopRequest> {
        let clock = &self.engine.clock;
        let elapsed = since.map_or(Duration::ZERO, |since| clock.wall().since(since));
        let remaining = Duration::from_millis(millis).saturating_sub(elapsed);
        self.unless_stopped(until(&**clock, clock.now().after(remaining))).await
    }

    /// Waits before something is tried again.
    pub(crate) async fn wait_to_retry(&self) -> Result<(), StopRequest> {
        self.wait(RETRY_AFTER_MS, None).await
    }

    /// What starts and stops other runs, as soon as the runtime has recovered all entities.
    pub(crate) async fn runs(&self) -> Result<Runs, StopRequest> {
        match self.unless_stopped(self.run.asks.runtime()).await? {
            Some(runtime) => Ok(Runs { engine: Arc::clone(&self.engine), runtime }),
            // A runtime that is gone never comes back.
            None => Err(self.stop_requested().await),
        }
    }

    /// The report of a handler that failed with `error`.
    pub(crate) fn failed(&self, error: &RunError) -> Ended {
        let outcome = Outcome::Failed(failure(error, None));
        Box::new(RunReport::unreported(&self.run.dispatched, outcome, Cause::Returned))
    }

    /// The report of a handler that was stopped.
    pub(crate) fn cancelled(&self, request: StopRequest) -> Ended {
        let by = CancelledBy::of(request.cause);
        let cancellation = Cancellation { by, reason: request.reason, dying_span: None };
        let outcome = Outcome::Cancelled(cancellation);
        Box::new(RunReport::unreported(&self.run.dispatched, outcome, request.cause))
    }
}

/// A failure with `error`, and the response of a guest, if there was one: a replay compares with it.
pub(super) fn failure(error: &RunError, response: Option<Value>) -> Failure {
    #[derive(Serialize)]
    struct Result<'a> {
        error: &'a RunError,
        #[serde(skip_serializing_if = "Option::is_none")]
        response: Option<Value>,
    }
    let result = serde_json::to_value(Result { error, response }).expect("it is plain data");
    let message = format!("{}: {}", error.code, error.message);
    Failure { kind: FailureKind::TypedFailure, message, result: Some(result) }
}

/// The response of a guest that the host did not accept; `None` if the failure is the guest's own,
/// which has an outcome.
pub(crate) fn refused_response(failure: &Failure) -> Option<&Value> {
    failure.result.as_ref().filter(|result| result.get("outcome").is_none())?.get(RESPONSE)
}
