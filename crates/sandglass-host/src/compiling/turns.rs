//! Turns at compiling: few modules are compiled at the same time, and each tenant has only some of the
//! turns, so that a tenant whose modules are slow delays only itself.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The turns of one host.
pub(crate) struct Turns {
    most_per_tenant: usize,
    state: Mutex<State>,
}

struct State {
    free: usize,
    /// How many each tenant has; never 0.
    taken: BTreeMap<Arc<str>, usize>,
    /// The waiting callers by tenant; never an empty line. The tenant that was served last is at the
    /// end.
    lines: VecDeque<Line>,
}

struct Line {
    tenant: Arc<str>,
    waiters: VecDeque<oneshot::Sender<Turn>>,
}

/// The right to compile one module. If it is dropped, the next waiting caller gets it.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    tenant: Arc<str>,
}

impl Turns {
    /// With this many turns. One tenant has at most `most_per_tenant` at a time.
    pub(crate) fn new(turns: usize, most_per_tenant: usize) -> Arc<Self> {
        let state = State { free: turns, taken: BTreeMap::new(), lines: VecDeque::new() };
        Arc::new(Self { most_per_tenant, state: Mutex::new(state) })
    }

    /// Waits for a turn of `tenant`. Dropping the future gives up.
    pub(crate) async fn take(self: &Arc<Self>, tenant: &Arc<str>) -> Turn {
        let waiting = {
            let mut state = self.lock();
            let (waiter, waiting) = oneshot::channel();
            match state.lines.iter_mut().find(|line| line.tenant == *tenant) {
                Some(line) => line.waiters.push_back(waiter),
                None => state
                    .lines
                    .push_back(Line { tenant: Arc::clone(tenant), waiters: [waiter].into() }),
            }
            waiting
        };
        self.serve();
        waiting.await.expect("a waiter is removed only by serving it, or after it has gone")
    }

    /// Gives the free turns to waiting callers.
    fn serve(self: &Arc<Self>) {
        loop {
            let next = self.lock().next(self.most_per_tenant);
            let Some((tenant, waiter)) = next else { return };
            // Not under the lock: if the caller has gone, the turn is dropped here, which locks.
            let _ = waiter.send(Turn { turns: Arc::clone(self), tenant });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The caller who gets the next turn, if there is one: of the tenants that may have another turn,
    /// the one with the fewest, and among several of these, the one that has waited longest.
    fn next(&mut self, most_per_tenant: usize) -> Option<(Arc<str>, oneshot::Sender<Turn>)> {
        while self.free > 0 {
            let taken = |line: &Line| self.taken.get(&line.tenant).copied().unwrap_or(0);
            let (at, _) = (self.lines.iter().map(taken).enumerate())
                .filter(|(_, taken)| *taken < most_per_tenant)
                .min_by_key(|(_, taken)| *taken)?;
            let line = self.lines.get_mut(at)?;
            let waiter = line.waiters.pop_front()?;
            let tenant = Arc::clone(&line.tenant);
            let has_more = !line.waiters.is_empty();
            let is_gone = waiter.is_closed();
            if !has_more || !is_gone {
                let line = self.lines.remove(at)?;
                self.lines.extend(has_more.then_some(line));
            }
            if is_gone {
                continue;
            }
            self.free -= 1;
            *self.taken.entry(Arc::clone(&tenant)).or_default() += 1;
            return Some((tenant, waiter));
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.lock();
            state.free += 1;
            if let Some(taken) = state.taken.get_mut(&self.tenant) {
                *taken -= 1;
                if *taken == 0 {
                    state.taken.remove(&self.tenant);
                }
            }
        }
        self.turns.serve();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn polled<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn tenant(name: &str) -> Arc<str> {
        name.into()
    }

    #[test]
    fn a_tenant_gets_no_more_than_its_turns_even_if_others_are_free() {
        let turns = Turns::new(3, 2);
        let (slow, other) = (tenant("slow"), tenant("other"));
        let one = polled(pin!(turns.take(&slow))).expect("a turn");
        let _two = polled(pin!(turns.take(&slow))).expect("a turn");
        let mut third = pin!(turns.take(&slow));
        assert!(polled(third.as_mut()).is_none());
        let others = polled(pin!(turns.take(&other))).expect("a turn");
        assert!(polled(third.as_mut()).is_none());
        drop(others);
        assert!(polled(third.as_mut()).is_none(), "a free turn that another tenant may need");
        drop(one);
        assert!(polled(third.as_mut()).is_some());
    }

    #[test]
    fn the_next_turn_goes_to_the_tenant_with_the_fewest_that_has_waited_longest() {
        let turns = Turns::new(2, 2);
        let names = ["a", "b", "c"].map(tenant);
        let [a, b, c] = &names;
        let first = polled(pin!(turns.take(a))).expect("a turn");
        let second = polled(pin!(turns.take(a))).expect("a turn");
        let (mut third_of_a, mut of_b, mut of_c, mut second_of_b) =
            (pin!(turns.take(a)), pin!(turns.take(b)), pin!(turns.take(c)), pin!(turns.take(b)));
        assert!(polled(third_of_a.as_mut()).is_none());
        assert!(polled(of_b.as_mut()).is_none());
        assert!(polled(of_c.as_mut()).is_none());
        assert!(polled(second_of_b.as_mut()).is_none());
        drop(first);
        let of_b = polled(of_b.as_mut()).expect("a has one, b none");
        assert!(polled(third_of_a.as_mut()).is_none() && polled(of_c.as_mut()).is_none());
        drop(second);
        let third_of_a = polled(third_of_a.as_mut()).expect("it has waited longest");
        assert!(polled(of_c.as_mut()).is_none());
        drop(of_b);
        let of_c = polled(of_c.as_mut()).expect("b has been served, and c has not");
        assert!(polled(second_of_b.as_mut()).is_none());
        drop((of_c, third_of_a));
        assert!(polled(second_of_b.as_mut()).is_some());
    }

    #[test]
    fn a_waiter_that_has_gone_gets_no_turn() {
        let turns = Turns::new(1, 1);
        let names = ["a", "b"].map(tenant);
        let [a, b] = &names;
        let held = polled(pin!(turns.take(a))).expect("a turn");
        {
            let mut gone = Box::pin(turns.take(b));
            assert!(polled(gone.as_mut()).is_none());
        }
        let mut patient = pin!(turns.take(a));
        assert!(polled(patient.as_mut()).is_none());
        drop(held);
        assert!(polled(patient.as_mut()).is_some());
        let state = turns.lock();
        assert_eq!((state.free, state.taken.len(), state.lines.len()), (1, 0, 0));
    }
}
