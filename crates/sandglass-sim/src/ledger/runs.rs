//! The handler runs of a seed: what was dispatched, what really ran and how it really ended, and
//! what was decided.

use std::collections::BTreeMap;

use sandglass_liveness::Spec;
use sandglass_liveness::spec::OnCrash;
use sandglass_model::{
    Cause, Decision, DispatchId, Dispatched, Ended, EntityRef, Monotonic, OutcomeKind, Position,
    WallTime,
};

use super::{Finding, short};
use crate::invariant::Invariant;

/// One attempt of one dispatch.
pub(crate) type Key = (DispatchId, u32);

/// How a handler run really ended, as its guest and its clock show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truth {
    /// The cause that was set first.
    pub(crate) cause: Cause,
    /// When the guest's export returned, if it did.
    pub(crate) returned_at: Option<Monotonic>,
    /// Its deadline.
    pub(crate) ends_at: Monotonic,
}

#[derive(Clone, Debug)]
struct Run {
    entity: EntityRef,
    first: Position,
    has_started: bool,
    is_running: bool,
    /// Its deadline, once its guest may run.
    due: Option<WallTime>,
    /// When its last host call began or ended.
    called: Option<(Monotonic, WallTime)>,
    truth: Option<Truth>,
    outcome: Option<OutcomeKind>,
    /// Whether it is dispatched again when its session is resumed.
    is_held: bool,
}

/// All handler runs of a seed.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: BTreeMap<Key, Run>,
    /// How many handlers of each entity are running.
    running: BTreeMap<EntityRef, usize>,
}

impl Runs {
    pub(super) fn note_dispatch(
        &mut self,
        entity: &EntityRef,
        dispatched: &Dispatched,
        first: Position,
        spec: Option<&Spec>,
    ) -> Finding {
        let key = (dispatched.dispatch, dispatched.attempt);
        let run = Run {
            entity: entity.clone(),
            first,
            has_started: false,
            is_running: false,
            due: None,
            called: None,
            truth: None,
            outcome: None,
            is_held: false,
        };
        if self.runs.insert(key, run).is_some() {
            return Some((Invariant::AtMostOnce, format!("{} is dispatched twice", run_name(key))));
        }
        let integration = spec.and_then(|spec| spec.integrations.get(&dispatched.integration));
        let reruns = integration.is_some_and(|one| one.on_crash == OnCrash::Rerun);
        let before = self.runs.get(&(key.0, key.1.saturating_sub(1)));
        let is_held = before.is_some_and(|run| run.is_held);
        let is_wanted = key.1 == 1 || dispatched.retried.is_some() || reruns || is_held;
        (!is_wanted).then(|| {
            (
                Invariant::AtMostOnce,
                format!(
                    "{} is an attempt without a reason: no retry, rerun or held handler",
                    run_name(key)
                ),
            )
        })
    }

    pub(super) fn note_end(&mut self, entity: &EntityRef, ended: &Ended) -> Finding {
        let key = (ended.dispatch, ended.attempt);
        let Some(run) = self.runs.get_mut(&key).filter(|run| run.entity == *entity) else {
            let what = format!("{} of {entity} ended and was never asked for", run_name(key));
            return Some((Invariant::OneDecision, what));
        };
        if let Some(before) = run.outcome.replace(ended.outcome.kind()) {
            let what = format!("{} ended as {before}, and again", run_name(key));
            return Some((Invariant::OneDecision, what));
        }
        run.is_held = ended.decision == Decision::Held;
        let what = run.contradiction(ended)?;
        Some((Invariant::TrueEnding, format!("{} of {entity}: {what}", run_name(key))))
    }

    pub(super) fn note_start(
        &mut self,
        entity: &EntityRef,
        key: Key,
        is_in_flight: bool,
    ) -> Finding {
        let Some(run) = self.runs.get_mut(&key) else {
            let what = format!("{} of {entity} starts, and is not in the log", run_name(key));
            return Some((Invariant::DurableFirst, what));
        };
        if std::mem::replace(&mut run.has_started, true) {
            return Some((
                Invariant::AtMostOnce,
                format!("{} of {entity} starts again", run_name(key)),
            ));
        }
        if !is_in_flight {
            let what = format!("{} of {entity} starts, and has ended", run_name(key));
            return Some((Invariant::AtMostOnce, what));
        }
        run.is_running = true;
        *self.running.entry(entity.clone()).or_default() += 1;
        None
    }

    /// Notes that the guest of a handler run may run until `due`.
    pub(crate) fn note_deadline(&mut self, key: Key, due: WallTime) {
        if let Some(run) = self.runs.get_mut(&key) {
            run.due = Some(due);
        }
    }

