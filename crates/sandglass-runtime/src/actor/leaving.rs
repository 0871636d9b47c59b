//! What an entity's task does when its partition is given away or lost.

use sandglass_model::Cause;

use super::{Actor, Ownership, Runs, channels};
use crate::error::ActorError;

/// The reason that is given to handlers of a partition that was lost.
pub(crate) const LOST: &str = "another host owns the entity now";

impl Actor {
    /// Whether all that is left to do is left to the next owner of its partition: to create entities of
    /// other hosts, or to continue what another process writes.
    pub(super) fn can_leave(&self) -> bool {
        let is_quiet = match self.ownership {
            Ownership::Owner => {
                self.entity.is_settled()
                    && self.pending.is_quiet()
                    && self.unrecorded.is_none()
                    && self.spawns_again.is_some()
            }
            Ownership::Fenced => true,
            Ownership::Gone | Ownership::JournalClosed => false,
        };
        is_quiet && self.runs.is_empty() && !self.is_closing && self.hold.is_releasing()
    }

    /// The partition is open again, is released, or the runtime shuts down.
    pub(super) async fn follow_phase(&mut self) {
        self.spawns_again = None;
        if self.hold.is_closing() && !self.is_closing {
            self.close().await;
        }
    }

    /// Ends after its partition was lost: records nothing, and waits only for its handlers, whose
    /// ends are dropped.
    pub(super) async fn end_gone(mut self) {
        let entity = self.entity.entity.clone();
        self.shown.move_away(&entity);
        self.runs.stops.kill(None, Cause::OwnershipLost, LOST);
        self.mailbox.close();
        channels::refuse_waiting(&mut self.mailbox, &ActorError::Elsewhere(entity));
        let mut runs = self.into_runs();
        while runs.split().0.next().await.is_some() {}
    }

    /// Drops all but the handlers.
    fn into_runs(self) -> Runs {
        self.runs
    }
}
