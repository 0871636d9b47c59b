//! The calls that are in flight at the same time: of a guest with tasks of its own, which goes on
//! while it waits for a call.
//!
//! ```text
//! guest --> enter --> ready at once? --yes--> leave, as any other call
//!                          |
//!                          no --> suspend; the guest goes on with its other tasks
//!                                    |
//!     what the call waits for is polled here, beside the guest
//!                                    |
//!     the guest can do nothing else, or yields --> deliver one completion --> resume --> leave
//! ```
//!
//! A guest learns of a completion only at a *point*: when all of its tasks wait, or when one yields.
//! So the order of completions, and the points at which they are delivered, determine what the guest
//! does. A recording has both, and a replay delivers the same completions at the same points.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use sandglass_model::Monotonic;

use crate::sync::lock;

thread_local! {
    /// Whether this thread polls a guest, and not something that the guest waits for.
    static IN_GUEST: Cell<bool> = const { Cell::new(false) };
}

/// Polls a guest.
pub fn in_guest<T>(poll: impl FnOnce() -> T) -> T {
    with_in_guest(true, poll)
}

/// Polls something that a guest waits for, or that interrupts it: what that wakes does not count as a
/// yield of the guest.
pub fn outside_of_guest<T>(poll: impl FnOnce() -> T) -> T {
    with_in_guest(false, poll)
}

/// Whether this thread polls a guest: what wakes the guest now is the guest itself.
#[must_use]
pub fn is_in_guest() -> bool {
    IN_GUEST.get()
}

fn with_in_guest<T>(is_in_guest: bool, poll: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            IN_GUEST.set(self.0);
        }
    }
    let _reset = Reset(IN_GUEST.replace(is_in_guest));
    poll()
}

/// What the host holds for one call in flight besides what the call itself is charged for, in bytes:
/// its entries here and in the engine, and what it waits for.
pub const CALL_BYTES: u64 = 4 << 10;

/// What a call waits for. Its result is stored where the call finds it.
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls of one run that are in flight. Clones share them.
#[derive(Clone, Debug)]
pub struct InFlight(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    woken: Arc<Woken>,
    /// How many calls of the guest have begun, in flight or not.
    begun: AtomicU64,
}

/// The calls whose work was woken since it was last polled.
#[derive(Debug, Default)]
struct Woken {
    calls: Mutex<BTreeSet<u64>>,
    /// Wakes the task that drives the guest.
    driver: Mutex<Option<Waker>>,
}

#[derive(Default)]
struct State {
    /// What the calls wait for, and their entries in `moments`; empty in a replay.
    works: BTreeMap<u64, (Work, Vec<Monotonic>)>,
    /// Moments after which works are polled in any case.
    moments: BTreeSet<(Monotonic, u64)>,
    /// Whether the works know that the run was requested to stop.
    knows_stop: bool,
    /// The calls that wait for their completion to be delivered.
    waiting: BTreeMap<u64, Option<Waker>>,
    /// Completed calls, in the order in which they are delivered.
    completed: VecDeque<u64>,
    /// The call whose completion is delivered, until its guest learns of it.
    delivered: Option<u64>,
    /// That completion.
    delivery: Option<Completion>,
    /// Since when the guest waits.
    waits_since: Option<Monotonic>,
    /// How long it has waited.
    waited: Duration,
    /// The present point, as [`Completion::point`] counts it.
    point: u64,
    /// Calls that the guest has cancelled, for the account of the run.
    withdrawn: Vec<Withdrawn>,
    /// Whether the guest has ended, so that nothing is withdrawn any more.
    is_closed: bool,
    /// Whether the guest's own code is interrupted at the end of a time slice.
    is_interrupted: bool,
    /// What a replay delivers; `None` if the run is not a replay.
    schedule: Option<Schedule>,
}

/// The completions of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// In their order.
    pub completions: VecDeque<Completion>,
    /// How many calls begin in the recording.
    pub calls: u64,
    /// Whether the replay ends before its guest does.
    pub is_cut: bool,
    /// Whether it may end where the guest yields: not if the recorded guest waited for calls in
    /// flight, or made another call.
    pub ends_at_yield: bool,
}

/// The completion of a call in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the call.
    pub call: u64,
    /// The point of the delivery, counted from the last one: 0 if the guest waited then, 1 at its
    /// first yield, 2 if it waited after that, 3 at its second yield, and so on.
    pub point: u64,
    /// How many calls had begun then. A guest that yields may begin more before it learns of the
    /// completion.
    pub begun: u64,
}

