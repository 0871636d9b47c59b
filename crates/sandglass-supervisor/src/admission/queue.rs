//! Decides which dispatches are admitted, which wait, and which one starts next. It knows no clock, no
//! lock and no task.
//!
//! ```text
//! reserve --> Reserved --> wait --> Waiting --> Running --> leave
//!                                                 | ^
//!                                       begin_ask v | (ahead of all that wait)
//!                                             Asking --> end_ask --> Returning
//! ```
//!
//! Each of the three scopes (host, tenant, integration) bounds how many of its dispatches run, and how
//! many it has in total. Tenants take turns. Within a tenant, the oldest dispatch starts first, unless
//! its integration is at its bound.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sandglass_model::BusyScope;

/// How many dispatches one scope may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bound {
    /// How many may run at once; at least 1.
    pub in_flight: u64,
    /// How many more may wait.
    pub queued: u64,
}

impl Bound {
    /// How many the scope may have, running or not.
    pub(crate) const fn total(self) -> u64 {
        self.in_flight.saturating_add(self.queued)
    }
}

/// The bounds of every dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pub host: Bound,
    /// The bound of each tenant.
    pub tenant: Bound,
    /// How many may wait in asks, without a permit to run.
    pub asking: u64,
    /// How many may run whose instances are allocated on demand.
    pub on_demand: u64,
}

/// What a dispatch counts towards. Integrations of one name with different bounds count separately.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntegrationKey {
    /// The name of the integration.
    pub name: Arc<str>,
    pub(crate) bound: Bound,
}

/// One admitted dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The bound that refuses a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub scope: BusyScope,
    /// The bound that is reached.
    pub limit: u64,
    /// How many of the scope wait.
    pub queued: u64,
    /// How many of the scope may run at once.
    pub at_once: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Reserved,
    Waiting,
    Running,
    Asking,
    Returning,
}

#[derive(Debug)]
struct Entry {
    integration: IntegrationKey,
    tenant: Arc<str>,
    state: State,
    /// Its instance is allocated on demand, and takes no slot of the pool.
    on_demand: bool,
}

/// How many dispatches of one scope are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Load {
    /// Reserved or waiting.
    queued: u64,
    running: u64,
    /// In an ask, or waiting to return from one.
    away: u64,
}

impl Load {
    fn count(&mut self, state: State) -> &mut u64 {
        match state {
            State::Reserved | State::Waiting => &mut self.queued,
            State::Running => &mut self.running,
            State::Asking | State::Returning => &mut self.away,
        }
    }

    fn full(self, scope: BusyScope, bound: Bound) -> Option<Full> {
        (self.queued.saturating_add(self.running) >= bound.total()).then(|| Full {
            scope,
            limit: bound.total(),
            queued: self.queued,
            at_once: bound.in_flight,
        })
    }
}

#[derive(Debug, Default)]
struct Tenant {
    load: Load,
    /// The waiting dispatches in order of arrival, by integration.
    waiting: BTreeMap<IntegrationKey, BTreeSet<Ticket>>,
}

#[derive(Debug, Default)]
struct Integration {
    load: Load,
    /// Tenants with a dispatch that waits for this integration.
    turns: Turns,
}

/// Tenants that take turns; after its turn, a tenant is the last one.
#[derive(Debug, Default)]
struct Turns {
    order: BTreeMap<u64, Arc<str>>,
    held: BTreeMap<Arc<str>, u64>,
}

impl Turns {
    /// Adds a tenant as the last one, unless it is in the list.
    fn join(&mut self, tenant: &Arc<str>, end: u64) {
        if !self.held.contains_key(tenant) {
            self.held.insert(Arc::clone(tenant), end);
            self.order.insert(end, Arc::clone(tenant));
        }
    }

    fn leave(&mut self, tenant: &str) -> bool {
        let held = self.held.remove(tenant);
        held.is_some_and(|turn| self.order.remove(&turn).is_some())
    }

