//! What the handlers of one decision are given: the room that is kept for them before
//! it is recorded, and what an asker lends.

use std::collections::BTreeMap;

use sandglass_model::{Busy, DispatchId, Event};

use crate::asking::Lent;
use crate::handlers::{Handlers, Reserved};

/// The room for each handler of a decision, or why there is none. Dropped, it gives
/// back what nobody took.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: BTreeMap<DispatchId, Result<Reserved, Busy>>,
    pub(super) lent: Lent,
}

impl Rooms {
    /// Keeps room for each handler that `events` dispatches on behalf of `tenant`.
    pub(super) fn reserve(
        handlers: &dyn Handlers,
        events: &[Event],
        tenant: &str,
        lent: Lent,
    ) -> Self {
        let dispatched = events.iter().filter_map(|event| match event {
            Event::Dispatched(dispatched) => Some(dispatched),
            _ => None,
        });
        let rooms = dispatched.map(|one| (one.dispatch, handlers.reserve(one, tenant)));
        Self { rooms: rooms.collect(), lent }
    }

    /// Why there isn't room for all of them.
    pub(super) fn missing(&self) -> Option<Busy> {
        self.rooms.values().find_map(|room| room.as_ref().err().copied())
    }

    /// The room of one handler.
    pub(super) fn take(&mut self, dispatch: DispatchId) -> Result<Reserved, Busy> {
        self.rooms.remove(&dispatch).unwrap_or_else(|| Ok(Reserved::default()))
    }
}
