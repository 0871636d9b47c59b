//! Runs that work for others: what starts them, and what ends them when nobody waits for them.

use std::sync::Arc;

use sandglass_model::{RunReport, StopCause};
use sandglass_runtime::{ActorError, HandlerRun, SessionStop, StopRequest};

use super::Shared;
use super::ending::cancelled;
use super::executing::stopped;
use crate::context::Context;
use crate::service::{Service, id, is_over};

/// What starts runs, unless `run` is stopped before it is there. A host that has just started
/// does when it has found all that there are; one that is gone never does any more.
pub(crate) async fn service(
    shared: &Shared,
    run: &HandlerRun,
) -> Result<Arc<Service>, StopRequest> {
    let mut there = shared.service.subscribe();
    let service = tokio::select! {
        biased;
        there = there.wait_for(Option::is_some) => {
            there.ok().and_then(|service| service.as_ref()?.upgrade())
        }
        request = stopped(run) => return Err(request),
    };
    match service {
        Some(service) => Ok(service),
        None => Err(stopped(run).await),
    }
}

/// Stops a run whose parent is over: that ends its children, unless the host is lost just then,
/// or its time is over when the host comes back.
pub(super) async fn stop_orphan(
    shared: &Shared,
    run: &HandlerRun,
    context: &Context,
) -> Option<RunReport> {
    let parent = id::entity_of(&context.begin.parent.as_ref()?.run)?;
    let service = match service(shared, run).await {
        Ok(service) => service,
        Err(request) => return Some(cancelled(run, request)),
    };
    let is_orphan = match service.runtime.entity(&parent).await {
        Ok(parent) => is_over(&parent),
        Err(error) => matches!(error, ActorError::UnknownEntity(_)),
    };
    if !is_orphan {
        return None;
    }
    let cause = StopCause::Parent { parent: Some(parent), reason: "its parent is over".to_owned() };
    let stop = SessionStop { run_seq: None, cause };
    service.runtime.stop_session(&run.entity, stop).await.ok()?;
    Some(cancelled(run, stopped(run).await))
}