    /// Notes that a host call of a handler run begins or ends.
    pub(crate) fn note_call(&mut self, key: Key, now: Monotonic, at: WallTime) {
        if let Some(run) = self.runs.get_mut(&key) {
            run.called = Some((now, at));
        }
    }

    /// When the last host call of the running attempt of `dispatch` began or ended.
    pub(crate) fn last_call(&self, dispatch: DispatchId) -> Option<Monotonic> {
        let attempts = self.runs.range((dispatch, 0)..=(dispatch, u32::MAX));
        let running = attempts.map(|(_, run)| run).rfind(|run| run.is_running)?;
        running.called.map(|(now, _)| now)
    }

    /// Checks that none of the running handlers of `entity` made a host call during a silence of
    /// `observed_ms` that was found `at`.
    pub(super) fn check_silence(
        &self,
        entity: &EntityRef,
        observed_ms: u64,
        at: WallTime,
    ) -> Finding {
        let running = self.runs.iter().filter(|(_, run)| run.is_running && run.entity == *entity);
        // Calls of the same millisecond may be later than the finding.
        let calls = running.filter_map(|(key, run)| Some((key, run.called?.1)));
        let called = calls.filter(|(_, called)| *called < at).max_by_key(|(_, called)| *called)?;
        let (key, silent_ms) = (*called.0, at.since(called.1).as_millis());
        (u128::from(observed_ms) > silent_ms + 1).then(|| {
            let what = format!(
                "{entity} is silent for {observed_ms} ms, and {} made a call {silent_ms} ms ago",
                run_name(key)
            );
            (Invariant::TrulySilent, what)
        })
    }

    /// The earliest deadline of the running handlers of this entity.
    pub(crate) fn due(&self, entity: &EntityRef) -> Option<WallTime> {
        let of_it = self.runs.values().filter(|run| run.is_running && run.entity == *entity);
        of_it.filter_map(|run| run.due).min()
    }

    /// Notes that a handler run has ended, and nothing of it is left.
    pub(crate) fn note_stop(&mut self, key: Key, truth: Option<Truth>) {
        let Some(run) = self.runs.get_mut(&key).filter(|run| run.is_running) else { return };
        (run.is_running, run.truth) = (false, truth);
        if let Some(running) = self.running.get_mut(&run.entity) {
            *running -= 1;
        }
    }

    pub(super) fn running(&self, entity: &EntityRef) -> usize {
        self.running.get(entity).copied().unwrap_or(0)
    }

    pub(super) fn lose_all(&mut self) {
        self.running.clear();
        self.runs.values_mut().for_each(|run| run.is_running = false);
    }

    /// Handler runs that ended without completing, which a client may retry.
    pub(crate) fn retriable(&self) -> Vec<(EntityRef, Key)> {
        let ended = self.runs.iter().filter(|(_, run)| {
            run.outcome.is_some_and(|outcome| outcome != OutcomeKind::Completed)
        });
        ended.map(|(key, run)| (run.entity.clone(), *key)).collect()
    }

    pub(super) fn close(&self) -> Finding {
        let open = self.runs.iter().find(|(_, run)| run.outcome.is_none())?;
        let ((dispatch, attempt), run) = open;
        let what = format!(
            "{} of {} (record {}) has no decision",
            run_name((*dispatch, *attempt)),
            run.entity,
            run.first
        );
        Some((Invariant::OneDecision, what))
    }
}

impl Run {
    /// Returns how the recorded end contradicts what really happened, if it does.
    fn contradiction(&self, ended: &Ended) -> Option<String> {
        let (recorded, cause) = (ended.outcome.kind(), ended.cause);
        if self.is_running && ended.outcome.kind() != OutcomeKind::Interrupted {
            return Some(format!("it is recorded as {recorded} and still runs"));
        }
        let truth = self.truth?;
        if cause != Cause::HostLost && cause != truth.cause {
            return Some(format!("it ended by {:?}, and {cause:?} is recorded", truth.cause));
        }
        let late = truth.returned_at.is_some_and(|at| at > truth.ends_at);
        match recorded {
            OutcomeKind::Completed if late || truth.returned_at.is_none() => {
                Some("it completed, and its guest returned too late".to_owned())
            }
            OutcomeKind::TimedOut if ended.deadline.elapsed_ms <= ended.deadline.budget_ms => {
                Some("it timed out inside its budget".to_owned())
            }
            OutcomeKind::TimedOut if truth.returned_at.is_some() && !late => {
                Some("it timed out, and its guest returned in time".to_owned())
            }
            _ => None,
        }
    }
}

fn run_name((dispatch, attempt): Key) -> String {
    format!("run {} attempt {attempt}", short(dispatch))
}
