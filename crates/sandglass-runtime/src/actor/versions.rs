//! The version of its spec that an entity obeys: it changes to a newer one when it has settled.

use std::sync::Arc;

use sandglass_liveness::{Decided, Refusal, Spec, change_spec};

use super::Actor;
use super::reservations::Reservations;

impl Actor {
    /// Changes to the present version of its spec, if the entity has settled and that version fits
    /// it. If the journal takes no appends, it is retried when it does.
    pub(super) async fn follow_spec(&mut self) {
        let Some(newest) = self.newest_spec().filter(|_| self.can_rest()) else { return };
        match change_spec(&self.spec, &self.entity, &newest) {
            Ok(events) => {
                let at = self.shared.clock.wall();
                let decided = Decided::of(&self.spec, &self.entity, events, at);
                match self.commit(decided, Reservations::default(), at, None).await {
                    Ok(_) => self.spec = newest,
                    Err(error) => {
                        let entity = &self.entity.entity;
                        tracing::warn!(%entity, %error, "the change of its spec is not recorded");
                    }
                }
            }
            Err(refusal) if self.held_back_from != Some(newest.digest) => {
                let (entity, digest) = (&self.entity.entity, newest.digest);
                tracing::warn!(%entity, to = %digest, %refusal, "it keeps its version of the spec");
                self.held_back_from = Some(digest);
                self.show();
            }
            Err(_) => {}
        }
    }

    /// Why it keeps its version of the spec although it has settled.
    pub(super) fn held_back(&self) -> Option<Refusal> {
        let newest = self.newest_spec().filter(|_| self.entity.is_settled())?;
        change_spec(&self.spec, &self.entity, &newest).err()
    }

    /// The present version of its spec, if it obeys another one and has not ended.
    fn newest_spec(&self) -> Option<Arc<Spec>> {
        self.specs.borrow().newest(&self.entity).filter(|_| !self.has_ended())
    }

    /// Whether it is in a state that takes no action, or its session is over.
    pub(super) fn has_ended(&self) -> bool {
        self.entity.has_ended(&self.spec)
    }
}
