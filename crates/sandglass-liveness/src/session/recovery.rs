//! What a handler learns about what failed before it.

use std::sync::Arc;

use sandglass_model::{Dispatched, Recovery, Repeated, Signature};
use serde_json::Value;

use super::{RunPhase, failures};
use crate::entity::Entity;
use crate::spec::Spec;

/// The cause of the recovery of a handler whose host was lost.
const HOST_LOST: &str = "host_lost";

/// What the handler `dispatched` of `entity` learns: what failed in the previous run of its
/// session, or if it is executed again because its host was lost, what failed until then. `None` if
/// nothing did.
#[must_use]
pub fn recovery(entity: &Entity, dispatched: &Dispatched) -> Option<Arc<Recovery>> {
    let session = entity.session();
    let of_run = session.and_then(|session| session.recovery.clone());
    // An operator who retries has seen the failure.
    let is_rerun = dispatched.attempt > 1 && dispatched.retried.is_none();
    match of_run {
        // Since the run began, the attempt that was lost may have failed more often.
        Some(of_run) if is_rerun => {
            let failure = session.and_then(|session| session.top_failure(1));
            Some(Arc::new(Recovery { failure, ..(*of_run).clone() }))
        }
        Some(of_run) => Some(of_run),
        None => is_rerun.then(|| Arc::new(after_a_crash(entity, dispatched))),
    }
}

fn after_a_crash(entity: &Entity, dispatched: &Dispatched) -> Recovery {
    let session = entity.session();
    let interrupted = || Repeated {
        signature: Signature::interrupted(&entity.entity, dispatched),
        count: u64::from(dispatched.attempt.saturating_sub(1)),
        sample: failures::sample(dispatched),
        cost_ms: 0,
    };
    let failed = session.and_then(|session| session.top_failure(1));
    Recovery {
        prior_run: session.map_or(1, |session| session.run_seq),
        cause: HOST_LOST.to_owned(),
        failure: Some(failed.unwrap_or_else(interrupted)),
    }
}

/// What `entity` leaves for the next session of its conversation, with the value of the variable
/// that holds the conversation. `None` if its spec names no such variable, it is empty, or the
/// session is not over.
#[must_use]
pub fn left_for_conversation(spec: &Spec, entity: &Entity) -> Option<(String, Recovery)> {
    let session = entity.session().filter(|session| session.is_over())?;
    let RunPhase::Stopped(stopped) = &session.phase else { return None };
    let recovery = Recovery {
        prior_run: stopped.run_seq,
        cause: stopped.stop_reason_code.clone(),
        failure: session.top_failure(1),
    };
    Some((conversation(spec, entity)?, recovery))
}

/// The conversation of `entity`, as text; `None` if its spec names no variable for it, or that is
/// empty.
#[must_use]
pub fn conversation(spec: &Spec, entity: &Entity) -> Option<String> {
    let variable = spec.conversation.as_ref()?;
    let text = match entity.variables.get(variable.as_str())? {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    (!text.is_empty()).then_some(text)
}
