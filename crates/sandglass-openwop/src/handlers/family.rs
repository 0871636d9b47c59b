//! Runs that work for others: what starts them, and what ends them when nobody waits for them.

use std::sync::Arc;

use sandglass_model::RunReport;
use sandglass_runtime::{ActorError, HandlerRun, StopRequest};

use super::Shared;
use super::ending::cancelled;
use super::executing::{AGAIN_AFTER_MS, stopped, wait};
use crate::context::Context;
use crate::service::{Service, id, is_over, is_stopping};

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

/// Never comes back where the host shuts down: what it can't do any more is left to the next one,
/// which runs the handler again.
pub(crate) async fn unless_closing(service: &Service) {
    if service.runtime.is_closing() {
        std::future::pending().await
    }
}

/// Waits a moment before something is tried again, where the host doesn't shut down; answers why
/// not, where `run` is stopped.
pub(crate) async fn again_later(
    shared: &Shared,
    run: &HandlerRun,
    service: &Service,
) -> Option<StopRequest> {
    unless_closing(service).await;
    wait(shared, run, AGAIN_AFTER_MS, None).await
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
    loop {
        let found = tokio::select! {
            biased;
            request = stopped(run) => return Some(cancelled(run, request)),
            found = service.runtime.wait_until(&parent, |parent| !is_stopping(parent)) => found,
        };
        let is_orphan = match found {
            Ok(parent) => Some(is_over(&parent)),
            Err(ActorError::UnknownEntity(_)) => Some(true),
            // It isn't known now.
            Err(_) => None,
        };
        if is_orphan == Some(false) {
            return None;
        }
        if is_orphan == Some(true) {
            let reason = "its parent is over".to_owned();
            if service.stop_with(&run.entity, &parent, reason).await.is_ok() {
                return Some(cancelled(run, stopped(run).await));
            }
        }
        if let Some(request) = again_later(shared, run, &service).await {
            return Some(cancelled(run, request));
        }
    }
}
