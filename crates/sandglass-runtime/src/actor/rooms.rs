//! What the handlers of one decision are given: the room that is kept for them before
//! it is recorded, and what an asker lends.

use std::collections::BTreeMap;

use sandglass_liveness::Decided;
use sandglass_model::{Busy, BusyScope, DispatchId, Dispatched, Event, ModuleHash};

use crate::asking::Lent;
use crate::caught::caught;
use crate::handlers::{Handlers, Reserved};

/// The wait that is proposed where keeping room panicked: a defect, which isn't gone in a
/// moment, and which many may run into again and again.
const AFTER_PANIC_MS: u64 = 1_000;

/// The room for each handler of a decision, or why there is none. Dropped, it gives
/// back what nobody took.
#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: BTreeMap<DispatchId, Result<Reserved, Busy>>,
    lent: Lent,
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
        let rooms = dispatched.map(|one| (one.dispatch, reserve(handlers, one, tenant)));
        Self { rooms: rooms.collect(), lent }
    }

    /// Why there isn't room for all of them.
    pub(super) fn missing(&self) -> Option<Busy> {
        self.rooms.values().find_map(|room| room.as_ref().err().copied())
    }

    /// Says of each handler that `events` dispatches which version of its module it runs, where
    /// that is known by now: the one that room is kept for comes first.
    pub(super) fn name_modules(&self, handlers: &dyn Handlers, decided: &mut Decided) {
        decided.set_module_hashes(|dispatched| {
            let reserved = self.module_hash(dispatched.dispatch);
            reserved.or_else(|| module_hash(handlers, &dispatched.module))
        });
    }

    /// The version of its module that room is kept for, where it is for one.
    fn module_hash(&self, dispatch: DispatchId) -> Option<ModuleHash> {
        self.rooms.get(&dispatch)?.as_ref().ok()?.module_hash()
    }

    /// What the asker lends the handler of `dispatched`, if its record names an asker. Handlers of an
    /// automatically retried run do not, and run on their own deadlines.
    pub(super) fn lent_to(&self, dispatched: &Dispatched) -> Lent {
        dispatched.asker.map(|_| self.lent.clone()).unwrap_or_default()
    }

    /// The room of one handler.
    pub(super) fn take(&mut self, dispatch: DispatchId) -> Result<Reserved, Busy> {
        self.rooms.remove(&dispatch).unwrap_or_else(|| Ok(Reserved::default()))
    }
}

/// The hash of a module, where whatever runs it knows that by now.
fn module_hash(handlers: &dyn Handlers, module: &str) -> Option<ModuleHash> {
    caught(|| handlers.module_hash(module)).unwrap_or_else(|| {
        tracing::error!(module, "looking up the hash of a module panicked");
        None
    })
}

/// Room for one handler; none where the attempt to keep it panics.
fn reserve(handlers: &dyn Handlers, one: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
    caught(|| handlers.reserve(one, tenant)).unwrap_or_else(|| {
        let (dispatch, integration) = (one.dispatch, &one.integration);
        tracing::error!(%dispatch, integration, "keeping room for a handler panicked; it has none");
        Err(Busy { scope: BusyScope::Host, limit: 0, retry_after_ms: AFTER_PANIC_MS })
    })
}
