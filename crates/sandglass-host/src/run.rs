//! One run as other threads see it: why it must end, when it must, and how to
//! wake it where it waits.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use sandglass_model::{Cause, DeadlineOwner, FirstCause, Monotonic};

use crate::deadline::StartedDeadline;
use crate::present::Present;
use crate::race::CallEnded;
use crate::store::Phase;

/// Longest reason that a stop keeps, in bytes: a sentence, as records carry it.
const REASON_MAX_BYTES: usize = 512;

const NOTICE_NOT_DUE: u8 = 0;
const NOTICE_DUE: u8 = 1;
const NOTICE_TAKEN: u8 = 2;

/// The shared part of one run. The guest's thread decides by the clock whether
/// its deadline has passed; whoever else touches this only names a cause or
/// wakes it up.
#[derive(Debug)]
pub(crate) struct Run {
    cause: FirstCause,
    /// What it does at this moment, for people.
    pub(crate) present: Present,
    /// Nanoseconds of the host's clock; `NEVER` until the budget has begun.
    began: AtomicU64,
    /// Nanoseconds of the host's clock; `NEVER` until the budget has begun.
    deadline: AtomicU64,
    /// From when on the guest is warned; `NEVER` where it isn't.
    soft_deadline: AtomicU64,
    owner_is_parent: AtomicBool,
    /// Whether somebody has asked it to end by itself.
    is_asked: AtomicBool,
    /// Whether it is to tell that it still runs: one of the words below.
    notice: AtomicU8,
    /// Whether the present host call was ended, so that calls that weren't take no lock.
    has_call_ended: AtomicBool,
    /// Why the present host call was ended, until it has left.
    call_ended: Mutex<Option<CallEnded>>,
    waiting: Mutex<Option<Waker>>,
    reason: Mutex<String>,
}

impl Run {
    pub(crate) fn new() -> Self {
        Self {
            cause: FirstCause::new(),
            present: Present::default(),
            began: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            deadline: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            soft_deadline: AtomicU64::new(Monotonic::NEVER.as_nanos()),
            owner_is_parent: AtomicBool::new(false),
            is_asked: AtomicBool::new(false),
            notice: AtomicU8::new(NOTICE_NOT_DUE),
            has_call_ended: AtomicBool::new(false),
            call_ended: Mutex::new(None),
            waiting: Mutex::new(None),
            reason: Mutex::new(String::new()),
        }
    }

    pub(crate) fn begin(&self, deadline: &StartedDeadline) {
        let parent = deadline.owner == DeadlineOwner::Parent;
        self.owner_is_parent.store(parent, Ordering::Relaxed);
        self.began.store(deadline.start.as_nanos(), Ordering::Relaxed);
        self.present.in_guest(Phase::Instantiating, deadline.start);
        self.deadline.store(deadline.at.as_nanos(), Ordering::Release);
    }