impl Completion {
    /// Whether the guest yielded when it was delivered.
    #[must_use]
    pub const fn is_at_yield(&self) -> bool {
        self.point % 2 == 1
    }
}

/// A call that its guest has cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// The number of the call.
    pub call: u64,
    /// Its completion, if that was delivered before, but its guest had not learned of it yet.
    pub delivered: Option<Completion>,
}

/// What happened at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// A completion was delivered: the guest goes on.
    Delivered,
    /// No completion is there yet.
    Nothing,
    /// The recorded run was ended here.
    AtEnd,
    /// The recording continues in another way.
    Differs,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl State {
    /// Takes the completion of `call` that was delivered, if its guest has not learned of it.
    fn take_back(&mut self, call: u64) -> Option<Completion> {
        self.delivered.take_if(|delivered| *delivered == call)?;
        self.delivery.take()
    }

    fn forget_moments(&mut self, call: u64, moments: &[Monotonic]) {
        for at in moments {
            self.moments.remove(&(*at, call));
        }
    }

    fn end_wait(&mut self, now: Monotonic) {
        if let Some(since) = self.waits_since.take() {
            self.waited = self.waited.saturating_add(now.since(since));
        }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let driver = lock(&self.driver).clone();
        if let Some(driver) = driver {
            driver.wake();
        }
    }
}

/// Wakes the work of one call.
struct WorkWaker {
    call: u64,
    woken: Arc<Woken>,
}

impl Wake for WorkWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.woken.calls).insert(self.call);
        Arc::clone(&self.woken).wake();
    }
}

impl InFlight {
    /// No calls yet, of a run that is not a replay.
    #[must_use]
    pub fn new() -> Self {
        Self::of(State::default())
    }

    /// No calls yet, of a replay that delivers what is in `schedule`.
    #[must_use]
    pub fn replaying(schedule: Schedule) -> Self {
        Self::of(State { schedule: Some(schedule), ..State::default() })
    }

