//! A session: an entity whose spec or host has limits for it. It lives in runs: one from its start,
//! and one from each resume, until something stops it.
//!
//! Like the entity, it is the fold of its records. What is due is found by [`evaluate()`];
//! what follows from that is decided with everything else, in [`crate::decide()`].

mod evaluate;
mod failures;
mod preamble;
mod recovery;
mod settings;
mod status;
mod watched;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::signature::stated_shape;
use sandglass_model::{
    Decision, Directive, DispatchId, Dispatched, Ended, Event, LastSignal, Limit, Recovery,
    Repeated, RulesVersion, RunLimits, RunStopped, RunStopping, TransitionCause, WallTime,
};
use serde::{Deserialize, Serialize};

use crate::decide::Refusal;
use crate::entity::Entity;
use crate::spec::{Counted, Spec};
pub(crate) use evaluate::threshold_and_anchor;
pub use evaluate::{Anchor, Due, Elapsed, Evaluation, evaluate};
pub use failures::{
    Failures, RecordedCalls, SAMPLE_MAX_CHARS, SHAPES_MAX, failed_by_timed_out_call, failed_calls,
};
pub use preamble::{error_type_of, preamble};
pub use recovery::{conversation, left_for_conversation, recovery};
pub use settings::{BadLimit, Ceilings, LimitSettings, Setting, default_limits};
pub use status::{Shown, Status, StatusView, status};
use watched::sign_of_life;
pub use watched::{HandlerWatch, Watched};

/// Longest status text that is stored, in characters: a line of a terminal.
pub const STATUS_MAX_CHARS: usize = 200;

/// The name of the signals that carry a status text.
pub const STATUS: &str = "status";

/// One entity as a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Its present run, or the last one.
    pub run_seq: u32,
    /// The limits of that run; shared, because sessions are copied with each decision.
    pub limits: Arc<RunLimits>,
    /// When its first run started.
    pub first_started: WallTime,
    /// When the present run started.
    pub run_started: WallTime,
    /// What its run is doing.
    #[serde(rename = "standing")]
    pub phase: RunPhase,
    /// The last sign of life.
    pub last_signal: Option<LastSignal>,
    /// The handlers that the run has started, without those that continue another one's work and
    /// those that were started again because their host was lost.
    pub handler_runs: u64,
    /// The turns of a loop among them: the handlers that its spec declares as turns, or if it
    /// declares none, those that followed from the end of another handler.
    pub loop_iterations: u64,
    /// What the present run knows of the one before.
    pub recovery: Option<Arc<Recovery>>,
    /// The last status text of a handler.
    pub status_text: Option<StatusText>,
    /// The shape that the last action has stated which stated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shape: Option<String>,
    active_since: Mark,
    progress_since: Mark,
    /// Whether a warning about inactivity holds.
    is_silent: bool,
    /// Whether the last transition followed from a handler's end.
    follows_a_handler: bool,
    held: Arc<Vec<Arc<Dispatched>>>,
    failures: Failures,
    retried: BTreeMap<Limit, u64>,
}

/// What the run of a session is doing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunPhase {
    /// It is running.
    Running,
    /// It is stopping, and waits for what is in flight.
    Stopping {
        /// Why, and what happens to the session afterwards.
        stopping: Box<RunStopping>,
        /// Since when.
        since: WallTime,
        /// Whether its handlers are being killed, because their grace has ended.
        is_killing: bool,
    },
    /// It has stopped.
    Stopped(Box<RunStopped>),
}

/// Whether the failure of a handler counts besides those of its host calls.
pub(crate) fn counts_by_itself(spec: &Spec, ended: &Ended) -> bool {
    // Earlier versions of the rules counted both.
    spec.rules < RulesVersion::V3 || !failed_by_timed_out_call(ended)
}

/// The status text of a handler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusText {
    /// Which handler.
    pub dispatch: DispatchId,
    /// The text, cut to [`STATUS_MAX_CHARS`].
    pub text: String,
}

