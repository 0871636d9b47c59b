//! What an entity remembers of handlers that have ended: enough to check retries and asks, in
//! constant space.

use std::collections::VecDeque;
use std::sync::Arc;

use sandglass_model::{DispatchId, Dispatched, Ended, OutcomeKind, TraceContext};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Handlers that have ended and are remembered, of each entity: half of what may be in flight at
/// once, at 120 bytes each. Older ones cannot be retried.
pub const ENDED_DISPATCHES_MAX: usize = 32;

/// A handler that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedDispatch {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// Its last attempt.
    pub attempt: u32,
    /// How it ended.
    pub outcome: OutcomeKind,
    /// Its budget, in milliseconds.
    pub budget_ms: u64,
    /// Whether that budget was the remaining time of its parent.
    pub was_lent: bool,
    /// The depth of nested asks that led to it.
    pub depth: u32,
    /// The span of that attempt.
    pub trace: TraceContext,
    /// `None` if it completed, because then it is never retried.
    asked_with: Option<[u8; 32]>,
}

impl EndedDispatch {
    pub(super) fn of(dispatched: &Dispatched, ended: &Ended) -> Self {
        let outcome = ended.outcome.kind();
        Self {
            dispatch: dispatched.dispatch,
            attempt: dispatched.attempt,
            outcome,
            budget_ms: dispatched.budget_ms,
            was_lent: dispatched.owner == sandglass_model::DeadlineOwner::Parent,
            depth: dispatched.depth,
            trace: dispatched.trace,
            asked_with: (outcome != OutcomeKind::Completed).then(|| digest(dispatched)),
        }
    }

    /// Whether `dispatched` is a record of any attempt of this dispatch.
    #[must_use]
    pub fn is_of(&self, dispatched: &Dispatched) -> bool {
        self.asked_with == Some(digest(dispatched))
    }
}

/// A digest of what all attempts of a dispatch have in common.
fn digest(of: &Dispatched) -> [u8; 32] {
    let Dispatched { dispatch, integration, module, action, params, config, trace, .. } = of;
    let common = (dispatch, integration, module, action, params, config, trace.trace_id);
    // Plain data with text keys always has a JSON form.
    Sha256::digest(serde_json::to_vec(&common).unwrap_or_default()).into()
}

/// The last [`ENDED_DISPATCHES_MAX`] handlers that have ended, oldest first; shared, because
/// entities are copied with each decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct EndedDispatches(Arc<VecDeque<EndedDispatch>>);

impl EndedDispatches {
    pub(super) fn push(&mut self, past: EndedDispatch) {
        let pasts = Arc::make_mut(&mut self.0);
        if pasts.len() >= ENDED_DISPATCHES_MAX {
            pasts.pop_front();
        }
        pasts.push_back(past);
    }

    /// Forgets a dispatch that is in flight again.
    pub(super) fn forget(&mut self, dispatch: DispatchId) {
        if self.find(dispatch).is_some() {
            Arc::make_mut(&mut self.0).retain(|past| past.dispatch != dispatch);
        }
    }

    pub(super) fn find(&self, dispatch: DispatchId) -> Option<&EndedDispatch> {
        self.0.iter().find(|past| past.dispatch == dispatch)
    }
}
