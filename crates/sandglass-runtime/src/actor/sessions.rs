//! What an entity's task does about its session: starts and resumes its runs, enforces their
//! limits, and stops them, even while the journal takes no records.

use std::time::Duration;

use sandglass_liveness::decide::{directive, handler_cause, works_only_for};
use sandglass_liveness::session::{self, Due, Watched};
use sandglass_liveness::{Input, Resume, decide};
use sandglass_model::{Cause, DispatchId, Doing, Limit, Monotonic, StopCause};

use super::committing::Committed;
use super::{Actor, Ownership};
use crate::asking::ParentOver;
use crate::error::ActorError;
use crate::handlers::HandlerNow;
use crate::panics::catch_panic;
use crate::request::{SessionResume, SessionStopped};

/// A stop that the journal has not taken. Handlers are stopped nevertheless; the record follows
/// before any other.
#[derive(Debug)]
pub(super) struct Unrecorded {
    input: Input,
    cause: (Cause, String),
    /// When handlers that have not ended by themselves are killed.
    kill_at: Monotonic,
}

impl Actor {
    /// Starts the first run of an entity that is to be a session: its spec, or what its host
    /// allows, has changed.
    pub(super) async fn begin_session(&mut self) {
        let is_to_be = self.entity.session().is_none()
            && self.shared.ceilings().makes_sessions(&self.spec)
            && self.can_rest()
            && !self.has_ended();
        if !is_to_be {
            return;
        }
        let limits =
            self.shared.ceilings().effective(&self.spec, &session::LimitSettings::default());
        if let Err(error) = self.commit_input(&Input::Start { limits }).await {
            let entity = &self.entity.entity;
            tracing::warn!(%entity, %error, "the start of its session is not recorded");
        }
    }

    pub(super) async fn resume(&mut self, resume: SessionResume) -> Result<Committed, ActorError> {
        let SessionResume { by, reason, expected_run, limits } = resume;
        let limits = match self.entity.session() {
            Some(session) => limits.going_on_from(&session.limits),
            None => limits,
        };
        let limits = self.shared.ceilings().effective(&self.spec, &limits);
        self.commit_input(&Input::Resume(Box::new(Resume { by, reason, expected_run, limits })))
            .await
    }

    /// Stops the run of its session, and returns what follows for the session.
    pub(super) async fn stop_run(
        &mut self,
        run_seq: Option<u32>,
        cause: StopCause,
    ) -> Result<SessionStopped, ActorError> {
        let directive = directive(&cause, 0);
        let input = Input::Stop { run_seq, cause: cause.clone() };
        let recorded = self.stop_or_kill(input, &cause).await?;
        let session = self.entity.session();
        let run_seq = session.map_or(0, |session| session.run_seq);
        Ok(SessionStopped { run_seq, directive, is_recorded: recorded })
    }

    /// The session of the handler that asked for `dispatch` is over. If the run of this entity
    /// works only for that handler, it is stopped; otherwise the handler of `dispatch` is, because
    /// nothing waits for it any more.
    pub(super) async fn parent_is_over(&mut self, dispatch: DispatchId, over: ParentOver) {
        let ParentOver { parent, asker, why } = over;
        let is_parent = |cause: &StopCause| matches!(cause, StopCause::Parent { .. });
        let standing = self.entity.session().map(|session| &session.phase);
        if let Some(session::RunPhase::Stopping { stopping, .. }) = standing
            && is_parent(&stopping.cause)
        {
            return;
        }
        if works_only_for(&self.spec, &self.entity, asker) {
            let cause = StopCause::Parent { parent: Some(parent), reason: why.to_string() };
            if self.stop_run(None, cause).await.is_ok() {
                return;
            }
        }
        self.runs.stops.kill(Some(dispatch), Cause::CallerGone, "");
    }

    /// The reason that the entities that its handlers have asked get if `cause` stops the session for
    /// good.
    pub(super) fn session_over_message(&self, cause: &StopCause) -> String {
        format!("{} was stopped ({})", self.entity.entity, cause.code())
    }

    /// Stops the run of its session because the host shuts down. Returns whether that was done and
    /// its handlers have a grace that ends before the shutdown does.
    pub(super) async fn stopped_for_shutdown(&mut self) -> bool {
        if !self.spec.stops_at_shutdown() {
            return false;
        }
        let session = self.entity.session().filter(|session| session.is_running());
        let Some(grace_ms) = session.map(|session| session.limits.abort_timeout_ms) else {
            return false;
        };
        let is_stopped = self.stop_run(None, StopCause::Shutdown).await.is_ok();
        is_stopped && Duration::from_millis(grace_ms) < self.shared.shutdown_grace()
    }

