//! The race between what a host function waits for and what ends the wait: the end
//! of the run, the call's own time limit, the soft deadline. The first ends the
//! run; the others end the call, with an error that the guest reads.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sandglass_model::{CallOutcome, Clock, Monotonic};

use crate::run::Run;
use crate::store::RunStore;
use crate::ticker::Ticker;

/// Why a call was ended that the run outlives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallEnded {
    #[error("the call took longer than the {} ms that it may", .0.as_millis())]
    TimedOut(Duration),
    #[error(
        "the soft deadline passed while the call waited: save the work, and answer while there is time"
    )]
    SoftDeadline,
    #[error("the run is to stop: save the work, and answer while there is time")]
    Asked,
}

impl CallEnded {
    pub(crate) const fn outcome(self) -> CallOutcome {
        match self {
            Self::TimedOut(_) => CallOutcome::TimedOut,
            Self::SoftDeadline | Self::Asked => CallOutcome::CutShort,
        }
    }
}

impl From<CallEnded> for String {
    fn from(ended: CallEnded) -> Self {
        ended.to_string()
    }
}

/// Races what one host call waits for with what ends it.
pub(crate) struct Race {
    run: Arc<Run>,
    clock: Arc<dyn Clock>,
    /// Whether the run had been asked to end before the call began: it has what is left then.
    was_asked: bool,
    end: Option<End>,
}

/// When a call is ended that the run outlives.
struct End {
    at: Monotonic,
    why: CallEnded,
    ticker: Arc<Ticker>,
}

impl Race {
    /// The race of the call that `store` is in, which may take as long as its
    /// integration's manifest says, or else as the host does.
    pub(crate) fn of(store: &RunStore) -> Self {
        let default = store.guest.call_timeout();
        Self::limited(store, Some(default))
    }

    /// The same, with no time limit but one that the manifest names: for a call
    /// that doesn't leave the runtime.
    pub(crate) fn inside(store: &RunStore) -> Self {
        Self::limited(store, None)
    }

    fn limited(store: &RunStore, default: Option<Duration>) -> Self {
        let race = Self::new(&store.run, store.clock.shared());
        let Some(ticker) = &store.ticker else { return race };
        let name = store.accounting.current(&store.functions);
        let limit = name.and_then(|name| store.guest.call_timeout_of(name)).or(default);
        // The call has just entered.
        let now = store.looked_at;
        let timeout = limit.map(|limit| (now.after(limit), CallEnded::TimedOut(limit)));
        let soft = store.run.soft_deadline();
        // A call that begins after the soft deadline has what is left.
        let warning = (now < soft).then_some((soft, CallEnded::SoftDeadline));
        let end = timeout
            .into_iter()
            .chain(warning)
            .min_by_key(|(at, _)| *at)
            .filter(|(at, _)| *at < store.run.deadline())
            .map(|(at, why)| End { at, why, ticker: Arc::clone(ticker) });
        Self { end, ..race }
    }

    /// A race with nothing but the end of the run.
    pub(crate) fn new(run: &Arc<Run>, clock: &Arc<dyn Clock>) -> Self {
        let (run, clock) = (Arc::clone(run), Arc::clone(clock));
        Self { was_asked: run.is_asked(), run, clock, end: None }
    }

    /// What `wait` answers, or nothing where the run must end first; then `wait`
    /// is dropped. It is asked before the clock is, so a call that is ready costs
    /// no timer.
    pub(crate) async fn run<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = wait.as_mut().poll(context) {
                return Poll::Ready(Some(answer));
            }
            self.run.wait_with(context.waker());
            if self.run.has_notice() {
                // Nobody was woken for it: the run hadn't begun to wait.
                context.waker().wake_by_ref();
            }
            match self.run.due(self.clock.now()) {
                Some(_) => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The same; and where the call is ended by a limit of its own, or the run is asked to
    /// end by itself, `wait` is
    /// dropped and the answer is that error.
    pub(crate) async fn call<T, E: From<CallEnded>>(
        &self,
        wait: impl Future<Output = Result<T, E>>,
    ) -> Option<Result<T, E>> {
        let mut wait = pin!(self.run(wait));
        let mut armed = None;
        std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = wait.as_mut().poll(context) {
                return Poll::Ready(answer);
            }
            let ended = |why: CallEnded| {
                self.run.note_call_ended(why);
                Poll::Ready(Some(Err(why.into())))
            };
            if self.run.is_asked() && !self.was_asked {
                return ended(CallEnded::Asked);
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
