//! The part of a handler run that threads share: why and when it must end, and how to wake it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use sandglass_model::{Cause, DeadlineOwner, FirstCause, Monotonic};

use crate::deadline::StartedDeadline;
use crate::in_flight::outside_of_guest;
use crate::present::Present;
use crate::race::CallEnded;
use crate::sync::lock;

/// Longest reason of a stop that is kept, in bytes: a sentence, because records carry it.
const REASON_MAX_BYTES: usize = 512;

const NOTICE_NOT_DUE: u8 = 0;
const NOTICE_DUE: u8 = 1;
const NOTICE_TAKEN: u8 = 2;

/// How far a run has come, for the name of what it dies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// The guest is being instantiated.
    Instantiating,
    /// The guest is instantiated.
    Running,
}

impl Phase {
    /// The dying span of a guest that is in its own code.
    #[must_use]
    pub const fn own_span(self) -> &'static str {
        match self {
            Self::Instantiating => "instantiate",
            Self::Running => "guest",
        }
    }
}

/// The shared part of one handler run.
///
/// Only the guest's thread decides, by the clock, whether the deadline has passed. Other threads
/// set a cause or wake the run; they never end it. So a run has exactly one cause, and a kill is
/// never early (test `a_run_is_due_only_after_its_deadline`).
#[derive(Debug)]
pub struct Run {
    cause: FirstCause,
    /// What the run is doing, for people.
    pub present: Present,
    /// Nanoseconds of the host's clock; `NEVER` until the budget has begun.
    began: AtomicU64,
    /// Nanoseconds of the host's clock; `NEVER` until the budget has begun.
    deadline: AtomicU64,
    /// When the guest is warned; `NEVER` if it is not.
    soft_deadline: AtomicU64,
    owner_is_parent: AtomicBool,
    /// Whether the guest was requested to stop by itself.
    is_stop_requested: AtomicBool,
    /// The notice that the run still runs: one of the `NOTICE_` constants.
    notice: AtomicU8,
    /// Whether the present host call was ended. It spares the other calls the lock.
    has_call_ended: AtomicBool,
    /// Why the present host call was ended; `None` once the call has left.
    call_ended: Mutex<Option<CallEnded>>,
    waiting: Mutex<Option<Waker>>,
    reason: Mutex<String>,
}

impl Default for Run {
    /// A run whose budget has not begun.
    fn default() -> Self {
        Self {
            cause: FirstCause::new(),
            present: Present::default(),
            began: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            deadline: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            soft_deadline: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            owner_is_parent: AtomicBool::new(false),
            is_stop_requested: AtomicBool::new(false),
            notice: AtomicU8::new(NOTICE_NOT_DUE),
            has_call_ended: AtomicBool::new(false),
            call_ended: Mutex::new(None),
            waiting: Mutex::new(None),
            reason: Mutex::new(String::new()),
        }
    }
}

impl Run {
    /// The budget begins.
    pub fn begin(&self, deadline: &StartedDeadline) {
        let parent = deadline.owner == DeadlineOwner::Parent;
        self.owner_is_parent.store(parent, Ordering::Relaxed);
        self.began.store(deadline.start.as_nanos(), Ordering::Relaxed);
        self.present.in_guest(Phase::Instantiating, deadline.start);
        self.deadline.store(deadline.at.as_nanos(), Ordering::Release);
    }

