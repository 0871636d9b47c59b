//! Stops runs that work for a run that is over.

use sandglass_runtime::ActorError;

use super::execution::{Ended, Execution};
use crate::context::Context;
use crate::id;
use crate::runs::{is_over, is_stopping};

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
                let reason = "its parent is over".to_owned();
                if runs.stop_with(&execution.run.entity, &parent, reason).await.is_ok() {
                    return Err(cancelled(execution.stop_requested().await));
                }
            }
            // It cannot be read now.
            Err(_) => {}
        }
        runs.unless_closing().await;
        execution.wait_to_retry().await.map_err(cancelled)?;
    }
}