    fn of(state: State) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            woken: Arc::default(),
            begun: AtomicU64::new(0),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Notes that a call begins.
    pub(crate) fn note_begun(&self) {
        self.0.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a call, with its work, and the moments after which that is polled in any case, such as that
    /// of the call's time limit. A replay has no work. Returns what waits for the delivery of the
    /// completion.
    pub fn add(&self, call: u64, work: Option<(Work, Vec<Monotonic>)>) -> Delivered {
        let mut state = self.state();
        state.waiting.insert(call, None);
        if let Some((work, moments)) = work {
            state.moments.extend(moments.iter().map(|at| (*at, call)));
            state.works.insert(call, (work, moments));
            lock(&self.0.woken.calls).insert(call);
        }
        Delivered { in_flight: self.clone(), call }
    }

    /// Polls what the calls wait for, as far as it was woken, in the task of `context`.
    pub fn poll(&self, context: &Context<'_>, now: Monotonic, is_stop_requested: bool) {
        {
            let mut driver = lock(&self.0.woken.driver);
            if !driver.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *driver = Some(context.waker().clone());
            }
        }
        // Those whose moment has passed first, by their moments: the task may be late for several.
        let mut woken = Vec::new();
        {
            let mut state = self.state();
            while let Some((at, call)) = state.moments.first().copied().filter(|(at, _)| *at < now)
            {
                state.moments.remove(&(at, call));
                woken.push(call);
            }
            woken.extend(mem::take(&mut *lock(&self.0.woken.calls)));
            if is_stop_requested && !mem::replace(&mut state.knows_stop, true) {
                woken.extend(state.works.keys());
            }
        }
        for call in woken {
            let Some((mut work, moments)) = self.state().works.remove(&call) else { continue };
            let waker = Waker::from(Arc::new(WorkWaker { call, woken: Arc::clone(&self.0.woken) }));
            // Not locked, because the work may begin or end what it likes.
            match work.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(()) => {
                    let mut state = self.state();
                    state.forget_moments(call, &moments);
                    state.completed.push_back(call);
                }
                Poll::Pending => {
                    self.state().works.insert(call, (work, moments));
                }
            }
        }
    }

    /// Delivers the next completion at a point: the guest waits, or it `yields`.
    #[must_use]
    pub fn deliver(&self, yields: bool, now: Monotonic) -> Delivery {
        let begun = self.0.begun.load(Ordering::Relaxed);
        let waker = {
            let mut state = self.state();
            // Yields have odd numbers, waits even ones.
            state.point += match (yields, state.point.is_multiple_of(2)) {
                (true, false) => 2,
                (true, true) | (false, false) => 1,
                (false, true) => 0,
            };
            let point = state.point;
            if state.delivered.is_some() {
                return Delivery::Nothing;
            }
            let call = match &mut state.schedule {
                None => match state.completed.pop_front() {
                    Some(call) => call,
                    None => {
                        if !yields {
                            state.waits_since.get_or_insert(now);
                        }
                        return Delivery::Nothing;
                    }
                },
                Some(schedule) => match schedule.next(yields, point, begun) {
                    Ok(call) => call,
                    Err(delivery) => return delivery,
                },
            };
            let Some(waker) = state.waiting.remove(&call) else { return Delivery::Differs };
            state.delivered = Some(call);
            state.delivery = Some(Completion { call, point, begun });
            state.point = 0;
            state.end_wait(now);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        Delivery::Delivered
    }

    /// Takes how long the guest has waited for its calls until `now`.
    #[must_use]
    pub fn take_waited(&self, now: Monotonic) -> Duration {
        let mut state = self.state();
        state.end_wait(now);
        mem::take(&mut state.waited)
    }

    /// Takes the last completion that was delivered.
    #[must_use]
    pub fn take_delivery(&self) -> Option<Completion> {
        self.state().delivery.take()
    }

    /// Takes the calls that the guest has cancelled.
    #[must_use]
    pub fn take_withdrawn(&self) -> Vec<Withdrawn> {
        mem::take(&mut self.state().withdrawn)
    }

    /// Whether something keeps the guest from its next point: its own code is interrupted.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.state().is_interrupted
    }

    /// Interrupts the guest's own code until `pause` has passed.
    pub async fn interrupted(self, pause: impl Future<Output = ()>) {
        self.state().is_interrupted = true;
        let mut pause = pin!(pause);
        std::future::poll_fn(|context| outside_of_guest(|| pause.as_mut().poll(context))).await;
        self.state().is_interrupted = false;
    }

    /// The guest has ended. What its calls wait for is dropped.
    pub fn close(&self) {
        let works = {
            let mut state = self.state();
            state.is_closed = true;
            state.moments.clear();
            mem::take(&mut state.works)
        };
        // Not locked: what is dropped may be anything.
        drop(works);
    }

    /// Forgets a call that the guest has cancelled.
    fn withdraw(&self, call: u64) {
        let work = {
            let mut state = self.state();
            let was_waiting = state.waiting.remove(&call).is_some();
            let delivered = state.take_back(call);
            if state.is_closed || !(was_waiting || delivered.is_some()) {
                return;
            }
            state.withdrawn.push(Withdrawn { call, delivered });
            state.completed.retain(|completed| *completed != call);
            let work = state.works.remove(&call);
            if let Some((_, moments)) = &work {
                state.forget_moments(call, moments);
            }
            work
        };
        drop(work);
    }
}

impl Default for InFlight {
    fn default() -> Self {
        Self::new()
    }
}

impl Schedule {
    /// The call whose completion is next, if it is delivered at this point.
    fn next(&mut self, is_yield: bool, point: u64, begun: u64) -> Result<u64, Delivery> {
        let Some(next) = self.completions.front() else {
            let is_at_end = begun >= self.calls && self.is_cut;
            return Err(match (is_at_end, is_yield) {
                (true, false) => Delivery::AtEnd,
                (true, true) if self.ends_at_yield => Delivery::AtEnd,
                (_, true) => Delivery::Nothing,
                (false, false) => Delivery::Differs,
            });
        };
        if next.begun == begun && next.point == point {
            let call = next.call;
            self.completions.pop_front();
            return Ok(call);
        }
        let may_come = next.begun > begun || next.point > point;
        Err(if is_yield && may_come { Delivery::Nothing } else { Delivery::Differs })
    }
}

/// Waits until the completion of a call is delivered. Dropped before, it cancels the call.
#[derive(Debug)]
#[must_use = "dropping it cancels the call"]
pub struct Delivered {
    in_flight: InFlight,
    call: u64,
}

