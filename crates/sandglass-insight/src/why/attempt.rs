//! The attempts of one dispatch, each in brief: reruns and retries keep its id.

use std::collections::VecDeque;

use sandglass_model::{
    Cause, Decision, Dispatched, Ended, OutcomeKind, Position, Record, Retried, WallTime,
};
use serde::Serialize;

use super::Taken;

/// Most attempts that are told: reruns are few, and of an operator's many retries the last
/// tell as much.
const ATTEMPTS_MAX: usize = 64;

/// One attempt of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// Which, from 1.
    pub attempt: u32,
    /// When it was asked for.
    pub dispatched_at: WallTime,
    /// Who asked for it, where it is neither the first nor a rerun.
    pub retried: Option<Retried>,
    /// Its budget, in milliseconds.
    pub budget_ms: u64,
    /// How it ended; none of what follows is there while it hasn't, and no more than the
    /// transition where the record of its end can't be read.
    pub outcome: Option<OutcomeKind>,
    /// When that was recorded.
    pub ended_at: Option<WallTime>,
    /// How much of its budget it had used, in milliseconds; none where it never ran, or
    /// nobody knows.
    pub elapsed_ms: Option<u64>,
    /// What was running when it was stopped or trapped.
    pub dying_span: Option<String>,
    /// What was decided.
    pub decision: Option<Decision>,
    /// The transition that followed, where one did.
    pub transition: Option<Taken>,
}

/// All attempts of one dispatch that are told, and how many are not.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempts {
    told: VecDeque<Attempt>,
    omitted: u64,
}

impl Attempts {
    pub(super) fn asked(&mut self, at: WallTime, dispatched: &Dispatched) {
        if self.told.len() >= ATTEMPTS_MAX {
            self.told.pop_front();
            self.omitted += 1;
        }
        self.told.push_back(Attempt {
            attempt: dispatched.attempt,
            dispatched_at: at,
            retried: dispatched.retried.clone(),
            budget_ms: dispatched.budget_ms,
            outcome: None,
            ended_at: None,
            elapsed_ms: None,
            dying_span: None,
            decision: None,
            transition: None,
        });
    }

    pub(super) fn ended(&mut self, at: WallTime, ended: &Ended) {
        let last = self.told.back_mut().filter(|last| last.attempt == ended.attempt);
        let Some(last) = last else { return };
        last.outcome = Some(ended.outcome.kind());
        last.ended_at = Some(at);
        let is_known = ended.cause != Cause::HostLost || ended.deadline.elapsed_ms > 0;
        let elapsed = ended.started_at.map(|_| ended.deadline.elapsed_ms);
        last.elapsed_ms = elapsed.filter(|_| is_known);
        last.dying_span.clone_from(&ended.dying_span);
        last.decision = Some(ended.decision.clone());
    }

    /// What was taken because the last of them ended.
    pub(super) fn taken(&mut self, taken: &Taken) {
        if let Some(last) = self.told.back_mut() {
            last.transition.get_or_insert_with(|| taken.clone());
        }
    }

    pub(super) fn finish(self) -> (Vec<Attempt>, u64) {
        (self.told.into(), self.omitted)
    }
}

impl Taken {
    /// The transition of `record`, which led from one state to another by an action.
    pub(super) fn of(record: &Record, action: &str, from: &str, to: &str) -> Self {
        let position: Position = record.position;
        Self { action: action.to_owned(), from: from.to_owned(), to: to.to_owned(), position }
    }
}