    /// Records a stop and carries it out, even if it cannot be recorded. Returns whether it was
    /// recorded, or an error if an operator's stop joins another one that is not.
    async fn stop_or_kill(&mut self, input: Input, cause: &StopCause) -> Result<bool, ActorError> {
        let obstacle = self.pending.obstacle().filter(|_| self.ownership == Ownership::Owner);
        let answer = match obstacle.or_else(|| self.why_stop_waits()) {
            Some(what) => Err(ActorError::JournalUnavailable { what: what.to_owned() }),
            None => self.commit_input(&input).await,
        };
        let failed = match answer {
            Ok(_) => return Ok(true),
            Err(failed @ ActorError::JournalUnavailable { .. }) => failed,
            Err(error) => return Err(error),
        };
        // A stop that would be refused stops nothing.
        if let Input::Stop { .. } = input {
            let decided = decide(&self.spec, Some(&self.entity), &input, self.shared.clock.wall());
            let entity = self.entity.entity.clone();
            decided.map_err(|refusal| ActorError::Refused { entity, refusal })?;
        }
        if let Some(first) = &mut self.unrecorded {
            // The first cause holds, and this one is not recorded. An operator's stop leaves no
            // grace, and has to be repeated to be for good.
            let is_operators = |cause: &StopCause| matches!(cause, StopCause::Operator { .. });
            let is_repeated =
                matches!(&first.input, Input::Stop { cause, .. } if is_operators(cause));
            if is_repeated || !is_operators(cause) {
                return Ok(false);
            }
            first.kill_at = first.kill_at.min(self.shared.clock.now());
            self.kill_unrecorded();
            return Err(failed);
        }
        // If nothing runs, a stop consists of its record alone.
        let Some(session) = self.entity.session().filter(|session| session.is_running()) else {
            return Err(failed);
        };
        let entity = &self.entity.entity;
        tracing::error!(%entity, code = cause.code(), "a run is stopped without a record yet");
        let grace = if cause.has_grace() { session.limits.abort_timeout_ms } else { 0 };
        let kill_at = self.shared.clock.now().after(Duration::from_millis(grace));
        self.unrecorded = Some(Unrecorded { input, cause: handler_cause(cause), kill_at });
        // Whether a limit ends the session is decided with its record only.
        if cause.limit().is_none() && !directive(cause, 0).goes_on() {
            self.runs.stops.set_session_over(&self.session_over_message(cause));
        }
        self.note_stop();
        self.runs.stops.request_stop(None);
        self.kill_unrecorded();
        Ok(false)
    }

    /// Why a stop that is carried out is not recorded yet, if there is one.
    pub(super) fn why_stop_waits(&self) -> Option<&str> {
        self.unrecorded.as_ref().and_then(|_| self.pending.failure())
    }

    /// When a run that is stopped without a record is killed.
    pub(super) fn kill_at(&self) -> Monotonic {
        self.unrecorded.as_ref().map_or(Monotonic::NEVER, |stop| stop.kill_at)
    }

    /// Kills handlers whose grace is over, if their stop cannot be recorded.
    pub(super) fn kill_unrecorded(&mut self) {
        let now = self.shared.clock.now();
        if let Some(stop) = self.unrecorded.as_mut().filter(|stop| stop.kill_at <= now) {
            stop.kill_at = Monotonic::NEVER;
            let (cause, reason) = &stop.cause;
            self.runs.stops.kill(None, *cause, reason);
        }
    }

    /// Records the stop that could not be recorded, and returns whether none is left.
    pub(super) async fn record_stop(&mut self) -> bool {
        let Some(stop) = &self.unrecorded else { return true };
        let input = stop.input.clone();
        match self.commit_input(&input).await {
            Ok(_) => {}
            Err(ActorError::JournalUnavailable { .. } | ActorError::Elsewhere(_)) => return false,
            Err(error) => {
                tracing::error!(entity = %self.entity.entity, %error, "a stop cannot be recorded");
            }
        }
        self.unrecorded = None;
        true
    }