/// A time that limits are measured from, and how often it was set, which distinguishes measurements
/// from an earlier and the present time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    at: WallTime,
    generation: u64,
}

impl Mark {
    const fn at(at: WallTime) -> Self {
        Self { at, generation: 0 }
    }

    fn set(&mut self, at: WallTime) {
        *self = Self { at, generation: self.generation.wrapping_add(1) };
    }
}

impl Session {
    /// The session that `event` starts at `at`; `None` if it is not [`Event::RunStarted`].
    pub(crate) fn started(event: &Event, at: WallTime) -> Option<Self> {
        let Event::RunStarted { run_seq, limits } = event else { return None };
        Some(Self {
            run_seq: *run_seq,
            limits: Arc::new(*limits),
            first_started: at,
            run_started: at,
            phase: RunPhase::Running,
            last_signal: None,
            handler_runs: 0,
            loop_iterations: 0,
            recovery: None,
            status_text: None,
            shape: None,
            active_since: Mark::at(at),
            progress_since: Mark::at(at),
            is_silent: false,
            follows_a_handler: false,
            held: Arc::default(),
            failures: Failures::default(),
            retried: BTreeMap::new(),
        })
    }

    /// Folds in one more record about `entity`, which does not have it yet.
    pub(crate) fn apply(&mut self, spec: &Spec, entity: &Entity, event: &Event, at: WallTime) {
        let sign_of_life = if self.is_running() { sign_of_life(spec, entity, event) } else { None };
        if let Some((kind, of, is_progress)) = sign_of_life {
            self.is_silent = false;
            self.active_since.set(at);
            if is_progress {
                self.progress_since.set(at);
            }
            self.last_signal = Some(LastSignal { kind: kind.to_owned(), of, at });
        }
        match event {
            Event::RunStarted { run_seq, limits } => self.run_again(*run_seq, *limits, at),
            Event::Transition { cause, from, to, .. } => {
                self.follows_a_handler = matches!(cause, TransitionCause::HandlerEnded { .. });
                if from != to && spec.rules >= RulesVersion::V2 {
                    self.drop_held_of_left_state(spec);
                }
            }
            Event::Dispatched(dispatched) => self.dispatched(spec, dispatched),
            Event::Ended(ended) => self.ended(spec, entity, ended),
            Event::Signal { name, dispatch: Some(dispatch), payload, .. } if name == STATUS => {
                let text = payload.as_str().unwrap_or_default();
                let text = text.chars().take(STATUS_MAX_CHARS).collect();
                self.status_text = Some(StatusText { dispatch: *dispatch, text });
            }
            Event::LimitBreached(breach) => {
                self.note_activity(breach.last_signal.as_ref());
                let run = breach.dispatch.and_then(|dispatch| entity.in_flight_handler(dispatch));
                if let Some(run) = run {
                    self.failures.count_timed_out_call(&entity.entity, &run.dispatched, breach);
                }
                match breach.limit {
                    Limit::InactivityWarn => self.is_silent = true,
                    Limit::AbortTimeout => {
                        if let RunPhase::Stopping { is_killing, .. } = &mut self.phase {
                            *is_killing = true;
                        }
                    }
                    _ => {}
                }
            }
            Event::LimitCleared { last_signal: Some(signal), .. } => {
                self.is_silent = false;
                self.note_activity(Some(signal));
            }
            Event::RunStopping(stopping) => {
                self.phase = RunPhase::Stopping {
                    stopping: stopping.clone(),
                    since: at,
                    is_killing: stopping.grace_ms == 0,
                };
            }
            Event::RunStopped(stopped) => {
                self.phase = RunPhase::Stopped(stopped.clone());
                self.status_text = None;
                self.is_silent = false;
            }
            _ => {}
        }
    }

    /// Notes activity that no record of its own shows: a host call.
    fn note_activity(&mut self, signal: Option<&LastSignal>) {
        if let Some(signal) = signal.filter(|signal| signal.at > self.active_since.at) {
            self.active_since.set(signal.at);
            self.last_signal = Some(signal.clone());
        }
    }

