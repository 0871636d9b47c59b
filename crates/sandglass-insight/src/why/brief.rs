//! Other handlers than the one that is explained: those that ran because it waits for their
//! entities, and those that had not ended where the records end.

use sandglass_model::{DispatchId, Ended, EntityRef, OutcomeKind};
use serde::Serialize;

use super::Asked;

/// Most others that are told of each kind.
const TOLD_MAX: usize = 32;

/// Another handler, in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Brief {
    /// Whose handler it is.
    pub entity: EntityRef,
    /// Which.
    pub dispatch: DispatchId,
    /// The attempt.
    pub attempt: u32,
    /// The action that triggered it.
    pub action: String,
    /// How it ended; none where it hasn't.
    pub outcome: Option<OutcomeKind>,
    /// What was running when it was stopped or trapped.
    pub dying_span: Option<String>,
    /// Whether it may have ended, because records behind its dispatch can't be read.
    pub may_have_ended: bool,
}

/// Others, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The first of them.
    pub told: Vec<Brief>,
    /// How many more there are.
    pub omitted: u64,
}

impl Others {
    pub(super) fn add(&mut self, asked: &Asked, may_have_ended: bool) {
        if self.told.len() >= TOLD_MAX {
            self.omitted += 1;
            return;
        }
        self.told.push(Brief {
            entity: asked.entity.clone(),
            dispatch: asked.dispatched.dispatch,
            attempt: asked.dispatched.attempt,
            action: asked.dispatched.action.clone(),
            outcome: None,
            dying_span: None,
            may_have_ended,
        });
    }

    pub(super) fn ended(&mut self, ended: &Ended) {
        let is_it =
            |one: &&mut Brief| one.dispatch == ended.dispatch && one.attempt == ended.attempt;
        if let Some(one) = self.told.iter_mut().find(is_it) {
            one.outcome = Some(ended.outcome.kind());
            one.dying_span.clone_from(&ended.dying_span);
        }
    }
}
