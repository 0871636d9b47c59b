//! What an entity's task does about its session: it starts and resumes its runs, holds them to
//! their limits, and stops them, also where nothing of that can be recorded yet.

use std::time::Duration;

use sandglass_liveness::decide::{directive, told, works_only_for};
use sandglass_liveness::session::{self, Due};
use sandglass_liveness::{Input, Resume, decide};
use sandglass_model::{Cause, DispatchId, Doing, Limit, Monotonic, StopCause};

use super::committing::Committed;
use super::{Actor, Standing};
use crate::asking::ParentOver;
use crate::caught::caught;
use crate::error::ActorError;
use crate::request::{SessionResume, SessionStopped};

/// A stop that the journal hasn't taken. What runs is ended all the same; the record follows,
/// before anything else that does.
#[derive(Debug)]
pub(super) struct Unrecorded {
    input: Input,
    cause: (Cause, String),
    /// When those that don't end by themselves are killed.
    kill_at: Monotonic,
}

impl Actor {
    /// Starts its first run where it is no session yet and is to be one: its spec, or what its
    /// host allows, has changed.
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
        if let Err(error) = self.tell(&Input::Start { limits }).await {
            let entity = &self.entity.entity;
            tracing::warn!(%entity, %error, "the begin of its session isn't recorded");
        }
    }

    pub(super) async fn resume(&mut self, resume: SessionResume) -> Result<Committed, ActorError> {
        let SessionResume { by, reason, expected_run, limits } = resume;
        let limits = match self.entity.session() {
            Some(session) => limits.going_on_from(&session.limits),
            None => limits,
        };
        let limits = self.shared.ceilings().effective(&self.spec, &limits);
        self.tell(&Input::Resume(Box::new(Resume { by, reason, expected_run, limits }))).await
    }

    /// Stops the run of its session; answers what becomes of it.
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

    /// The session is over that asked for the handler of `dispatch`. Where its own run works for
    /// that alone, it is stopped; otherwise that handler is, for which nobody waits any more.
    pub(super) async fn parent_is_over(&mut self, dispatch: DispatchId, over: ParentOver) {
        let ParentOver { parent, asker, why } = over;
        let is_parent = |cause: &StopCause| matches!(cause, StopCause::Parent { .. });
        let standing = self.entity.session().map(|session| &session.standing);
        if let Some(session::Standing::Stopping { stopping, .. }) = standing
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
        self.runs.stop(dispatch, Cause::CallerGone, "");
    }

    /// What is told to whom its handlers have asked, where `cause` stops it for good.
    pub(super) fn over(&self, cause: &StopCause) -> String {
        format!("{} was stopped ({})", self.entity.entity, cause.code())
    }

    /// Stops the run of its session because the host shuts down; answers whether that is so,
    /// and its handlers have the time to end by themselves that they are given.
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
        let obstacle = self.recording.obstacle().filter(|_| self.standing == Standing::Owner);
        let answer = match obstacle.or_else(|| self.why_stop_waits()) {
            Some(what) => Err(ActorError::JournalUnavailable { what: what.to_owned() }),
            None => self.tell(&input).await,
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
        // Where nothing runs there is nothing to be done without a record.
        let Some(session) = self.entity.session().filter(|session| session.is_running()) else {
            return Err(failed);
        };
        let entity = &self.entity.entity;
        tracing::error!(%entity, code = cause.code(), "a run is stopped, which can't be recorded yet");
        let grace = if cause.has_grace() { session.limits.abort_timeout_ms } else { 0 };
        let kill_at = self.shared.clock.now().after(Duration::from_millis(grace));
        self.unrecorded = Some(Unrecorded { input, cause: told(cause), kill_at });
        // Of a limit nobody knows before its record whether the session goes on.
        if cause.limit().is_none() && !directive(cause, 0).goes_on() {
            self.runs.session_is_over(&self.over(cause));
        }
        self.note_told_to_stop();
        self.runs.ask(None);
        self.kill_unrecorded();
        Ok(false)
    }

    /// Why a stop that is carried out is not recorded yet, if there is one.
    pub(super) fn why_stop_waits(&self) -> Option<&str> {
        self.unrecorded.as_ref().and_then(|_| self.recording.failure())
    }

    /// When a run that is stopped without a record is to be killed.
    pub(super) fn kill_at(&self) -> Monotonic {
        self.unrecorded.as_ref().map_or(Monotonic::NEVER, |stop| stop.kill_at)
    }

    /// Kills what was to end by itself and hasn't, where that can't be recorded.
    pub(super) fn kill_unrecorded(&mut self) {
        let now = self.shared.clock.now();
        if let Some(stop) = self.unrecorded.as_mut().filter(|stop| stop.kill_at <= now) {
            stop.kill_at = Monotonic::NEVER;
            let (cause, reason) = &stop.cause;
            self.runs.stop_all(*cause, reason);
        }
    }

    /// Records the stop that couldn't be; answers whether nothing is left of that.
    pub(super) async fn record_stop(&mut self) -> bool {
        let Some(stop) = &self.unrecorded else { return true };
        let input = stop.input.clone();
        match self.tell(&input).await {
            Ok(_) => {}
            Err(ActorError::JournalUnavailable { .. }) => return false,
            Err(error) => {
                tracing::error!(entity = %self.entity.entity, %error, "a stop can't be recorded");
            }
        }
        self.unrecorded = None;
        true
    }

    /// A limit of its session is breached.
    pub(super) async fn limit_due(&mut self, due: Due) -> Result<(), ActorError> {
        // While the journal fails, activity that waits is measured, too.
        let is_measured = self.recording.failure().is_some();
        let due = match self.recorded_what_was_held_back(due.limit).await {
            Ok(true) if !is_measured => return Ok(()),
            Ok(_) => due,
            Err(unavailable @ ActorError::JournalUnavailable { .. }) => {
                self.find_breach_that_stops().ok_or(unavailable)?
            }
            Err(error) => return Err(error),
        };
        let Due { limit, observed_ms } = due;
        let input = Input::LimitDue { limit, observed_ms, doing: self.doing() };
        match limit {
            Limit::InactivityWarn => self.tell(&input).await.map(|_| ()),
            Limit::AbortTimeout => {
                let answer = self.tell(&input).await.map(|_| ());
                if let Err(ActorError::JournalUnavailable { .. }) = answer {
                    self.kill_stopping(input);
                }
                answer
            }
            _ => self.stop_or_kill(input, &StopCause::Limit { limit }).await.map(|_| ()),
        }
    }

    /// Kills the handlers of a run that is stopping by its record, without the one that says so
    /// (`input`), which follows.
    fn kill_stopping(&mut self, input: Input) {
        let standing = self.entity.session().map(|session| &session.standing);
        if let Some(session::Standing::Stopping { stopping, .. }) = standing {
            let cause = told(&stopping.cause);
            self.runs.stop_all(cause.0, &cause.1);
            self.unrecorded = Some(Unrecorded { input, cause, kill_at: Monotonic::NEVER });
        }
    }

    /// The same as `find_breach`, of limits that do more than warn, which needs a record.
    fn find_breach_that_stops(&mut self) -> Option<Due> {
        self.find_breach().filter(|due| due.limit != Limit::InactivityWarn)
    }

    /// Enforces a limit that is breached while nothing can be recorded.
    pub(super) async fn enforce_unrecorded(&mut self) {
        self.kill_unrecorded();
        let stops = self.find_breach_that_stops();
        if let Some(due) = stops.filter(|_| self.unrecorded.is_none()) {
            // It is told where it can be told; what isn't recorded is tried again with the rest.
            let _ = self.limit_due(due).await;
        }
    }

    /// What the handler that was asked for first is doing.
    fn doing(&self) -> Option<Doing> {
        let run = self.entity.in_flight().into_iter().next()?;
        let dispatched = &run.dispatched;
        let handlers = &self.shared.handlers;
        let known = caught(|| handlers.doing(dispatched.dispatch)).flatten();
        let now = self.shared.clock.wall();
        let (host_call, since) = match known {
            Some((place, ago)) => (Some(place), now.before(ago)),
            None => {
                let session = self.entity.session()?;
                (None, session.active_since())
            }
        };
        Some(Doing { handler: dispatched.integration.clone(), host_call, since })
    }
}
