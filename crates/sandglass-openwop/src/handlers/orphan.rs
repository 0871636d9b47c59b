//! Stops runs that work for a run that is over.

use sandglass_model::EntityRef;
use sandglass_runtime::ActorError;

use super::execution::{Ended, Execution};
use crate::context::Context;
use crate::id;
use crate::log::{Folded, ReadError};
use crate::runs::{Runs, is_over, is_stopping};

/// Stops a run whose parent is over. The end of a parent stops its children, unless the host is lost
/// at that moment, or the parent's time is over when the host comes back.
pub(super) async fn stop_orphan(execution: &Execution, context: &Context) -> Result<(), Ended> {
    let parent = context.begin.parent.as_ref().and_then(|parent| id::entity_of(&parent.run));
    let Some(parent) = parent else { return Ok(()) };
    let cancelled = |request| execution.cancelled(request);
    let runs = execution.runs().await.map_err(cancelled)?;
    loop {
        let settled = runs.runtime.wait_until(&parent, |parent| !is_stopping(parent));
        match execution.unless_stopped(settled).await.map_err(cancelled)? {
            Ok(parent) if !is_over(&parent) => return Ok(()),
            Ok(_) | Err(ActorError::UnknownEntity(_)) => {
                if let Some(ended) = stop(execution, &runs, &parent).await {
                    return Err(ended);
                }
            }
            // The records of a parent on another host show its end.
            Err(ActorError::Elsewhere(_)) => match has_ended(execution, &parent).await {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    if let Some(ended) = stop(execution, &runs, &parent).await {
                        return Err(ended);
                    }
                }
                Err(_) => {}
            },
            // It cannot be read now.
            Err(_) => {}
        }
        runs.unless_closing().await;
        execution.wait_to_retry().await.map_err(cancelled)?;
    }
}

/// Stops the run, whose `parent` is over; `None` if it could not be stopped now.
async fn stop(execution: &Execution, runs: &Runs, parent: &EntityRef) -> Option<Ended> {
    let reason = "its parent is over".to_owned();
    runs.stop_with(&execution.run.entity, parent, reason).await.ok()?;
    Some(execution.cancelled(execution.stop_requested().await))
}

/// Whether the last event of `run` is recorded.
async fn has_ended(execution: &Execution, run: &EntityRef) -> Result<bool, ReadError> {
    let mut folded = Folded::default();
    folded.read_on(&execution.engine.journals, run, |_| {}).await?;
    Ok(folded.projection.is_over)
}
