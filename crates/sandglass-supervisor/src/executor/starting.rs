//! Starts runs: polls each for the first time, one after the other, on the threads of
//! guests. Most are over with that; the others become tasks of their own. So a run that
//! never waits costs no task, and while there is work no thread goes to sleep or is woken.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sandglass_model::Clock;
use tokio::task;

use crate::ticker::SLICE;

/// A run under way, which tells somebody how it went.
type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Makes a run, on the thread that starts it: what a run takes is some kilobytes, and they
/// are given back on the thread that took them, for the next one.
pub(super) type Begin = Box<dyn FnOnce() -> Run + Send>;

/// The runs that nobody has started yet. Admission bounds how many there are.
#[derive(Default)]
pub(super) struct Line(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    runs: VecDeque<Begin>,
    /// What wakes those starters that found nothing to start, by their number.
    idle: Vec<(usize, Waker)>,
}

impl Line {
    /// Has a run started by the next starter that comes to it.
    pub(super) fn join(&self, begin: Begin) {
        let idle = {
            let mut waiting = self.waiting();
            waiting.runs.push_back(begin);
            waiting.idle.pop()
        };
        if let Some((_, waker)) = idle {
            waker.wake();
        }
    }

    /// The next run to start; where there is none, `starter` is woken by the next that comes.
    fn next(&self, starter: usize, waker: &Waker) -> Option<Begin> {
        let mut waiting = self.waiting();
        let next = waiting.runs.pop_front();
        // One that was woken by something else is still there.
        waiting.idle.retain(|(idle, _)| *idle != starter);
        if next.is_none() {
            waiting.idle.push((starter, waker.clone()));
        }
        next
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts runs for as long as its executor lives; there is one for each thread.
pub(super) struct Starter {
    line: Arc<Line>,
    number: usize,
    clock: Arc<dyn Clock>,
}

impl Starter {
    pub(super) fn new(line: &Arc<Line>, number: usize, clock: &Arc<dyn Clock>) -> Self {
        Self { line: Arc::clone(line), number, clock: Arc::clone(clock) }
    }
}

impl Future for Starter {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Those that start and those that go on have the thread for equally long.
        let until = self.clock.now().after(SLICE);
        loop {
            let Some(begin) = self.line.next(self.number, context.waker()) else {
                return Poll::Pending;
            };
            // One that isn't over has held the thread for a slice, perhaps.
            if start(begin).is_pending() || self.clock.now() >= until {
                break;
            }
        }
        // Behind all tasks that wait for this thread, and after its look for I/O.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Begins a run and polls it once. Where it isn't over, it goes on as a task, by whose first
/// poll it says what wakes it. A panic ends the run alone, as it would end its task.
fn start(begin: Begin) -> Poll<()> {
    let started = catch_unwind(AssertUnwindSafe(|| {
        let mut run = begin();
        let polled = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_pending() {
            task::spawn(go_on(run));
        }
        polled
    }));
    started.unwrap_or(Poll::Ready(()))
}

/// The rest of a run, once its thread has looked for I/O and for new runs: the task itself
/// would go before that.
async fn go_on(run: Run) {
    task::yield_now().await;
    run.await;
}