    fn run_again(&mut self, run_seq: u32, limits: RunLimits, at: WallTime) {
        if let RunPhase::Stopped(stopped) = &self.phase {
            if let (Some(Directive::Retry), Some(limit)) =
                (stopped.directive, stopped.cause.limit())
            {
                *self.retried.entry(limit).or_default() += 1;
            }
            self.recovery = Some(Arc::new(Recovery {
                prior_run: stopped.run_seq,
                cause: stopped.stop_reason_code.clone(),
                failure: self.top_failure(1),
            }));
        }
        (self.run_seq, self.limits, self.run_started) = (run_seq, Arc::new(limits), at);
        (self.handler_runs, self.loop_iterations, self.follows_a_handler) = (0, 0, false);
        self.phase = RunPhase::Running;
        self.active_since.set(at);
        self.progress_since.set(at);
    }

    fn dispatched(&mut self, spec: &Spec, dispatched: &Dispatched) {
        if let Some(shape) =
            stated_shape(&dispatched.params).filter(|_| spec.rules >= RulesVersion::V3)
        {
            self.shape = Some(shape.to_owned());
        }
        if self.is_handler_run(spec, dispatched) {
            self.handler_runs = self.handler_runs.saturating_add(1);
        }
        if self.is_iteration(spec, dispatched) {
            self.loop_iterations = self.loop_iterations.saturating_add(1);
            // If no integration is declared as a turn, all handlers of one transition are one turn.
            self.follows_a_handler = false;
        }
        if self.holds(dispatched.dispatch) {
            Arc::make_mut(&mut self.held).retain(|held| held.dispatch != dispatched.dispatch);
        }
    }

    /// Forgets held handlers of the state that the entity has just left, as those in flight are
    /// stopped then. Version 1 of the rules dispatched them again.
    fn drop_held_of_left_state(&mut self, spec: &Spec) {
        let stays = |held: &Dispatched| {
            spec.integrations.get(&held.integration).is_some_and(|one| one.keep_on_exit)
        };
        if !self.held.iter().all(|held| stays(held)) {
            Arc::make_mut(&mut self.held).retain(|held| stays(held));
        }
    }

    fn holds(&self, dispatch: DispatchId) -> bool {
        self.held.iter().any(|held| held.dispatch == dispatch)
    }

    /// Whether `dispatched` counts as one more handler of the run. Those that continue another
    /// one's work do not.
    pub(crate) fn is_handler_run(&self, spec: &Spec, dispatched: &Dispatched) -> bool {
        // An attempt that no operator requested and no stop has held was started again after a
        // crash of its host, for which the session is not responsible.
        let is_rerun = dispatched.attempt > 1
            && dispatched.retried.is_none()
            && !self.holds(dispatched.dispatch);
        !is_rerun && spec.counted(&dispatched.integration) != Counted::Continuation
    }

    /// Whether `dispatched` is one more turn of a loop.
    pub(crate) fn is_iteration(&self, spec: &Spec, dispatched: &Dispatched) -> bool {
        let is_turn = match spec.counted(&dispatched.integration) {
            Counted::Turn => true,
            Counted::Handler => self.follows_a_handler && !spec.has_turns(),
            Counted::Continuation => false,
        };
        is_turn && dispatched.attempt == 1
    }

    /// The present turn of its loop, from 1.
    #[must_use]
    pub fn iteration(&self, spec: &Spec) -> u64 {
        if spec.has_turns() {
            self.loop_iterations.max(1)
        } else {
            // The first turn follows from no other.
            self.loop_iterations.saturating_add(1)
        }
    }

    fn ended(&mut self, spec: &Spec, entity: &Entity, ended: &Ended) {
        if self.status_text.as_ref().is_some_and(|status| status.dispatch == ended.dispatch) {
            self.status_text = None;
        }
        let Some(run) = entity.in_flight_handler(ended.dispatch) else { return };
        if ended.decision == Decision::Held {
            Arc::make_mut(&mut self.held).push(Arc::clone(&run.dispatched));
        }
        let (dispatched, recorded) = (&run.dispatched, &run.recorded_calls);
        self.failures.count_calls(&entity.entity, dispatched, ended, recorded);
        if counts_by_itself(spec, ended) {
            self.failures.count(&entity.entity, dispatched, ended);
        }
    }

