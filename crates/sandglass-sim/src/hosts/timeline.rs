//! The one scheduler of a world: it owns the clock and decides which host goes on. A host runs only when
//! an event of it is due, so one that is paused is one whose events wait, and one that has crashed is one
//! whose events are dropped.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use super::sim::Sim;
use crate::scene::lock;

/// A millisecond of true time, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;
/// A second of true time, in nanoseconds.
pub(crate) const SECOND: u64 = 1_000 * MS;

/// One process of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Life {
    /// Which host.
    pub(crate) slot: usize,
    /// How many processes the host had before.
    pub(crate) number: u32,
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "h{}.{}", self.slot, self.number)
    }
}

/// Something that happens outside of all processes.
type Deed = Box<dyn FnOnce(&Arc<Sim>) + Send>;

/// What happens at an instant.
pub(crate) enum Act {
    /// A task of the process continues, unless it does not wait any more.
    Wake(Arc<Mutex<Option<Waker>>>),
    /// Anything else, outside of all processes.
    Do(Deed),
}

/// What happens next, in the order of time, and of two events at one instant in the order in which they
/// were added.
#[derive(Default)]
pub(crate) struct Timeline {
    pub(crate) now: u64,
    next: u64,
    events: BTreeMap<(u64, u64), (Option<Life>, Act)>,
}

impl Timeline {
    /// Adds an event, at the earliest now. If it is of a process, it waits while that is paused.
    pub(crate) fn add(&mut self, at: u64, of: Option<Life>, act: Act) {
        self.next += 1;
        self.events.insert((at.max(self.now), self.next), (of, act));
    }

    /// Takes the next event; the time is that of the event then.
    pub(crate) fn pop(&mut self) -> Option<(u64, Option<Life>, Act)> {
        let ((at, number), (of, act)) = self.events.pop_first()?;
        self.now = self.now.max(at);
        Some((number, of, act))
    }

    /// Puts an event back that has to wait until `at`. Events of one process keep their order.
    pub(crate) fn put_back(&mut self, at: u64, number: u64, of: Life, act: Act) {
        self.events.insert((at, number), (Some(of), act));
    }

    /// Lets the events of paused processes happen from now on.
    pub(crate) fn bring_forward(&mut self, of: Life, until: u64) {
        let now = self.now;
        let waiting: Vec<(u64, u64)> = self
            .events
            .iter()
            .filter(|((at, _), (whose, _))| *whose == Some(of) && *at == until)
            .map(|(key, _)| *key)
            .collect();
        for key in waiting {
            if let Some(event) = self.events.remove(&key) {
                self.events.insert((now, key.1), event);
            }
        }
    }

    pub(crate) fn clear(&mut self) -> BTreeMap<(u64, u64), (Option<Life>, Act)> {
        std::mem::take(&mut self.events)
    }
}

/// Waits until a true time, as a task of a process.
pub(crate) struct Sleep {
    sim: Arc<Sim>,
    of: Life,
    until: u64,
    waker: Option<Arc<Mutex<Option<Waker>>>>,
}

impl Sleep {
    pub(crate) const fn new(sim: Arc<Sim>, of: Life, until: u64) -> Self {
        Self { sim, of, until, waker: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut timeline = lock(&this.sim.timeline);
        if timeline.now >= this.until {
            return Poll::Ready(());
        }
        match &this.waker {
            Some(waker) => *lock(waker) = Some(context.waker().clone()),
            None => {
                let waker = Arc::new(Mutex::new(Some(context.waker().clone())));
                timeline.add(this.until, Some(this.of), Act::Wake(Arc::clone(&waker)));
                this.waker = Some(waker);
            }
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(waker) = &self.waker {
            *lock(waker) = None;
        }
    }
}