impl Future for Delivered {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.in_flight.state();
        if state.delivered == Some(self.call) {
            state.delivered = None;
            return Poll::Ready(());
        }
        if let Some(waker) = state.waiting.get_mut(&self.call) {
            *waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Delivered {
    fn drop(&mut self) {
        self.in_flight.withdraw(self.call);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use tokio::sync::oneshot;

    const NOW: Monotonic = Monotonic::from_nanos(1_000);

    fn poll(in_flight: &InFlight, now: Monotonic) {
        in_flight.poll(&Context::from_waker(Waker::noop()), now, false);
    }

    fn has_ended(mut call: Pin<&mut Delivered>) -> bool {
        call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Work that ends with a message.
    fn work() -> (oneshot::Sender<()>, Work) {
        let (sender, receiver) = oneshot::channel();
        (sender, Box::pin(async { receiver.await.expect("sent") }))
    }

    #[test]
    fn completions_are_delivered_one_at_a_time_in_the_order_in_which_they_came() {
        let in_flight = InFlight::new();
        let (senders, works): (Vec<_>, Vec<_>) = (0..3).map(|_| work()).unzip();
        let mut calls: Vec<_> = (1..)
            .zip(works)
            .map(|(call, work)| Box::pin(in_flight.add(call, Some((work, Vec::new())))))
            .collect();
        poll(&in_flight, NOW);
        assert_eq!(in_flight.deliver(false, NOW), Delivery::Nothing);
        let mut senders: Vec<_> = senders.into_iter().map(Some).collect();
        for sent in [2, 0] {
            senders[sent].take().expect("not sent yet").send(()).expect("it waits");
            poll(&in_flight, NOW);
        }
        let later = Monotonic::from_nanos(4_000);
        for (expected, now) in [(2, later), (0, Monotonic::from_nanos(9_000))] {
            assert_eq!(in_flight.deliver(false, now), Delivery::Delivered);
            let ended: Vec<_> = (0..3).filter(|call| has_ended(calls[*call].as_mut())).collect();
            assert_eq!(ended, [expected]);
        }
        assert_eq!(in_flight.deliver(false, later), Delivery::Nothing);
        let waited = in_flight.take_waited(later);
        assert_eq!(waited, Duration::from_nanos(3_000), "only until the first completion");
    }

    #[test]
    fn points_are_odd_at_yields_and_even_at_waits() {
        let in_flight = InFlight::new();
        let at = |yields: &[bool]| {
            yields.iter().for_each(|yields| {
                let _ = in_flight.deliver(*yields, NOW);
            });
            mem::take(&mut in_flight.state().point)
        };
        assert_eq!(at(&[false]), 0);
        assert_eq!(at(&[false, false]), 0, "it still waits");
        assert_eq!(at(&[true]), 1);
        assert_eq!(at(&[true, false]), 2);
        assert_eq!(at(&[true, true]), 3);
        assert_eq!(at(&[true, false, true]), 3);
    }

    #[test]
    fn work_is_polled_when_it_is_woken_at_its_moments_and_at_a_request_to_stop() {
        let in_flight = InFlight::new();
        let polls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&polls);
        let work: Work = Box::pin(std::future::poll_fn(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Poll::Pending
        }));
        let _call = in_flight.add(1, Some((work, vec![Monotonic::from_nanos(5_000)])));
        let polled = |nanos: u64, is_stop_requested: bool| {
            let now = Monotonic::from_nanos(nanos);
            in_flight.poll(&Context::from_waker(Waker::noop()), now, is_stop_requested);
            polls.load(Ordering::Relaxed)
        };
        assert_eq!(polled(1_000, false), 1, "when it is added");
        assert_eq!(polled(5_000, false), 1, "its moment has not passed");
        assert_eq!(polled(5_001, false), 2);
        assert_eq!(polled(9_000, true), 3);
        assert_eq!(polled(9_000, true), 3, "it knows");
    }

    #[test]
    fn a_call_that_is_dropped_is_forgotten_and_noted_unless_its_guest_has_ended() {
        let in_flight = InFlight::new();
        let (sender, receiver) = work();
        let call = in_flight.add(7, Some((receiver, Vec::new())));
        sender.send(()).expect("it waits");
        poll(&in_flight, NOW);
        drop(call);
        assert_eq!(in_flight.deliver(false, NOW), Delivery::Nothing);
        assert_eq!(in_flight.take_withdrawn(), [Withdrawn { call: 7, delivered: None }]);
        let (sender, receiver) = work();
        let moment = Monotonic::from_nanos(5_000);
        drop(in_flight.add(9, Some((receiver, vec![moment]))));
        assert!(sender.is_closed() && in_flight.state().moments.is_empty());
        assert_eq!(in_flight.take_withdrawn(), [Withdrawn { call: 9, delivered: None }]);
        let (sender, receiver) = work();
        let call = in_flight.add(8, Some((receiver, Vec::new())));
        in_flight.close();
        assert!(sender.is_closed(), "what it waited for is dropped");
        drop(call);
        assert!(in_flight.take_withdrawn().is_empty());
    }

    #[test]
    fn a_completion_that_is_cancelled_before_the_guest_learns_of_it_is_known_and_replayed() {
        let in_flight = InFlight::new();
        let (sender, receiver) = work();
        let call = in_flight.add(1, Some((receiver, Vec::new())));
        sender.send(()).expect("it waits");
        poll(&in_flight, NOW);
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Delivered);
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Nothing);
        drop(call);
        let taken_back = Completion { call: 1, point: 1, begun: 0 };
        assert_eq!(
            in_flight.take_withdrawn(),
            [Withdrawn { call: 1, delivered: Some(taken_back) }]
        );
        assert_eq!(in_flight.take_delivery(), None);
        let (sender, receiver) = work();
        let mut next = Box::pin(in_flight.add(2, Some((receiver, Vec::new()))));
        sender.send(()).expect("it waits");
        poll(&in_flight, NOW);
        assert_eq!(in_flight.deliver(false, NOW), Delivery::Delivered);
        assert!(has_ended(next.as_mut()));
        let completion = Completion { call: 2, point: 2, begun: 0 };
        assert_eq!(in_flight.take_delivery(), Some(completion), "after another yield");

        let schedule =
            Schedule { completions: [taken_back, completion].into(), ..Schedule::default() };
        let in_flight = InFlight::replaying(schedule);
        let call = in_flight.add(1, None);
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Delivered);
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Nothing);
        drop(call);
        assert_eq!(
            in_flight.take_withdrawn(),
            [Withdrawn { call: 1, delivered: Some(taken_back) }]
        );
        let mut next = Box::pin(in_flight.add(2, None));
        assert_eq!(in_flight.deliver(false, NOW), Delivery::Delivered);
        assert!(has_ended(next.as_mut()));
    }

    #[test]
    fn a_replay_delivers_a_completion_at_its_point_and_nowhere_else() {
        let completion = |call, point, begun| Completion { call, point, begun };
        let schedule = |completions: &[Completion]| Schedule {
            completions: completions.iter().copied().collect(),
            calls: 2,
            is_cut: true,
            ends_at_yield: false,
        };
        let second_first = [completion(2, 3, 2), completion(1, 0, 2)];
        let in_flight = InFlight::replaying(schedule(&second_first));
        let mut calls = [1, 2].map(|call| {
            in_flight.note_begun();
            Box::pin(in_flight.add(call, None))
        });
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Nothing, "the first yield");
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Delivered, "the second");
        assert!(!has_ended(calls[0].as_mut()) && has_ended(calls[1].as_mut()));
        assert_eq!(in_flight.take_delivery(), Some(second_first[0]));
        assert_eq!(in_flight.deliver(false, NOW), Delivery::Delivered);
        assert_eq!(in_flight.deliver(false, NOW), Delivery::Nothing, "the guest must learn of it");
        assert!(has_ended(calls[0].as_mut()));
        assert_eq!(in_flight.take_delivery(), Some(second_first[1]));
        assert_eq!(in_flight.deliver(true, NOW), Delivery::Nothing, "it was ended at a wait");
        assert_eq!(in_flight.deliver(false, NOW), Delivery::AtEnd);

        // It waits where the recorded guest yielded, or before it made its second call.
        for (completions, begun) in [(&second_first[..], 2), (&second_first[..], 1), (&[], 1)] {
            let in_flight = InFlight::replaying(schedule(completions));
            let _calls: Vec<_> = (0..begun)
                .map(|call| {
                    in_flight.note_begun();
                    in_flight.add(call, None)
                })
                .collect();
            assert_eq!(in_flight.deliver(false, NOW), Delivery::Differs);
        }
    }

    #[tokio::test]
    async fn what_interrupts_the_guest_is_no_point() {
        let in_flight = InFlight::new();
        let mut interrupted = pin!(in_flight.clone().interrupted(tokio::task::yield_now()));
        assert!(!in_flight.is_interrupted());
        let first = interrupted.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(first.is_pending() && in_flight.is_interrupted());
        interrupted.await;
        assert!(!in_flight.is_interrupted());
    }
}