    fn move_last(&mut self, tenant: &Arc<str>, end: u64) {
        if self.leave(tenant) {
            self.join(tenant, end);
        }
    }

    fn in_order(&self) -> impl Iterator<Item = &Arc<str>> {
        self.order.values()
    }
}

/// All admitted dispatches that have not left.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bounds: Bounds,
    entries: BTreeMap<Ticket, Entry>,
    host: Load,
    /// Those of the host whose instances are allocated on demand.
    on_demand: Load,
    integrations: BTreeMap<IntegrationKey, Integration>,
    tenants: BTreeMap<Arc<str>, Tenant>,
    /// The tenants with a waiting dispatch.
    turns: Turns,
    returning: BTreeSet<Ticket>,
    /// The next ticket and the next turn: both only have to grow.
    next: u64,
}

impl Queue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Admits a dispatch that does not wait for a permit yet. The narrowest full scope refuses it.
    pub(crate) fn reserve(
        &mut self,
        integration: IntegrationKey,
        tenant: Arc<str>,
    ) -> Result<Ticket, Full> {
        self.check(&integration, &tenant)?;
        Ok(self.enter(Entry { integration, tenant, state: State::Reserved, on_demand: false }))
    }

    /// Admits a dispatch that waits for a permit from now on, as [`Queue::reserve`] and [`Queue::wait`]
    /// do. Returns whether it may start at once. `on_demand` is whether its instance takes no slot.
    pub(crate) fn admit(
        &mut self,
        integration: IntegrationKey,
        tenant: Arc<str>,
        on_demand: bool,
    ) -> Result<(Ticket, bool), Full> {
        self.check(&integration, &tenant)?;
        let mut entry = Entry { integration, tenant, state: State::Waiting, on_demand };
        let at_once = self.has_room_for(&entry);
        if at_once {
            entry.state = State::Running;
        }
        Ok((self.enter(entry), at_once))
    }

    /// Returns the name of a tenant, shared with its other dispatches.
    pub(crate) fn name_of(&self, tenant: &str) -> Arc<str> {
        let held = self.tenants.get_key_value(tenant);
        held.map_or_else(|| tenant.into(), |(held, _)| Arc::clone(held))
    }

    /// Checks that every scope admits one more dispatch. The narrowest full scope refuses it.
    fn check(&self, integration: &IntegrationKey, tenant: &Arc<str>) -> Result<(), Full> {
        let of_integration = self.integrations.get(integration).map(|held| held.load);
        let of_tenant = self.tenants.get(tenant).map(|held| held.load);
        let full = of_integration
            .unwrap_or_default()
            .full(BusyScope::Integration, integration.bound)
            .or_else(|| of_tenant.unwrap_or_default().full(BusyScope::Tenant, self.bounds.tenant))
            .or_else(|| self.host.full(BusyScope::Host, self.bounds.host));
        full.map_or(Ok(()), |full| {
            Err(Full { at_once: full.at_once.min(self.bounds.host.in_flight), ..full })
        })
    }

    fn enter(&mut self, entry: Entry) -> Ticket {
        let ticket = Ticket(self.next_number());
        let state = entry.state;
        self.entries.insert(ticket, entry);
        self.count_in(ticket, state);
        ticket
    }

    /// Notes that the instance of `ticket`, which does not wait yet, will be allocated on demand.
    pub(crate) fn set_on_demand(&mut self, ticket: Ticket) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        if !entry.on_demand {
            entry.on_demand = true;
            *self.on_demand.count(entry.state) += 1;
        }
    }

    /// Makes `ticket` wait for a permit. Returns whether it may start at once.
    pub(crate) fn wait(&mut self, ticket: Ticket) -> bool {
        if !self.is(ticket, State::Reserved) {
            return false;
        }
        // Every earlier dispatch that could start has started, so this one overtakes none.
        let at_once = self.has_room(ticket);
        self.shift(ticket, if at_once { State::Running } else { State::Waiting });
        at_once
    }

    /// Takes the permit of `ticket`, which waits in an ask. Returns the dispatches that start instead.
    /// One that waits for its permit again, after another ask, waits in an ask instead.
    pub(crate) fn begin_ask(&mut self, ticket: Ticket) -> Result<Vec<Ticket>, Full> {
        if self.is(ticket, State::Returning) {
            self.shift(ticket, State::Asking);
            return Ok(Vec::new());
        }
        if self.host.away >= self.bounds.asking {
            return Err(Full {
                scope: BusyScope::Host,
                limit: self.bounds.asking,
                queued: 0,
                at_once: self.bounds.asking,
            });
        }
        if !self.is(ticket, State::Running) {
            return Ok(Vec::new());
        }
        self.shift(ticket, State::Asking);
        Ok(self.start_ready())
    }

    /// Makes `ticket` wait for a permit again, before all that have not begun. Returns whether it may
    /// continue at once.
    pub(crate) fn end_ask(&mut self, ticket: Ticket) -> bool {
        if !self.is(ticket, State::Asking) {
            return self.is(ticket, State::Running);
        }
        let at_once = self.has_room(ticket);
        self.shift(ticket, if at_once { State::Running } else { State::Returning });
        at_once
    }

    /// Removes `ticket` in any state. Returns the dispatches that start instead.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Vec<Ticket> {
        if let Some(entry) = self.entries.get(&ticket) {
            self.count_out(ticket, entry.state);
        }
        match self.entries.remove(&ticket) {
            Some(Entry { state: State::Running, .. }) => self.start_ready(),
            _ => Vec::new(),
        }
    }

    /// How many have an instance slot: those that run, and those that wait in asks.
    pub(crate) fn slots_in_use(&self) -> u64 {
        let instances = |load: &Load| load.running + load.away;
        instances(&self.host).saturating_sub(instances(&self.on_demand))
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next;
        self.next += 1;
        number
    }

    fn is(&self, ticket: Ticket, state: State) -> bool {
        self.entries.get(&ticket).is_some_and(|entry| entry.state == state)
    }

    fn start_ready(&mut self) -> Vec<Ticket> {
        let mut started = Vec::new();
        while let Some(next) = self.next_to_start() {
            self.shift(next, State::Running);
            started.push(next);
        }
        started
    }

    fn next_to_start(&self) -> Option<Ticket> {
        if self.host.running >= self.bounds.host.in_flight {
            return None;
        }
        let returns = self.returning.iter().copied().find(|ticket| self.has_room(*ticket));
        returns.or_else(|| self.turns.in_order().find_map(|tenant| self.first_of(tenant)))
    }

    /// The oldest waiting dispatch of the tenant that can start.
    fn first_of(&self, name: &Arc<str>) -> Option<Ticket> {
        let tenant = self.tenants.get(name)?;
        if !self.tenant_has_room(name) {
            return None;
        }
        let firsts = tenant
            .waiting
            .iter()
            .filter(|(integration, _)| self.integration_has_room(integration))
            .filter(|(integration, _)| self.has_turn(name, integration))
            .filter_map(|(_, waiting)| waiting.first().copied())
            .filter(|first| self.on_demand_has_room(*first));
        firsts.min()
    }

    /// Whether no other tenant is first at `integration`. Each bounded integration has turns of its
    /// own: otherwise a tenant that is busy with other integrations would find this one full whenever
    /// its turn comes.
    fn has_turn(&self, tenant: &Arc<str>, integration: &IntegrationKey) -> bool {
        let Some(held) = self.integrations.get(integration) else { return true };
        integration.bound.in_flight == u64::MAX
            || held.turns.in_order().find(|name| self.tenant_has_room(name)) == Some(tenant)
    }

    fn has_room(&self, ticket: Ticket) -> bool {
        self.entries.get(&ticket).is_some_and(|entry| self.has_room_for(entry))
    }

    fn has_room_for(&self, entry: &Entry) -> bool {
        self.host.running < self.bounds.host.in_flight
            && self.tenant_has_room(&entry.tenant)
            && self.integration_has_room(&entry.integration)
            && self.on_demand_has_room_for(entry)
    }

    /// Whether one more may run on demand, if `ticket` would.
    fn on_demand_has_room(&self, ticket: Ticket) -> bool {
        self.entries.get(&ticket).is_some_and(|entry| self.on_demand_has_room_for(entry))
    }

    fn on_demand_has_room_for(&self, entry: &Entry) -> bool {
        !entry.on_demand || self.on_demand.running < self.bounds.on_demand
    }

    fn tenant_has_room(&self, tenant: &str) -> bool {
        let running = self.tenants.get(tenant).map_or(0, |held| held.load.running);
        running < self.bounds.tenant.in_flight
    }

    fn integration_has_room(&self, integration: &IntegrationKey) -> bool {
        let running = self.integrations.get(integration).map_or(0, |held| held.load.running);
        running < integration.bound.in_flight
    }

    fn shift(&mut self, ticket: Ticket, to: State) {
        let Some(entry) = self.entries.get_mut(&ticket) else { return };
        let from = std::mem::replace(&mut entry.state, to);
        // In this order, so that a scope without other dispatches is not removed in between.
        self.count_in(ticket, to);
        self.count_out(ticket, from);
    }

    fn count_in(&mut self, ticket: Ticket, state: State) {
        let end = self.next_number();
        let Some(entry) = self.entries.get(&ticket) else { return };
        let Entry { integration, tenant, on_demand, .. } = entry;
        *self.host.count(state) += 1;
        *self.on_demand.count(state) += u64::from(*on_demand);
        let of_integration = self.integrations.entry(integration.clone()).or_default();
        *of_integration.load.count(state) += 1;
        let of_tenant = self.tenants.entry(Arc::clone(tenant)).or_default();
        *of_tenant.load.count(state) += 1;
        match state {
            State::Waiting => {
                of_tenant.waiting.entry(integration.clone()).or_default().insert(ticket);
                of_integration.turns.join(tenant, end);
                self.turns.join(tenant, end);
            }
            State::Running => {
                of_integration.turns.move_last(tenant, end);
                self.turns.move_last(tenant, end);
            }
            State::Returning => {
                self.returning.insert(ticket);
            }
            State::Reserved | State::Asking => {}
        }
    }

    /// Undoes [`Queue::count_in`], and removes scopes without dispatches.
    fn count_out(&mut self, ticket: Ticket, state: State) {
        let Some(entry) = self.entries.get(&ticket) else { return };
        let Entry { integration, tenant, on_demand, .. } = entry;
        *self.host.count(state) -= 1;
        *self.on_demand.count(state) -= u64::from(*on_demand);
        let Some(of_tenant) = self.tenants.get_mut(tenant) else { return };
        let Some(of_integration) = self.integrations.get_mut(integration) else { return };
        *of_tenant.load.count(state) -= 1;
        *of_integration.load.count(state) -= 1;
        match state {
            State::Waiting => {
                if let Some(waiting) = of_tenant.waiting.get_mut(integration) {
                    waiting.remove(&ticket);
                    if waiting.is_empty() {
                        of_tenant.waiting.remove(integration);
                        of_integration.turns.leave(tenant);
                    }
                }
                if of_tenant.waiting.is_empty() {
                    self.turns.leave(tenant);
                }
            }
            State::Returning => {
                self.returning.remove(&ticket);
            }
            State::Reserved | State::Running | State::Asking => {}
        }
        if of_tenant.load == Load::default() {
            self.tenants.remove(tenant);
        }
        if of_integration.load == Load::default() {
            self.integrations.remove(integration);
        }
    }
}

#[cfg(test)]
mod tests;
