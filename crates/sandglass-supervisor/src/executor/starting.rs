//! Starts runs: polls them for the first time, one after the other, on the threads for guests. Most
//! end with that; the others become tasks. So a run that never waits costs no task, and no thread
//! sleeps or is woken while there is work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use sandglass_model::Clock;
use tokio::task;

use crate::sync::lock;
use crate::ticker::SLICE;

/// A started run.
type Run = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Creates a run, on the thread that starts it: its few kilobytes are then freed on the thread that
/// allocated them, for the next run.
pub type Begin = Box<dyn FnOnce() -> Run + Send>;

/// The runs that have not started yet. Admission bounds their number.
#[derive(Default)]
pub(super) struct Line(Mutex<Backlog>);

#[derive(Default)]
struct Backlog {
    runs: VecDeque<Begin>,
    /// The wakers of starters that have found nothing to start, by their number.
    idle: Vec<(usize, Waker)>,
}

impl Line {
    /// Adds a run for the next free starter.
    pub(super) fn join(&self, begin: Begin) {
        let idle = {
            let mut waiting = lock(&self.0);
            waiting.runs.push_back(begin);
            waiting.idle.pop()
        };
        if let Some((_, waker)) = idle {
            waker.wake();
        }
    }

    /// Returns the next run to start. If there is none, the next new run wakes `starter`.
    fn next(&self, starter: usize, waker: &Waker) -> Option<Begin> {
        let mut waiting = lock(&self.0);
        let next = waiting.runs.pop_front();
        // A starter that was woken for another reason is still in the list.
        waiting.idle.retain(|(idle, _)| *idle != starter);
        if next.is_none() {
            waiting.idle.push((starter, waker.clone()));
        }
        next
    }
}

/// Starts runs as long as its executor lives; each thread has one.
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
        // Starting runs and continuing tasks get equal shares of the thread.
        let until = self.clock.now().after(SLICE);
        loop {
            let Some(begin) = self.line.next(self.number, context.waker()) else {
                return Poll::Pending;
            };
            // A run that is pending may have used the thread for a whole slice.
            if start(begin).is_pending() || self.clock.now() >= until {
                break;
            }
        }
        // After all tasks that wait for this thread, and after its check for I/O.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Begins a run and polls it once. If it is pending, it continues as a task, whose first poll
/// registers its waker. A panic ends this run only, as it would end a task.
pub(super) fn start(begin: Begin) -> Poll<()> {
    let started = catch_unwind(AssertUnwindSafe(|| {
        let mut run = begin();
        let polled = run.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if polled.is_pending() {
            task::spawn(continue_run(run));
        }
        polled
    }));
    started.unwrap_or(Poll::Ready(()))
}

/// Continues a run after its thread has checked for I/O and for new runs, before which tokio would
/// otherwise poll a new task.
async fn continue_run(run: Run) {
    task::yield_now().await;
    run.await;
}