    /// When the budget ends; [`Monotonic::NEVER`] until it has begun.
    #[inline]
    pub fn deadline(&self) -> Monotonic {
        Monotonic::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// When the budget began, and when it ends. `None` until it has begun.
    pub fn budget(&self) -> Option<(Monotonic, Monotonic)> {
        let deadline = self.deadline();
        let began = Monotonic::from_nanos(self.began.load(Ordering::Relaxed));
        Some((began, deadline)).filter(|_| deadline != Monotonic::NEVER)
    }

    /// Sets the soft deadline: the guest is warned from `at` on.
    pub fn warn_from(&self, at: Monotonic) {
        self.soft_deadline.store(at.as_nanos(), Ordering::Release);
    }

    /// The soft deadline; [`Monotonic::NEVER`] if there is none.
    #[inline]
    pub fn soft_deadline(&self) -> Monotonic {
        Monotonic::from_nanos(self.soft_deadline.load(Ordering::Acquire))
    }

    /// Makes the notice due: the run sends it when it is polled next. The caller wakes the run.
    pub fn set_notice_due(&self) {
        let (old, new) = (NOTICE_NOT_DUE, NOTICE_DUE);
        // It fails if the notice was sent before.
        let _ = self.notice.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether a notice is due.
    #[inline]
    fn has_notice(&self) -> bool {
        self.notice.load(Ordering::Acquire) == NOTICE_DUE
    }

    /// Whether a notice is due, which counts as sent from now on.
    #[inline]
    pub fn take_notice(&self) -> bool {
        self.has_notice() && self.notice.swap(NOTICE_TAKEN, Ordering::AcqRel) == NOTICE_DUE
    }

    /// Whether no notice was sent. From now on it counts as sent.
    pub fn end_notices(&self) -> bool {
        self.notice.swap(NOTICE_TAKEN, Ordering::AcqRel) != NOTICE_TAKEN
    }

    /// Whether the guest should stop by itself at `now`.
    #[inline]
    pub fn should_stop(&self, now: Monotonic) -> bool {
        now >= self.soft_deadline() || self.is_stop_requested()
    }

    /// Whether the guest was requested to stop by itself.
    #[inline]
    pub fn is_stop_requested(&self) -> bool {
        self.is_stop_requested.load(Ordering::Acquire)
    }

    /// Requests that the guest stop by itself: it is warned from now on, and a host call that waits
    /// is cut short. A run that has not begun is stopped, because it has nothing to finish.
    pub fn request_stop(&self) {
        self.is_stop_requested.store(true, Ordering::Release);
        if self.deadline() == Monotonic::NEVER {
            self.stop(Cause::RunStopped, "its run was stopped before it began");
        }
        self.wake();
    }

    /// Notes why the present host call is ended. The run goes on.
    pub fn note_call_ended(&self, why: CallEnded) {
        *lock(&self.call_ended) = Some(why);
        self.has_call_ended.store(true, Ordering::Release);
    }

    /// Returns why the present host call was ended; `None` if it was not.
    #[inline]
    pub fn take_call_ended(&self) -> Option<CallEnded> {
        if !self.has_call_ended.load(Ordering::Acquire) {
            return None;
        }
        self.has_call_ended.store(false, Ordering::Release);
        lock(&self.call_ended).take()
    }

    /// Returns why the run must end at `now`; `None` if it may go on. If the deadline has passed and
    /// no other cause came first, the deadline becomes the cause.
    #[inline]
    pub fn due(&self, now: Monotonic) -> Option<Cause> {
        if let Some(cause) = self.cause.get() {
            return Some(cause);
        }
        if now > self.deadline() { Some(self.cause.set(self.deadline_cause())) } else { None }
    }

    fn deadline_cause(&self) -> Cause {
        if self.owner_is_parent.load(Ordering::Relaxed) {
            Cause::ParentDeadline
        } else {
            Cause::Deadline
        }
    }

    /// The cause that was set; `None` if the run may go on. It does not read the clock.
    #[inline]
    pub fn cause(&self) -> Option<Cause> {
        self.cause.get()
    }

    /// Sets the cause of the end, unless one is set already. Returns the cause that came first.
    pub fn set_cause(&self, cause: Cause) -> Cause {
        self.cause.set(cause)
    }

    /// Stops the run from outside, and wakes a host call that waits. Returns the cause that came
    /// first; only its reason is kept.
    pub fn stop(&self, cause: Cause, reason: &str) -> Cause {
        let cause = match cause {
            Cause::Cancel
            | Cause::StateLeft
            | Cause::Shutdown
            | Cause::CallerGone
            | Cause::RunStopped
            | Cause::OwnershipLost => cause,
            // Only the run itself knows that it returned, trapped or is late.
            _ => Cause::Cancel,
        };
        {
            // Locked while the cause is set, so that a reader of the cause finds its reason.
            let mut kept = lock(&self.reason);
            let holds = self.cause.set(cause);
            if holds != cause {
                return holds;
            }
            kept.clear();
            kept.extend(reason.chars().filter(|c| !c.is_control()));
            let end = kept.floor_char_boundary(REASON_MAX_BYTES);
            kept.truncate(end);
        }
        self.wake();
        cause
    }

    /// Why it was stopped; empty if no reason was given.
    pub fn reason(&self) -> String {
        lock(&self.reason).clone()
    }

    /// Wakes the task that polls the run, if it waits.
    pub fn wake(&self) {
        let waker = lock(&self.waiting).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Stores the waker, and wakes it if a notice is due already. The caller checks [`Run::due`] after
    /// this, so that no stop is missed.
    pub fn wait_with(&self, waker: &Waker) {
        {
            let mut waiting = lock(&self.waiting);
            match &*waiting {
                Some(held) if held.will_wake(waker) => {}
                _ => *waiting = Some(waker.clone()),
            }
        }
        if self.has_notice() {
            // The waker was not stored when the notice became due.
            outside_of_guest(|| waker.wake_by_ref());
        }
    }
}

/// Stops one dispatch, from any thread. Further stops have no effect: the first cause holds.
#[derive(Clone, Debug)]
pub struct StopHandle(pub(crate) Arc<Run>);

impl StopHandle {
    /// Stops the run, if it has not ended; returns the cause that ends it. A guest that waits is
    /// woken, and one that computes ends with its time slice. A cause that only the host can
    /// find (a deadline, a trap, a return) counts as [`Cause::Cancel`].
    pub fn stop(&self, cause: Cause, reason: &str) -> Cause {
        self.0.stop(cause, reason)
    }

    /// Requests that the run stop by itself: from now on `should_stop` is true for the guest, and a
    /// host call that waits ends with an error that says so. A queued run never begins. It ends
    /// nothing else; the caller stops a guest that ignores the request.
    pub fn request_stop(&self) {
        self.0.request_stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::DispatchDeadline;
    use std::time::Duration;

    #[test]
    fn a_run_is_due_only_after_its_deadline() {
        let run = Run::default();
        let started =
            DispatchDeadline::after(Duration::from_millis(5)).start(Monotonic::from_nanos(1));
        assert_eq!(run.due(Monotonic::from_nanos(u64::MAX - 1)), None, "its budget has not begun");
        run.begin(&started);
        assert_eq!(run.due(started.at), None);
        assert_eq!(run.due(started.at.after(Duration::from_nanos(1))), Some(Cause::Deadline));
    }

    #[test]
    fn a_notice_is_taken_once() {
        let run = Run::default();
        assert!(!run.take_notice(), "it is not due");
        run.set_notice_due();
        assert!(run.has_notice());
        assert!(run.take_notice());
        run.set_notice_due();
        assert!(!run.has_notice() && !run.take_notice(), "it was sent");
        assert!(!run.end_notices());
        let other = Run::default();
        assert!(other.end_notices(), "none was sent");
        other.set_notice_due();
        assert!(!other.take_notice());
    }

    #[test]
    fn a_stop_keeps_the_reason_of_the_cause_that_holds() {
        let run = Run::default();
        assert_eq!(run.stop(Cause::Cancel, "not \u{1b}needed"), Cause::Cancel);
        assert_eq!(run.stop(Cause::Shutdown, "bye"), Cause::Cancel);
        assert_eq!(run.reason(), "not needed");
        assert_eq!(run.due(Monotonic::from_nanos(0)), Some(Cause::Cancel));
        assert_eq!(Run::default().stop(Cause::OwnershipLost, ""), Cause::OwnershipLost);
        assert_eq!(
            Run::default().stop(Cause::Deadline, ""),
            Cause::Cancel,
            "only the clock decides that"
        );
    }
}
