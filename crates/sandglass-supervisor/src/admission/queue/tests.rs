//! Invariants of the queue for any sequence of events.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn bound(in_flight: u64, queued: u64) -> Bound {
    Bound { in_flight, queued }
}

fn integration(name: &str, bound: Bound) -> IntegrationKey {
    IntegrationKey { name: name.into(), bound }
}

const FREE: Bound = Bound { in_flight: u64::MAX, queued: u64::MAX };

fn queue(host: Bound, tenant: Bound) -> Queue {
    Queue::new(Bounds { host, tenant, asking: 2, on_demand: 1 })
}

/// Admits a dispatch; returns its ticket and whether it runs.
fn admit(queue: &mut Queue, integration: &IntegrationKey, tenant: &str) -> (Ticket, bool) {
    queue.admit(integration.clone(), tenant.into(), false).expect("there is room")
}

#[test]
fn admitting_equals_reserving_and_then_waiting() {
    let (mut one, mut other) = (queue(bound(3, 3), bound(2, 2)), queue(bound(3, 3), bound(2, 2)));
    let integrations = [integration("wide", FREE), integration("narrow", bound(1, 1))];
    let (mut came, mut waited) = (Vec::new(), Vec::new());
    for nth in 0..12 {
        let (key, tenant) = (&integrations[nth % 2], ["t", "u", "v"][nth % 3]);
        let on_demand = nth % 4 == 1;
        let at_once = one.admit(key.clone(), tenant.into(), on_demand);
        let then = other.reserve(key.clone(), tenant.into()).map(|ticket| {
            if on_demand {
                other.set_on_demand(ticket);
            }
            (ticket, other.wait(ticket))
        });
        assert_eq!(at_once.map(|(_, runs)| runs), then.map(|(_, runs)| runs), "{nth}");
        came.extend(at_once.ok());
        waited.extend(then.ok());
        assert_eq!(one.slots_in_use(), other.slots_in_use());
    }
    let place = |all: &[(Ticket, bool)], ticket| all.iter().position(|(held, _)| *held == ticket);
    for ((first, _), (second, _)) in came.iter().zip(&waited) {
        let started: Vec<_> =
            one.leave(*first).into_iter().map(|ticket| place(&came, ticket)).collect();
        let also: Vec<_> =
            other.leave(*second).into_iter().map(|ticket| place(&waited, ticket)).collect();
        assert_eq!(started, also);
        assert_eq!(one.slots_in_use(), other.slots_in_use());
    }
}

#[test]
fn a_tenant_that_floods_is_passed_by_the_single_dispatch_of_another() {
    let mut queue = queue(bound(1, 100), FREE);
    let any = integration("any", FREE);
    let (first, runs) = admit(&mut queue, &any, "floods");
    assert!(runs);
    let flood: Vec<_> = (0..50).map(|_| admit(&mut queue, &any, "floods").0).collect();
    let (single, _) = admit(&mut queue, &any, "quiet");
    assert_eq!(queue.leave(first), [flood[0]]);
    assert_eq!(queue.leave(flood[0]), [single], "one turn of the other, then its own");
}

#[test]
fn an_integration_at_its_bound_does_not_delay_others() {
    let mut queue = queue(bound(2, 100), FREE);
    let (slow, fast) = (integration("slow", bound(1, 9)), integration("fast", FREE));
    let (running, _) = admit(&mut queue, &slow, "t");
    let (waits, runs) = admit(&mut queue, &slow, "t");
    assert!(!runs);
    assert!(admit(&mut queue, &fast, "t").1, "it comes later and starts at once");
    assert_eq!(queue.leave(running), [waits]);
}

#[test]
fn the_narrowest_scope_that_is_full_refuses() {
    let mut queue = queue(bound(1, 3), bound(1, 1));
    let narrow = integration("narrow", bound(1, 0));
    let wide = integration("wide", FREE);
    let refused = |queue: &mut Queue, integration: &IntegrationKey, tenant: &str| {
        let full = queue.reserve(integration.clone(), tenant.into()).expect_err("it is full");
        (full.scope, full.limit)
    };
    admit(&mut queue, &narrow, "a");
    assert_eq!(refused(&mut queue, &narrow, "a"), (BusyScope::Integration, 1));
    admit(&mut queue, &wide, "a");
    assert_eq!(refused(&mut queue, &wide, "a"), (BusyScope::Tenant, 2));
    admit(&mut queue, &wide, "b");
    admit(&mut queue, &wide, "c");
    assert_eq!(refused(&mut queue, &wide, "d"), (BusyScope::Host, 4));
}

