//! The attempts of one dispatch in brief. Reruns and retries keep the id of their dispatch.

use std::collections::VecDeque;

use sandglass_model::{
    Cause, Decision, Dispatched, Ended, OutcomeKind, Position, Record, Retried, WallTime,
};
use serde::Serialize;

use super::Taken;

/// Most attempts that are listed. Reruns are few, and if an operator retries many times, the last
/// attempts say as much as all of them.
const ATTEMPTS_MAX: usize = 64;

/// One attempt of a dispatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The number of the attempt, from 1.
    pub attempt: u32,
    /// When it was dispatched.
    pub dispatched_at: WallTime,
    /// Who retried it; `None` for the first attempt and for a rerun.
    pub retried: Option<Retried>,
    /// Its budget, in milliseconds.
    pub budget_ms: u64,
    /// How it ended; `None` while it has not. Then the fields below are `None` too, but if the
    /// record of the end cannot be read, the transition may be known.
    pub outcome: Option<OutcomeKind>,
    /// When the end was recorded.
    pub ended_at: Option<WallTime>,
    /// How much of its budget it used, in milliseconds; `None` if it never ran, or if the time is
    /// unknown because its host was lost.
    pub elapsed_ms: Option<u64>,
    /// What was running when the attempt was stopped or trapped.
    pub dying_span: Option<String>,
    /// The decision that followed from its end.
    pub decision: Option<Decision>,
    /// The transition that followed, if one did.
    pub transition: Option<Taken>,
}

/// The attempts of one dispatch that are listed, and how many are left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    listed: VecDeque<Attempt>,
    omitted: u64,
}

impl Attempts {
    pub(super) fn add(&mut self, at: WallTime, dispatched: &Dispatched) {
        if self.listed.len() >= ATTEMPTS_MAX {
            self.listed.pop_front();
            self.omitted += 1;
        }
        self.listed.push_back(Attempt {
            attempt: dispatched.attempt,
            dispatched_at: at,
            retried: dispatched.retried.clone(),
            budget_ms: dispatched.budget_ms,
            ..Attempt::default()
        });
    }

    pub(super) fn end(&mut self, at: WallTime, ended: &Ended) {
        let last = self.listed.back_mut().filter(|last| last.attempt == ended.attempt);
        let Some(last) = last else { return };
        last.outcome = Some(ended.outcome.kind());
        last.ended_at = Some(at);
        let is_known = ended.cause != Cause::HostLost || ended.deadline.elapsed_ms > 0;
        let elapsed = ended.started_at.map(|_| ended.deadline.elapsed_ms);
        last.elapsed_ms = elapsed.filter(|_| is_known);
        last.dying_span.clone_from(&ended.dying_span);
        last.decision = Some(ended.decision.clone());
    }

    /// Adds the transition that followed the end of the last attempt.
    pub(super) fn set_transition(&mut self, taken: &Taken) {
        if let Some(last) = self.listed.back_mut() {
            last.transition.get_or_insert_with(|| taken.clone());
        }
    }

    pub(super) fn finish(self) -> (Vec<Attempt>, u64) {
        (self.listed.into(), self.omitted)
    }
}

impl Taken {
    /// The transition of `record`, which is one from `from` to `to` by `action`.
    pub(super) fn of(record: &Record, action: &str, from: &str, to: &str) -> Self {
        let position: Position = record.position;
        Self { action: action.to_owned(), from: from.to_owned(), to: to.to_owned(), position }
    }
}