    /// Whether its run is running.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.phase == RunPhase::Running
    }

    /// Errors if its run is stopping, or has stopped: then it takes no requests.
    pub(crate) fn require_running(&self) -> Result<(), Refusal> {
        let run_seq = self.run_seq;
        match &self.phase {
            RunPhase::Running => Ok(()),
            RunPhase::Stopping { stopping, .. } => {
                Err(Refusal::RunStopping { run_seq, code: stopping.stop_reason_code.clone() })
            }
            RunPhase::Stopped(stopped) => Err(Refusal::RunStopped {
                run_seq,
                code: stopped.stop_reason_code.clone(),
                can_be_resumed: !self.is_over(),
            }),
        }
    }

    /// Whether a warning about inactivity holds.
    #[must_use]
    pub const fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Whether it was stopped for good, or has come to its end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let RunPhase::Stopped(stopped) = &self.phase else { return false };
        !stopped.directive.is_some_and(Directive::goes_on)
    }

    /// Whether its run has stopped, and it waits to be resumed.
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        matches!(self.phase, RunPhase::Stopped(_)) && !self.is_over()
    }

    /// What happens to it afterwards, if its run is stopping or has stopped.
    #[must_use]
    pub fn directive(&self) -> Option<Directive> {
        match &self.phase {
            RunPhase::Running => None,
            RunPhase::Stopping { stopping, .. } => Some(stopping.directive),
            RunPhase::Stopped(stopped) => stopped.directive,
        }
    }

    /// The handlers that are dispatched again when it is resumed.
    #[must_use]
    pub fn held(&self) -> &[Arc<Dispatched>] {
        &self.held
    }

    pub(crate) fn held_mut(&mut self, dispatch: DispatchId) -> Option<&mut Arc<Dispatched>> {
        if !self.holds(dispatch) {
            return None;
        }
        let held = Arc::make_mut(&mut self.held);
        held.iter_mut().find(|held| held.dispatch == dispatch)
    }

    /// The shape that the last action has stated which stated one.
    pub(crate) fn shape(&self) -> Option<&str> {
        self.shape.as_deref()
    }

    /// Its most frequent failure, if it occurred at least `least` times.
    #[must_use]
    pub fn top_failure(&self, least: u64) -> Option<Repeated> {
        self.failures.top().filter(|top| top.count >= least).cloned()
    }

    /// The failures by signature, the most frequent first.
    #[must_use]
    pub fn failures(&self) -> &[Repeated] {
        self.failures.all()
    }

    /// How often a run that `limit` stopped was followed by another one automatically.
    #[must_use]
    pub fn retried(&self, limit: Limit) -> u64 {
        self.retried.get(&limit).copied().unwrap_or(0)
    }

    /// The times that its limits are measured from, each with a number that distinguishes it from
    /// earlier ones of the same kind.
    #[must_use]
    pub fn anchors(&self) -> [(Anchor, u64, WallTime); 5] {
        let run = u64::from(self.run_seq);
        let (stop, stopping) = match &self.phase {
            RunPhase::Stopping { since, .. } => (run, *since),
            RunPhase::Running | RunPhase::Stopped(_) => (0, self.run_started),
        };
        [
            (Anchor::Session, 0, self.first_started),
            (Anchor::Run, run, self.run_started),
            (Anchor::Activity, self.active_since.generation, self.active_since.at),
            (Anchor::Progress, self.progress_since.generation, self.progress_since.at),
            (Anchor::Stop, stop, stopping),
        ]
    }

    /// When it last showed activity, or its run started.
    #[must_use]
    pub const fn active_since(&self) -> WallTime {
        self.active_since.at
    }
}