    /// Enforces a limit of its session, or of its handlers without one, that is breached.
    pub(super) async fn limit_due(&mut self, due: Due) -> Result<(), ActorError> {
        // While the journal fails, activity that is not recorded yet counts, too.
        let is_measured = self.pending.failure().is_some();
        let due = match self.recorded_what_was_held_back(due.limit).await {
            Ok(true) if !is_measured => return Ok(()),
            Ok(_) => due,
            Err(unavailable @ ActorError::JournalUnavailable { .. }) => {
                self.find_breach_that_stops().ok_or(unavailable)?
            }
            Err(error) => return Err(error),
        };
        let Due { limit, observed_ms } = due;
        let active = self.last_active.as_ref().map(|(_, signal)| signal.clone());
        let doing = self.doing();
        let input = Input::LimitDue { limit, observed_ms, doing, active };
        match limit {
            Limit::InactivityWarn => self.commit_input(&input).await.map(|_| ()),
            Limit::AbortTimeout => {
                let answer = self.commit_input(&input).await.map(|_| ());
                if let Err(ActorError::JournalUnavailable { .. }) = answer {
                    self.kill_stopping(input);
                }
                answer
            }
            _ => self.stop_or_kill(input, &StopCause::Limit { limit }).await.map(|_| ()),
        }
    }

    /// Kills the handlers of a run that is already stopping. The record of that (`input`) follows.
    fn kill_stopping(&mut self, input: Input) {
        let standing = self.entity.session().map(|session| &session.phase);
        if let Some(session::RunPhase::Stopping { stopping, .. }) = standing {
            let cause = handler_cause(&stopping.cause);
            self.runs.stops.kill(None, cause.0, &cause.1);
            self.unrecorded = Some(Unrecorded { input, cause, kill_at: Monotonic::NEVER });
        }
    }

    /// A breached limit that does more than warn, if it cannot be recorded now.
    fn find_breach_that_stops(&mut self) -> Option<Due> {
        self.find_breach().filter(|due| due.limit != Limit::InactivityWarn)
    }

    /// Enforces a limit that is breached while nothing can be recorded.
    pub(super) async fn enforce_unrecorded(&mut self) {
        self.kill_unrecorded();
        let stops = self.find_breach_that_stops();
        if let Some(due) = stops.filter(|_| self.unrecorded.is_none()) {
            // Reported where possible; what is not recorded is retried with everything else.
            let _ = self.limit_due(due).await;
        }
    }

    /// Reads the last activity of its handlers. Returns whether that is later than what was known,
    /// so that limits have to be evaluated again.
    pub(super) fn read_activity(&mut self) -> bool {
        let (now, at) = (self.shared.clock.now(), self.shared.clock.wall());
        let in_flight = self.entity.in_flight();
        let handlers =
            in_flight.iter().map(|run| (run.dispatched.dispatch, &*run.dispatched.integration));
        let Some(active) = self.shared.last_active(&self.entity.entity, handlers) else {
            return false;
        };
        if self.last_active.as_ref().is_some_and(|(known, _)| *known == active.identity) {
            return false;
        }
        let is_later = self.timers.note_activity(now.before(active.ago));
        self.last_active = Some((active.identity.clone(), active.signal(at)));
        is_later
    }

    /// After a warning about inactivity: records the activity of its handlers since then, or waits
    /// to be notified of it.
    pub(super) async fn await_activity(&mut self) {
        let is_silent = |watched: Watched<'_>| watched.is_running() && watched.is_silent();
        if !self.entity.watched().is_some_and(is_silent) || self.ownership != Ownership::Owner {
            return;
        }
        let in_flight = self.entity.in_flight();
        let handlers = in_flight.iter().map(|run| run.dispatched.dispatch);
        self.shared.on_activity(&self.entity.entity, handlers, &self.activity);
        // Read after the waiter is in place, so that no activity is missed in between.
        self.read_activity();
        let since = self.entity.watched().map(Watched::active_since);
        let signal = self.last_active.as_ref().map(|(_, signal)| signal.clone());
        let Some(signal) = signal.filter(|signal| Some(signal.at) > since) else { return };
        if self.ready_to_write().await.is_ok() {
            // Refused if something that was just recorded has ended the silence.
            let _ = self.commit_input(&Input::Active(signal)).await;
        }
    }

    /// What the handler that was dispatched first is doing.
    fn doing(&self) -> Option<Doing> {
        let run = self.entity.in_flight().into_iter().next()?;
        let dispatched = &run.dispatched;
        let handlers = &self.shared.handlers;
        let known = catch_panic(|| handlers.doing(dispatched.dispatch)).flatten();
        let now = self.shared.clock.wall();
        let (host_call, since) = match known {
            Some(HandlerNow { place, since, .. }) => (Some(place), now.before(since)),
            None => (None, self.entity.watched()?.active_since()),
        };
        Some(Doing { handler: dispatched.integration.clone(), host_call, since })
    }
}