    #[inline]
    pub(crate) fn deadline(&self) -> Monotonic {
        Monotonic::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// When its budget began and when it ends, once it has begun.
    pub(crate) fn budget(&self) -> Option<(Monotonic, Monotonic)> {
        let deadline = self.deadline();
        let began = Monotonic::from_nanos(self.began.load(Ordering::Relaxed));
        Some((began, deadline)).filter(|_| deadline != Monotonic::NEVER)
    }

    /// Has the guest warned from `at` on.
    pub(crate) fn warn_from(&self, at: Monotonic) {
        self.soft_deadline.store(at.as_nanos(), Ordering::Release);
    }

    /// From when on the guest is warned; never, unless that was set.
    #[inline]
    pub(crate) fn soft_deadline(&self) -> Monotonic {
        Monotonic::from_nanos(self.soft_deadline.load(Ordering::Acquire))
    }

    /// Has it tell, as soon as it is polled, that it still runs. Whoever calls this wakes it.
    pub(crate) fn notice_is_due(&self) {
        let (old, new) = (NOTICE_NOT_DUE, NOTICE_DUE);
        // Where it fails, it was told before.
        let _ = self.notice.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Whether it is to tell that it still runs.
    #[inline]
    pub(crate) fn has_notice(&self) -> bool {
        self.notice.load(Ordering::Acquire) == NOTICE_DUE
    }

    /// The same; from now on that counts as told.
    #[inline]
    pub(crate) fn takes_notice(&self) -> bool {
        self.has_notice() && self.notice.swap(NOTICE_TAKEN, Ordering::AcqRel) == NOTICE_DUE
    }

    /// Whether nobody has told that it still runs; from now on that counts as told.
    pub(crate) fn ends_notices(&self) -> bool {
        self.notice.swap(NOTICE_TAKEN, Ordering::AcqRel) != NOTICE_TAKEN
    }

    /// Whether the guest is warned at `now`.
    #[inline]
    pub(crate) fn should_stop(&self, now: Monotonic) -> bool {
        now >= self.soft_deadline() || self.is_asked()
    }

    /// Whether somebody has asked it to end by itself.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Acquire)
    }

    /// Asks it to end by itself while there is time: it is warned from now on, and a host
    /// call that waits is cut short. One that hasn't begun has nothing to finish, and is
    /// stopped.
    pub(crate) fn ask(&self) {
        self.is_asked.store(true, Ordering::Release);
        if self.deadline() == Monotonic::NEVER {
            self.stop(Cause::RunStopped, "its run was stopped before it began");
        }
        self.wake();
    }

    /// Notes that the present host call is ended, and the run goes on.
    pub(crate) fn note_call_ended(&self, why: CallEnded) {
        *self.call_ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.has_call_ended.store(true, Ordering::Release);
    }

    /// Why the present host call was ended, if it was.
    #[inline]
    pub(crate) fn take_call_ended(&self) -> Option<CallEnded> {
        if !self.has_call_ended.load(Ordering::Acquire) {
            return None;
        }
        self.has_call_ended.store(false, Ordering::Release);
        self.call_ended.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Why the run must end at `now`, if it must. Names the deadline as the cause
    /// where it has passed and nothing came before it.
    #[inline]
    pub(crate) fn due(&self, now: Monotonic) -> Option<Cause> {
        if let Some(cause) = self.cause.get() {
            return Some(cause);
        }
        if now > self.deadline() { Some(self.cause.name(self.deadline_cause())) } else { None }
    }

    fn deadline_cause(&self) -> Cause {
        if self.owner_is_parent.load(Ordering::Relaxed) {
            Cause::ParentDeadline
        } else {
            Cause::Deadline
        }
    }

    /// The cause that was named, whatever the clock says.
    #[inline]
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.cause.get()
    }

    /// Names `cause`; answers the one that holds.
    pub(crate) fn name(&self, cause: Cause) -> Cause {
        self.cause.name(cause)
    }

    /// Stops the run from outside, wherever it is: names the cause, keeps the
    /// reason where that cause holds, and wakes a host call that waits.
    pub(crate) fn stop(&self, cause: Cause, reason: &str) -> Cause {
        let cause = match cause {
            Cause::Cancel
            | Cause::StateLeft
            | Cause::Shutdown
            | Cause::CallerGone
            | Cause::RunStopped => cause,
            // Only the run itself can say that it returned, trapped or is late.
            _ => Cause::Cancel,
        };
        {
            // Held across the naming, so that the reason is there with the cause.
            let mut kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            let holds = self.cause.name(cause);
            if holds != cause {
                return holds;
            }
            kept.clear();
            kept.extend(reason.chars().filter(|c| !c.is_control()));
            let mut end = kept.len().min(REASON_MAX_BYTES);
            while !kept.is_char_boundary(end) {
                end -= 1;
            }
            kept.truncate(end);
        }
        self.wake();
        cause
    }

    pub(crate) fn reason(&self) -> String {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Polls whatever the run waits in once more.
    pub(crate) fn wake(&self) {
        let waker = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Says who is to be woken, before the caller asks once more whether it is due.
    pub(crate) fn wait_with(&self, waker: &Waker) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match &*waiting {
            Some(held) if held.will_wake(waker) => {}
            _ => *waiting = Some(waker.clone()),
        }
    }
}

/// Stops one dispatch, from any thread, as often as one likes: the first cause
/// that is named holds.
#[derive(Clone, Debug)]
pub struct StopHandle(pub(crate) Arc<Run>);

impl StopHandle {
    /// Stops the run, if it hasn't ended; answers the cause that ends it. A guest
    /// that waits is woken, and one that spins sees it at the end of its slice. A
    /// cause that nobody can name from outside (a deadline, a trap, a return)
    /// counts as [`Cause::Cancel`].
    pub fn stop(&self, cause: Cause, reason: &str) -> Cause {
        self.0.stop(cause, reason)
    }

    /// Asks the run to end by itself: from now on the guest is told that it should stop, and
    /// a host call that waits ends with an error that says so. One that is queued never
    /// begins. It ends nothing else; whoever asks stops what doesn't heed it.
    pub fn ask(&self) {
        self.0.ask();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deadline::DispatchDeadline;
    use std::time::Duration;

    #[test]
    fn a_run_is_due_only_after_its_deadline() {
        let run = Run::new();
        let started =
            DispatchDeadline::after(Duration::from_millis(5)).start(Monotonic::from_nanos(1));
        assert_eq!(run.due(Monotonic::from_nanos(u64::MAX - 1)), None, "its budget hasn't begun");
        run.begin(&started);
        assert_eq!(run.due(started.at), None);
        assert_eq!(run.due(started.at.after(Duration::from_nanos(1))), Some(Cause::Deadline));
    }

    #[test]
    fn a_notice_is_taken_once() {
        let run = Run::new();
        assert!(!run.takes_notice(), "it isn't due");
        run.notice_is_due();
        assert!(run.has_notice());
        assert!(run.takes_notice());
        run.notice_is_due();
        assert!(!run.has_notice() && !run.takes_notice(), "it was told");
        assert!(!run.ends_notices());
        let other = Run::new();
        assert!(other.ends_notices(), "nobody has told");
        other.notice_is_due();
        assert!(!other.takes_notice());
    }

    #[test]
    fn a_stop_keeps_the_reason_of_the_cause_that_holds() {
        let run = Run::new();
        assert_eq!(run.stop(Cause::Cancel, "not \u{1b}needed"), Cause::Cancel);
        assert_eq!(run.stop(Cause::Shutdown, "bye"), Cause::Cancel);
        assert_eq!(run.reason(), "not needed");
        assert_eq!(run.due(Monotonic::from_nanos(0)), Some(Cause::Cancel));
        assert_eq!(
            Run::new().stop(Cause::Deadline, ""),
            Cause::Cancel,
            "that is the clock's to say"
        );
    }
}
