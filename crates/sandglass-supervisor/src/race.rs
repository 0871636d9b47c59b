//! The race between what a host function waits for and what ends the wait.
//!
//! The end of the run ends the run. The call's own time limit, the soft deadline and a requested
//! stop end only the call, with an error that the guest reads.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sandglass_model::timeout::timeout_text;
use sandglass_model::{CallOutcome, Clock, Monotonic};

use crate::in_flight::outside_of_guest;
use crate::run::Run;
use crate::supervision::Supervision;
use crate::suspended::CallNote;
use crate::ticker::Ticker;

/// Why a call was ended although its run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallEnded {
    /// Its own time limit has passed.
    #[error("{}", timeout_text(millis(*.0)))]
    TimedOut(Duration),
    /// The soft deadline of the run has passed.
    #[error(
        "the soft deadline passed while the call waited: save the work, and return while there is time"
    )]
    SoftDeadline,
    /// The run was requested to stop by itself.
    #[error("the run should stop: save the work, and return while there is time")]
    StopRequested,
}

/// Whole milliseconds of `duration`.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl CallEnded {
    pub(crate) const fn outcome(self) -> CallOutcome {
        match self {
            Self::TimedOut(_) => CallOutcome::TimedOut,
            Self::SoftDeadline | Self::StopRequested => CallOutcome::CutShort,
        }
    }
}

impl From<CallEnded> for String {
    fn from(ended: CallEnded) -> Self {
        ended.to_string()
    }
}

/// Races the wait of one host call with what ends it.
#[derive(Debug)]
pub struct Race {
    run: Arc<Run>,
    clock: Arc<dyn Clock>,
    /// Whether the stop was requested before the call began. Such a call may use the time that is
    /// left.
    was_stop_requested: bool,
    /// Why the call is to end before it begins, if it waited for the lease of the host for too long.
    cut_before: Option<CallEnded>,
    end: Option<End>,
    /// What a call that may be suspended notes; `None` for any other.
    noted: Option<Arc<CallNote>>,
}

/// When a call is ended although its run goes on.
#[derive(Debug)]
struct End {
    at: Monotonic,
    why: CallEnded,
    ticker: Arc<Ticker>,
}

impl Race {
    /// The race of the present call of `run`, with the time limit of its manifest or, if there is
    /// none, of the host.
    pub fn of(run: &Supervision) -> Self {
        let default = run.guest().call_timeout();
        Self::limited(run, Some(default))
    }

    /// As [`Race::of`] for a call that stays inside the runtime: without the time limit of the host.
    pub fn inside(run: &Supervision) -> Self {
        Self::limited(run, None)
    }

    fn limited(run: &Supervision, default: Option<Duration>) -> Self {
        let cut_before = run.watch.cut_before;
        let noted = run.calls.tasks.as_ref().and_then(|tasks| tasks.noting.clone());
        let race = Self { cut_before, noted, ..Self::new(run.run(), run.clock().shared()) };
        let Some(ticker) = &run.watch.ticker else { return race };
        let name = run.calls.accounting.current(&run.calls.functions);
        let limit = name.and_then(|name| run.guest().call_timeout_of(name)).or(default);
        // The boundary read the clock when the call entered.
        let now = run.watch.checked_at;
        let timeout = limit.map(|limit| (now.after(limit), CallEnded::TimedOut(limit)));
        let soft = run.run().soft_deadline();
        // A call that begins after the soft deadline may use the time that is left.
        let warning = (now < soft).then_some((soft, CallEnded::SoftDeadline));
        let end = timeout
            .into_iter()
            .chain(warning)
            .min_by_key(|(at, _)| *at)
            .filter(|(at, _)| *at < run.run().deadline())
            .map(|(at, why)| End { at, why, ticker: Arc::clone(ticker) });
        Self { end, ..race }
    }

    /// A race with the end of the run alone.
    pub fn new(run: &Arc<Run>, clock: &Arc<dyn Clock>) -> Self {
        let (run, clock) = (Arc::clone(run), Arc::clone(clock));
        let was_stop_requested = run.is_stop_requested();
        Self { was_stop_requested, run, clock, cut_before: None, end: None, noted: None }
    }

    /// When the call is ended although its run goes on; `None` if never.
    #[must_use]
    pub fn ends_at(&self) -> Option<Monotonic> {
        self.end.as_ref().map(|end| end.at)
    }

    fn note(&self, why: CallEnded) {
        match &self.noted {
            Some(note) => note.end(why),
            None => self.run.note_call_ended(why),
        }
    }

    /// Returns the result of `wait`; `None` if the run must end first, and then `wait` is dropped.
    /// `wait` is polled before the clock is read, so a call that is ready costs no timer.
    pub async fn run<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        std::future::poll_fn(|context| {
            let polled = outside_of_guest(|| wait.as_mut().poll(context));
            if let Poll::Ready(answer) = polled {
                return Poll::Ready(Some(answer));
            }
            self.run.wait_with(context.waker());
            match self.run.due(self.clock.now()) {
                Some(_) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// As [`Race::run`]. If the call is ended although the run goes on, `wait` is dropped and the
    /// result is that error.
    pub async fn call<T, E: From<CallEnded>>(
        &self,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        let noted = self.noted.as_ref().and_then(|note| note.ended());
        if let Some(why) = self.cut_before.or(noted) {
            self.note(why);
            return Some(Err(why.into()));
        }
        let mut wait = pin!(self.run(wait));
        let mut armed = None;
        std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = wait.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            let ended = |why: CallEnded| {
                self.note(why);
                Poll::Ready(Some(Err(why.into())))
            };
            if self.run.is_stop_requested() && !self.was_stop_requested {
                return ended(CallEnded::StopRequested);
            }
            let Some(end) = &self.end else { return Poll::Pending };
            if self.clock.now() > end.at {
                return ended(end.why);
            }
            armed.get_or_insert_with(|| end.ticker.arm_at(&self.run, end.at));
            Poll::Pending
        })
        .await
    }
}