#[test]
fn a_reservation_counts_and_gives_back_what_it_held() {
    let mut queue = queue(bound(1, 0), FREE);
    let any = integration("any", FREE);
    let reserved = queue.reserve(any.clone(), "t".into()).expect("there is room");
    assert!(queue.reserve(any.clone(), "t".into()).is_err());
    assert!(queue.leave(reserved).is_empty());
    assert!(admit(&mut queue, &any, "t").1);
}

#[test]
fn an_asker_makes_room_and_comes_back_before_those_that_wait() {
    let mut queue = queue(bound(1, 9), FREE);
    let any = integration("any", FREE);
    let (asker, _) = admit(&mut queue, &any, "t");
    let (asked, _) = admit(&mut queue, &any, "t");
    let (later, _) = admit(&mut queue, &any, "t");
    assert_eq!(queue.begin_ask(asker), Ok(vec![asked]));
    assert!(!queue.end_ask(asker), "the asked one still runs");
    assert_eq!(queue.leave(asked), [asker], "not the one that has waited all along");
    assert_eq!(queue.leave(asker), [later]);
}

#[test]
fn an_asker_that_asks_again_before_it_is_back_makes_room_once_more() {
    let mut queue = queue(bound(1, 9), FREE);
    let any = integration("any", FREE);
    let (asker, _) = admit(&mut queue, &any, "t");
    let (first, _) = admit(&mut queue, &any, "t");
    let (second, _) = admit(&mut queue, &any, "t");
    assert_eq!(queue.begin_ask(asker), Ok(vec![first]));
    assert!(!queue.end_ask(asker), "the first one still runs");
    assert_eq!(queue.begin_ask(asker), Ok(Vec::new()));
    assert_eq!(queue.leave(first), [second], "and not the asker");
    assert!(!queue.end_ask(asker));
    assert_eq!(queue.leave(second), [asker]);
}

#[test]
fn more_askers_than_may_wait_are_refused_and_keep_running() {
    let mut queue = queue(bound(9, 9), FREE);
    let any = integration("any", FREE);
    let tickets: Vec<_> = (0..3).map(|_| admit(&mut queue, &any, "t").0).collect();
    for ticket in &tickets[..2] {
        assert_eq!(queue.begin_ask(*ticket), Ok(Vec::new()));
    }
    let full = queue.begin_ask(tickets[2]).expect_err("two wait in asks already");
    assert_eq!((full.scope, full.limit), (BusyScope::Host, 2));
    assert!(queue.end_ask(tickets[2]), "it never went");
}

#[derive(Clone, Debug)]
enum Step {
    Arrive { integration: usize, tenant: usize },
    Wait(usize),
    Ask(usize),
    ComeBack(usize),
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let nth = 0..64_usize;
    prop_oneof![
        4 => (0..3_usize, 0..3_usize)
            .prop_map(|(integration, tenant)| Step::Arrive { integration, tenant }),
        4 => nth.clone().prop_map(Step::Wait),
        1 => nth.clone().prop_map(Step::Ask),
        2 => nth.clone().prop_map(Step::ComeBack),
        3 => nth.prop_map(Step::Leave),
    ]
}

fn any_bound() -> impl Strategy<Value = Bound> {
    (1..4_u64, 0..6_u64).prop_map(|(in_flight, queued)| bound(in_flight, queued))
}

const TENANTS: [&str; 3] = ["a", "b", "c"];

impl Queue {
    fn those(&self, state: State) -> Vec<Ticket> {
        let in_it = self.entries.iter().filter(|(_, entry)| entry.state == state);
        in_it.map(|(ticket, _)| *ticket).collect()
    }

    /// The load of what `wanted` picks, counted anew.
    fn counted(&self, wanted: impl Fn(&Entry) -> bool) -> Load {
        let mut load = Load::default();
        for entry in self.entries.values().filter(|entry| wanted(entry)) {
            *load.count(entry.state) += 1;
        }
        load
    }

