//! Checks the runs of sessions: each stop against the records before it, and that nothing is
//! started or taken for a run that is stopping.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_liveness::{Entity, Session, Spec};
use sandglass_model::{
    Directive, DispatchId, EntityRef, Event, Limit, LimitBreached, RunStopped, RunStopping, Scope,
    StopCause, TransitionCause,
};

use super::Finding;
use super::bounds::Bounds;
use crate::invariant::Invariant;

/// The inactivity of handlers without a session that is warned of, in milliseconds.
const DEFAULT_WARN_MS: u64 = 600_000;

/// The runs of all sessions, and the warnings about handlers without a session, derived from their
/// records alone. The fold is not used, so that it is checked too.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    runs: BTreeMap<EntityRef, Run>,
    /// The entities without a session about whose handlers a warning holds.
    silent: BTreeSet<EntityRef>,
}

/// The current run of a session, or its last one.
#[derive(Debug, Default)]
struct Run {
    run_seq: u32,
    stopping: Option<RunStopping>,
    stopped: Option<RunStopped>,
    bounds: Bounds,
    /// What was dispatched after the stop of the run, in the present batch.
    too_late: Vec<DispatchId>,
}

impl Sessions {
    /// Checks one more record about `entity`, which is as it was before and obeys `spec`.
    pub(super) fn record(&mut self, spec: &Spec, entity: &Entity, event: &Event) -> Finding {
        let name = &entity.entity;
        if let (Event::RunStarted { run_seq: 1, limits }, None) = (event, self.runs.get(name)) {
            let bounds = Bounds::of(limits);
            self.runs.insert(name.clone(), Run { run_seq: 1, bounds, ..Run::default() });
            self.silent.remove(name);
            return None;
        }
        let Some(run) = self.runs.get_mut(name) else {
            return self.record_without_session(spec, entity, event);
        };
        let wrong = run.record(event, entity.in_flight_count());
        let wrong = wrong.or_else(|| run.out_of_bounds(spec, entity, event));
        wrong.map(|(invariant, what)| (invariant, format!("run {} of {name} {what}", run.run_seq)))
    }

    /// Checks a batch that is durable now; `entity` is as it is after that batch.
    pub(super) fn commit(&mut self, entity: &Entity) -> Finding {
        let run = self.runs.get_mut(&entity.entity)?;
        let late = std::mem::take(&mut run.too_late);
        let begun =
            late.into_iter().find(|dispatch| entity.in_flight_handler(*dispatch).is_some())?;
        let (run_seq, name) = (run.run_seq, &entity.entity);
        let what = format!("run {run_seq} of {name} is to stop, and {begun} is dispatched");
        Some((Invariant::NothingWhileStopped, what))
    }

    /// Checks that handlers of an entity without a session are warned of as such, once in each
    /// silence.
    fn record_without_session(&mut self, spec: &Spec, entity: &Entity, event: &Event) -> Finding {
        let name = &entity.entity;
        let fits = match event {
            Event::LimitBreached(breach) => {
                let is_due = spec.limits.is_none() && entity.in_flight_count() > 0;
                is_due && is_default_warning(breach) && self.silent.insert(name.clone())
            }
            Event::LimitCleared { run_seq, .. } => run_seq.is_none() && self.silent.remove(name),
            _ => true,
        };
        (!fits).then(|| (Invariant::TrulySilent, format!("{name} is no session: {event:?}")))
    }
}

fn is_default_warning(breach: &LimitBreached) -> bool {
    breach.limit == Limit::InactivityWarn
        && breach.scope == Scope::Handler
        && breach.session.is_none()
        && breach.run_seq.is_none()
        && breach.threshold == DEFAULT_WARN_MS
        && breach.observed > DEFAULT_WARN_MS
}

impl Run {
    fn out_of_bounds(&mut self, spec: &Spec, entity: &Entity, event: &Event) -> Finding {
        // A handler that is dispatched after a stop ends with that stop and is held, so it does not
        // count.
        let goes_on = |session: &&Session| session.is_running() && self.stopped.is_none();
        let session = entity.session().filter(goes_on)?;
        let what = self.bounds.record(spec, session, event)?;
        Some((Invariant::WithinBounds, what))
    }

    fn record(&mut self, event: &Event, in_flight: usize) -> Finding {
        let one_stop = |what: &str| Some((Invariant::OneStop, what.to_owned()));
        let is_over = self.stopping.is_some() || self.stopped.is_some();
        match event {
            Event::RunStarted { run_seq, limits } => {
                let goes_on = self.stopped.as_ref().and_then(|stopped| stopped.directive);
                if *run_seq != self.run_seq + 1 || !goes_on.is_some_and(Directive::goes_on) {
                    return one_stop(&format!("is followed by run {run_seq}"));
                }
                let bounds = Bounds::of(limits);
                *self = Self { run_seq: *run_seq, bounds, ..Self::default() };
            }
            Event::SessionResumed { from_run_seq, run_seq, by, .. } => {
                let directive = self.stopped.as_ref().and_then(|stopped| stopped.directive);
                let by_itself = directive == Some(Directive::Retry);
                let fits = (*from_run_seq, *run_seq) == (self.run_seq, self.run_seq + 1);
                if !fits || by.is_none() != by_itself {
                    return one_stop(&format!("is resumed after {from_run_seq} by {by:?}"));
                }
            }
            Event::RunStopping(stopping) => {
                if is_over || stopping.run_seq != self.run_seq {
                    return one_stop(&format!("is stopped again, as {}", stopping.run_seq));
                }
                self.stopping = Some((**stopping).clone());
            }
            Event::RunStopped(stopped) => {
                let first = self.stopping.as_ref();
                // Or the run completed on its own within the grace of the stop.
                let has_completed =
                    stopped.cause == StopCause::Completion && stopped.directive.is_none();
                let is_first = first.is_none_or(|first| {
                    first.cause == stopped.cause && Some(first.directive) == stopped.directive
                });
                let is_first = is_first || has_completed;
                let fits = self.stopped.is_none() && stopped.run_seq == self.run_seq;
                if !fits || !is_first || in_flight > 0 {
                    let (seq, cause) = (stopped.run_seq, &stopped.cause);
                    let what =
                        format!("has stopped as {seq} by {cause:?} with {in_flight} in flight");
                    return one_stop(&what);
                }
                self.stopped = Some((**stopped).clone());
            }
            Event::LimitBreached(breach)
                if breach.run_seq != Some(self.run_seq) || breach.observed <= breach.threshold =>
            {
                return one_stop(&format!("breaches nothing: {breach:?}"));
            }
            Event::Dispatched(dispatched) if is_over => self.too_late.push(dispatched.dispatch),
            Event::StateIdle { .. }
            | Event::ScheduleDue { .. }
            | Event::Transition {
                cause:
                    TransitionCause::Requested
                    | TransitionCause::Asked(_)
                    | TransitionCause::StateIdle
                    | TransitionCause::Scheduled { .. }
                    | TransitionCause::Spawned,
                ..
            } if is_over => {
                let what = format!("is to stop, and takes {}", event.kind());
                return Some((Invariant::NothingWhileStopped, what));
            }
            _ => {}
        }
        None
    }
}
