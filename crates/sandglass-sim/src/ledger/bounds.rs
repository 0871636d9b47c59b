//! Counts once more what the bounds of a run limit, from its records and its spec, so that the
//! counts of the fold are checked too.

use std::collections::BTreeSet;

use sandglass_liveness::spec::Counted;
use sandglass_liveness::{Session, Spec};
use sandglass_model::{
    Decision, DispatchId, Dispatched, Event, Limit, LimitBreached, RunLimits, TransitionCause,
};

/// The counts of one run.
#[derive(Debug, Default)]
pub(super) struct Bounds {
    handlers: Bound,
    turns: Bound,
    /// Whether the last transition followed from a handler's end, and no loop iteration has been
    /// counted since.
    follows: bool,
    /// Dispatches that a crash interrupted and that are run again.
    reruns: BTreeSet<DispatchId>,
}

#[derive(Debug, Default)]
struct Bound {
    most: Option<u64>,
    so_far: u64,
}

impl Bound {
    const fn of(most: Option<u64>) -> Self {
        Self { most, so_far: 0 }
    }

    fn is_exceeded(&self) -> bool {
        self.most.is_some_and(|most| self.so_far > most)
    }

    fn is_first_breach(&self, breach: &LimitBreached) -> bool {
        Some(breach.threshold) == self.most
            && breach.threshold == self.so_far
            && breach.observed == self.so_far + 1
    }
}

impl Bounds {
    pub(super) const fn of(limits: &RunLimits) -> Self {
        Self {
            handlers: Bound::of(limits.max_handler_runs),
            turns: Bound::of(limits.max_loop_iterations),
            follows: false,
            reruns: BTreeSet::new(),
        }
    }

    /// Checks one more record of a running session by `spec`; `session` is as it was before that
    /// record. Returns what is wrong with it.
    pub(super) fn record(
        &mut self,
        spec: &Spec,
        session: &Session,
        event: &Event,
    ) -> Option<String> {
        let counted = (self.handlers.so_far, self.turns.so_far);
        let folded = (session.handler_runs, session.loop_iterations);
        if counted != folded {
            return Some(format!("has {counted:?} handlers and turns, and counts {folded:?}"));
        }
        match event {
            Event::Transition { cause, .. } => {
                self.follows = matches!(cause, TransitionCause::HandlerEnded { .. });
            }
            Event::Ended(ended) if ended.decision == Decision::Rerun => {
                self.reruns.insert(ended.dispatch);
            }
            Event::Dispatched(dispatched) => {
                self.count(spec, dispatched);
                for (bound, what) in [(&self.handlers, "handlers"), (&self.turns, "turns")] {
                    if bound.is_exceeded() {
                        return Some(format!("has {} {what} of {:?}", bound.so_far, bound.most));
                    }
                }
            }
            Event::LimitBreached(breach) => {
                let bound = match breach.limit {
                    Limit::MaxHandlerRuns => &self.handlers,
                    Limit::MaxLoopIterations => &self.turns,
                    _ => return None,
                };
                if !bound.is_first_breach(breach) {
                    return Some(format!("has {bound:?}, and breaches that by {breach:?}"));
                }
            }
            _ => {}
        }
        None
    }

    fn count(&mut self, spec: &Spec, dispatched: &Dispatched) {
        let is_rerun = self.reruns.remove(&dispatched.dispatch);
        let counted = |name: &str| spec.integrations.get(name).map(|one| one.counted);
        let counted = counted(&dispatched.integration).unwrap_or_default();
        if counted == Counted::Continuation || is_rerun {
            return;
        }
        self.handlers.so_far += 1;
        let declares_turns = spec.integrations.values().any(|one| one.counted == Counted::Turn);
        let is_turn = if declares_turns { counted == Counted::Turn } else { self.follows };
        if is_turn && dispatched.attempt == 1 {
            self.turns.so_far += 1;
            self.follows = false;
        }
    }
}
