//! Handlers related to the explained one: those that ran because it waited for their entities, and
//! those that had not ended when the records end.

use sandglass_model::{DispatchId, Ended, EntityRef, OutcomeKind};
use serde::Serialize;

use super::OpenHandler;

/// Most related handlers that are listed of each kind.
const LISTED_MAX: usize = 32;

/// A related handler in brief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Brief {
    /// The entity of the handler.
    pub entity: EntityRef,
    /// The dispatch.
    pub dispatch: DispatchId,
    /// The attempt.
    pub attempt: u32,
    /// The action that triggered it.
    pub action: String,
    /// How it ended; `None` if it has not.
    pub outcome: Option<OutcomeKind>,
    /// What was running when the handler was stopped or trapped.
    pub dying_span: Option<String>,
    /// Whether it may have ended, because records after its dispatch cannot be read.
    pub may_have_ended: bool,
}

/// Related handlers, and how many are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// The first of the handlers.
    pub listed: Vec<Brief>,
    /// How many more there are.
    pub omitted: u64,
}

impl Others {
    pub(super) fn add(&mut self, handler: &OpenHandler, may_have_ended: bool) {
        if self.listed.len() >= LISTED_MAX {
            self.omitted += 1;
            return;
        }
        self.listed.push(Brief {
            entity: handler.entity.clone(),
            dispatch: handler.dispatched.dispatch,
            attempt: handler.dispatched.attempt,
            action: handler.dispatched.action.clone(),
            outcome: None,
            dying_span: None,
            may_have_ended,
        });
    }

    pub(super) fn end(&mut self, ended: &Ended) {
        let is_it =
            |one: &&mut Brief| one.dispatch == ended.dispatch && one.attempt == ended.attempt;
        if let Some(one) = self.listed.iter_mut().find(is_it) {
            one.outcome = Some(ended.outcome.kind());
            one.dying_span.clone_from(&ended.dying_span);
        }
    }
}
