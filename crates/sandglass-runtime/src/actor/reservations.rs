//! What the handlers of one decision are given: what was reserved for them before it is recorded,
//! and the budget that an asker leaves them.

use std::collections::BTreeMap;

use sandglass_liveness::Decided;
use sandglass_model::{Busy, BusyScope, DispatchId, Dispatched, Event, ModuleHash};

use crate::asking::ParentBudget;
use crate::handlers::{Handlers, Reserved};
use crate::panics::catch_panic;

/// The proposed wait after a reservation panicked: a defect, which does not go away in a moment,
/// and which many callers may run into again and again.
const AFTER_PANIC_MS: u64 = 1_000;

/// The reservation of each handler of a decision, or why there is none. Dropped, it releases what
/// was not taken.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    reservations: BTreeMap<DispatchId, Result<Reserved, Busy>>,
    parent_budget: ParentBudget,
}

impl Reservations {
    /// Reserves a slot for each handler that `events` dispatch for `tenant`.
    pub(super) fn reserve(
        handlers: &dyn Handlers,
        events: &[Event],
        tenant: &str,
        parent_budget: ParentBudget,
    ) -> Self {
        let dispatched = events.iter().filter_map(|event| match event {
            Event::Dispatched(dispatched) => Some(dispatched),
            _ => None,
        });
        let reservations = dispatched.map(|one| (one.dispatch, reserve(handlers, one, tenant)));
        Self { reservations: reservations.collect(), parent_budget }
    }

    /// Why not all of them have a slot.
    pub(super) fn missing(&self) -> Option<Busy> {
        self.reservations.values().find_map(|slot| slot.as_ref().err().copied())
    }

    /// Adds the version of its module to each handler that is dispatched, if it is known by now: a
    /// reserved version comes first.
    pub(super) fn name_modules(&self, handlers: &dyn Handlers, decided: &mut Decided) {
        decided.set_module_hashes(|dispatched| {
            let reserved = self.module_hash(dispatched.dispatch);
            reserved.or_else(|| module_hash(handlers, &dispatched.module))
        });
    }

    /// The reserved version of its module.
    fn module_hash(&self, dispatch: DispatchId) -> Option<ModuleHash> {
        self.reservations.get(&dispatch)?.as_ref().ok()?.module_hash()
    }

    /// The budget that the asker leaves the handler of `dispatched`, if its record names an asker.
    /// Records of handlers of an automatically retried run name none, so these have their own
    /// deadlines.
    pub(super) fn parent_budget_of(&self, dispatched: &Dispatched) -> ParentBudget {
        dispatched.asker.map(|_| self.parent_budget.clone()).unwrap_or_default()
    }

    /// The reservation of one handler.
    pub(super) fn take(&mut self, dispatch: DispatchId) -> Result<Reserved, Busy> {
        self.reservations.remove(&dispatch).unwrap_or_else(|| Ok(Reserved::default()))
    }
}

/// The hash of a module, if the executor knows it by now.
fn module_hash(handlers: &dyn Handlers, module: &str) -> Option<ModuleHash> {
    catch_panic(|| handlers.module_hash(module)).unwrap_or_else(|| {
        tracing::error!(module, "looking up the hash of a module panicked");
        None
    })
}

/// Reserves a slot for one handler; a panic counts as busy.
fn reserve(handlers: &dyn Handlers, one: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
    catch_panic(|| handlers.reserve(one, tenant)).unwrap_or_else(|| {
        let (dispatch, integration) = (one.dispatch, &one.integration);
        tracing::error!(%dispatch, integration, "reserving a slot panicked");
        Err(Busy { scope: BusyScope::Host, limit: 0, retry_after_ms: AFTER_PANIC_MS })
    })
}