    fn assert_holds(&self) {
        let within = |load: Load, bound: Bound| {
            assert!(load.running <= bound.in_flight, "{load:?} over {bound:?}");
        };
        within(self.host, self.bounds.host);
        assert_eq!(self.host, self.counted(|_| true));
        assert!(self.host.away <= self.bounds.asking);
        assert!(self.slots_in_use() <= self.bounds.host.in_flight + self.bounds.asking);
        for (name, tenant) in &self.tenants {
            within(tenant.load, self.bounds.tenant);
            assert_eq!(tenant.load, self.counted(|entry| entry.tenant == *name));
        }
        for (key, held) in &self.integrations {
            within(held.load, key.bound);
            assert_eq!(held.load, self.counted(|entry| entry.integration == *key));
        }
        for state in [State::Waiting, State::Returning] {
            for ticket in self.those(state) {
                assert!(!self.has_room(ticket), "{ticket:?} waits though there is room");
            }
        }
    }

    fn assert_empty(&self) {
        assert!(self.entries.is_empty() && self.returning.is_empty());
        assert!(self.tenants.is_empty() && self.integrations.is_empty());
        assert!(self.turns.order.is_empty() && self.turns.held.is_empty());
        assert_eq!(self.host, Load::default());
    }
}

proptest! {
    #[test]
    fn no_sequence_of_events_breaks_a_bound_or_leaks_a_place(
        host in any_bound(),
        tenant in any_bound(),
        bounds in prop::collection::vec(any_bound(), 3),
        steps in prop::collection::vec(step(), 0..200),
    ) {
        let mut queue = queue(host, tenant);
        let integrations: Vec<_> = bounds
            .iter()
            .enumerate()
            .map(|(nth, bound)| integration(&nth.to_string(), *bound))
            .collect();
        for step in steps {
            let tickets: Vec<Ticket> = queue.entries.keys().copied().collect();
            let nth = |nth: usize| tickets.get(nth % tickets.len().max(1)).copied();
            match step {
                Step::Arrive { integration, tenant } => {
                    let before = queue.entries.len();
                    let key = integrations[integration].clone();
                    let refused = queue.reserve(key, TENANTS[tenant].into()).err();
                    if let Some(full) = refused {
                        prop_assert!(full.limit > 0 && full.at_once > 0);
                        prop_assert_eq!(queue.entries.len(), before);
                    }
                    let held = queue.host.queued + queue.host.running;
                    prop_assert!(refused.is_some() || held <= host.total());
                }
                Step::Wait(n) => { if let Some(ticket) = nth(n) { queue.wait(ticket); } }
                Step::Ask(n) => { if let Some(ticket) = nth(n) { drop(queue.begin_ask(ticket)); } }
                Step::ComeBack(n) => { if let Some(ticket) = nth(n) { queue.end_ask(ticket); } }
                Step::Leave(n) => { if let Some(ticket) = nth(n) { queue.leave(ticket); } }
            }
            queue.assert_holds();
        }
        let all: Vec<Ticket> = queue.entries.keys().copied().collect();
        for ticket in all {
            queue.leave(ticket);
            queue.assert_holds();
        }
        queue.assert_empty();
    }

    #[test]
    fn no_dispatch_starves_while_others_keep_arriving(
        in_flight in 1..4_u64,
        bounds in prop::collection::vec(1..3_u64, 3),
        arrivals in prop::collection::vec((0..3_usize, 0..3_usize), 400),
    ) {
        let mut queue = queue(bound(in_flight, 1000), bound(2, 1000));
        let integrations: Vec<_> = bounds
            .iter()
            .enumerate()
            .map(|(nth, most)| integration(&nth.to_string(), bound(*most, 1000)))
            .collect();
        let mut running = std::collections::VecDeque::new();
        let mut arrivals = arrivals.into_iter();
        let mut arrive = |queue: &mut Queue| {
            let (nth, tenant) = arrivals.next()?;
            Some(admit(queue, &integrations[nth], TENANTS[tenant]))
        };
        for _ in 0..20 {
            let Some((ticket, runs)) = arrive(&mut queue) else { break };
            if runs { running.push_back(ticket); }
        }
        // Those that wait now are ahead of all that come later, so each has started
        // before as many others as there can be of every tenant's turns.
        let mut early: BTreeSet<_> = queue.those(State::Waiting).into_iter().collect();
        for _ in 0..20 * TENANTS.len() * integrations.len() {
            // Runs end in the order in which they began; for each, two arrive.
            let Some(ended) = running.pop_front() else { break };
            for started in queue.leave(ended) {
                early.remove(&started);
                running.push_back(started);
            }
            for _ in 0..2 {
                if let Some((ticket, true)) = arrive(&mut queue) { running.push_back(ticket); }
            }
        }
        prop_assert!(early.is_empty(), "{} never started", early.len());
    }
}
