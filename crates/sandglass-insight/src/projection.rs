//! Projects the records of sessions into the formats of other systems: the events of a watchdog,
//! the records of an audit, and the warnings of a silence detector. Each is derived from the
//! journal alone and adds nothing to it.

use sandglass_model::signature::TIMED_OUT;
use sandglass_model::timeout::timeout_text;
use sandglass_model::{
    DispatchId, Ended, EntityRef, Event, Limit, LimitBreached, Outcome, Record, Repeated,
    RunStopped, StopCause, WallTime,
};
use serde::Serialize;

use sandglass_liveness::entity::Entity;
use sandglass_liveness::fold::{Fold, Unfit};
use sandglass_liveness::session::error_type_of;
use sandglass_liveness::spec::Spec;

/// The format to project into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The events of a watchdog of the run times of sessions.
    Watchdog,
    /// The records of an audit of tools.
    Audit,
    /// The warnings of a silence detector.
    Silence,
}

/// The event kind of a watchdog.
pub const WATCHDOG_EVENT: &str = "runtime.watchdog.cancel";

/// A record in one of the formats.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Projected {
    /// [`Shape::Watchdog`].
    Watchdog(Box<WatchdogCancel>),
    /// [`Shape::Audit`].
    Audit(Box<Audited>),
    /// [`Shape::Silence`].
    Silence(Box<Silent>),
}

/// A session was stopped by a watchdog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WatchdogCancel {
    /// [`WATCHDOG_EVENT`].
    pub event_kind: &'static str,
    /// The subject of the event.
    pub aggregate: Aggregate,
    /// The reason: `wall_clock_exceeded`.
    pub reason: &'static str,
    /// When the run of the session started.
    pub session_started_at: String,
    /// When the breach was detected.
    pub fired_at: String,
    /// How long the run took, in seconds, rounded up.
    pub elapsed_seconds: u64,
    /// How long the run may take, in seconds, rounded up.
    pub configured_budget_seconds: u64,
    /// The resulting status of the session.
    pub status: &'static str,
    /// The reason, as a code.
    pub stop_reason_code: &'static str,
    /// The session, by the name that resumes it.
    pub session_id: EntityRef,
    /// The run that was stopped.
    pub run_seq: u32,
}

/// The subject of a watchdog event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Aggregate {
    /// `runtime_control`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The session.
    pub id: EntityRef,
}

/// An audit record: a handler that failed, host calls that timed out, or a session that was
/// stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Audited {
    /// A handler failed.
    Tool(AuditedTool),
    /// Host calls of a handler exceeded their time limit.
    Call(AuditedCall),
    /// A session was stopped.
    Session(AuditedSession),
}

/// A handler that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditedTool {
    /// When its end was recorded.
    pub at: String,
    /// The session.
    pub session_id: EntityRef,
    /// The dispatch.
    pub dispatch: DispatchId,
    /// The integration.
    pub tool: String,
    /// The kind of the error. It is `timeout` for a deadline, and is derived from types, never from
    /// a text.
    pub error_type: String,
    /// The error message.
    pub message: String,
    /// How long the handler ran, in milliseconds.
    pub elapsed_ms: u64,
}

/// Host calls of a handler that their own time limit ended; the handler itself continued.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditedCall {
    /// When they were recorded, which is at the end of the handler.
    pub at: String,
    /// The session.
    pub session_id: EntityRef,
    /// The run of the session.
    pub run_seq: u32,
    /// The integration.
    pub tool: String,
    /// The host function.
    pub host_call: String,
    /// `timeout`, derived from the type of the limit, never from a text.
    pub error_type: &'static str,
    /// When the first of these calls began.
    pub started_at: String,
    /// The time limit of each call, in milliseconds.
    pub timeout_ms: u64,
    /// How long the first call took, in milliseconds.
    pub elapsed_ms: u64,
    /// The number of calls.
    pub times: u64,
}

/// A session that was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditedSession {
    /// When the stop was recorded.
    pub at: String,
    /// The session.
    pub session_id: EntityRef,
    /// The run that was stopped.
    pub run_seq: u32,
    /// `cancelled`, `blocked` or `done`.
    pub status: &'static str,
    /// The reason, as a code.
    pub stop_reason_code: String,
    /// The operator, if an operator stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The reason in the words of the operator or of the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its most frequent failure, if it occurred often enough to count as repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure_signature: Option<Repeated>,
}

/// A session was silent for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silent {
    /// When the silence was detected.
    pub at: String,
    /// The session.
    pub session_id: EntityRef,
    /// The state of its entity.
    pub phase: String,
    /// The loop iteration of the session, from 1.
    pub iteration: u64,
    /// `sdk_silence`.
    pub failure_type: &'static str,
    /// How long the session was silent, in seconds, rounded up.
    pub elapsed_silent_seconds: u64,
    /// The last sign of life before the silence.
    pub last_event: Option<LastEvent>,
    /// Whether the session was stopped because of it; otherwise this is only a warning.
    pub killed: bool,
}

/// The last sign of life of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastEvent {
    /// The kind of the signal.
    #[serde(rename = "type")]
    pub kind: String,
    /// The handler in flight, or else the handler that the signal came from.
    pub tool_name: Option<String>,
    /// When the signal was observed.
    pub at: String,
}

/// Folds the records of a journal in order and projects them into one format.
#[derive(Clone, Debug)]
pub struct Projection {
    shape: Shape,
    fold: Fold,
}

impl Projection {
    /// Starts before the first record.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { shape, fold: Fold::new() }
    }

    /// Applies the next record and returns its projection, or `None` if the format has none for it.
    ///
    /// # Errors
    /// The record does not fit the records before it.
    pub fn feed(&mut self, record: &Record) -> Result<Option<Projected>, Unfit> {
        let entity = record.entity.as_ref().and_then(|name| self.fold.entity(name));
        let projected = entity.and_then(|entity| self.project(entity, record));
        self.fold.apply(record)?;
        Ok(projected)
    }

    fn project(&self, entity: &Entity, record: &Record) -> Option<Projected> {
        let at = record.at;
        match (self.shape, &record.event) {
            (Shape::Watchdog, Event::LimitBreached(breach)) => {
                watchdog_cancel(entity, breach).map(Box::new).map(Projected::Watchdog)
            }
            (Shape::Silence, Event::LimitBreached(breach)) => {
                let spec = self.fold.spec(entity.spec)?;
                silence_warning(spec, entity, breach).map(Box::new).map(Projected::Silence)
            }
            (Shape::Audit, event) => audit(entity, event, at).map(Box::new).map(Projected::Audit),
            _ => None,
        }
    }
}

fn watchdog_cancel(entity: &Entity, breach: &LimitBreached) -> Option<WatchdogCancel> {
    let session = entity.session().filter(|_| breach.limit == Limit::RunTimeout)?;
    Some(WatchdogCancel {
        event_kind: WATCHDOG_EVENT,
        aggregate: Aggregate { kind: "runtime_control", id: breach.session.clone() },
        reason: "wall_clock_exceeded",
        session_started_at: session.run_started.to_string(),
        fired_at: breach.at.to_string(),
        elapsed_seconds: breach.observed.div_ceil(1_000),
        configured_budget_seconds: breach.threshold.div_ceil(1_000),
        status: "BLOCKED",
        stop_reason_code: breach.limit.stop_reason_code(),
        session_id: breach.session.clone(),
        run_seq: breach.run_seq,
    })
}

fn silence_warning(spec: &Spec, entity: &Entity, breach: &LimitBreached) -> Option<Silent> {
    let session = entity.session()?;
    let killed = match breach.limit {
        Limit::InactivityWarn => false,
        Limit::InactivityTimeout => true,
        _ => return None,
    };
    let in_flight = breach.in_flight.as_ref().map(|doing| doing.handler.clone());
    Some(Silent {
        at: breach.at.to_string(),
        session_id: breach.session.clone(),
        phase: entity.state.clone(),
        iteration: session.iteration(spec),
        failure_type: "sdk_silence",
        elapsed_silent_seconds: breach.observed.div_ceil(1_000),
        last_event: breach.last_signal.as_ref().map(|last| LastEvent {
            kind: last.kind.clone(),
            tool_name: in_flight.or_else(|| last.of.clone()),
            at: last.at.to_string(),
        }),
        killed,
    })
}

fn audit(entity: &Entity, event: &Event, at: WallTime) -> Option<Audited> {
    match event {
        Event::Ended(ended) => audit_tool(entity, ended, at).map(Audited::Tool),
        Event::LimitBreached(breach) => audit_call(breach).map(Audited::Call),
        Event::RunStopped(stopped) => Some(Audited::Session(audit_stop(entity, stopped, at))),
        _ => None,
    }
}

fn audit_tool(entity: &Entity, ended: &Ended, at: WallTime) -> Option<AuditedTool> {
    let run = entity.in_flight_handler(ended.dispatch)?;
    let (error, message) = ended.outcome.error()?;
    let elapsed_ms = ended.deadline.elapsed_ms;
    let message = match &ended.outcome {
        Outcome::TimedOut(exceeded) => timeout_text(exceeded.budget_ms),
        _ => message,
    };
    // If the handler was not started in time, that limit is the error type, not the error that the
    // host reported for it.
    let late = ended.overruns.iter().find(|one| one.limit == Limit::ScheduleToStartTimeout);
    let error_type = late.map_or_else(|| error_type_of(&error), |late| late.limit.as_str());
    Some(AuditedTool {
        at: at.to_string(),
        session_id: entity.entity.clone(),
        dispatch: ended.dispatch,
        tool: run.dispatched.integration.clone(),
        error_type: error_type.to_owned(),
        message,
        elapsed_ms,
    })
}

fn audit_call(breach: &LimitBreached) -> Option<AuditedCall> {
    let doing = breach.in_flight.as_ref().filter(|_| breach.limit == Limit::HostCallTimeout)?;
    Some(AuditedCall {
        at: breach.at.to_string(),
        session_id: breach.session.clone(),
        run_seq: breach.run_seq,
        tool: doing.handler.clone(),
        host_call: doing.host_call.clone().unwrap_or_default(),
        error_type: error_type_of(TIMED_OUT),
        started_at: doing.since.to_string(),
        timeout_ms: breach.threshold,
        elapsed_ms: breach.observed,
        times: breach.times,
    })
}

fn audit_stop(entity: &Entity, stopped: &RunStopped, at: WallTime) -> AuditedSession {
    use sandglass_model::Directive;
    let status = match stopped.directive {
        None => "done",
        Some(Directive::Cancel) => "cancelled",
        Some(Directive::Wait | Directive::Unstuck | Directive::Retry) => "blocked",
    };
    let (by, reason) = match &stopped.cause {
        StopCause::Operator { by, reason } => (Some(by.clone()), Some(reason.clone())),
        StopCause::Parent { reason, .. } => (None, Some(reason.clone())),
        _ => (None, None),
    };
    AuditedSession {
        at: at.to_string(),
        session_id: entity.entity.clone(),
        run_seq: stopped.run_seq,
        status,
        stop_reason_code: stopped.stop_reason_code.clone(),
        by,
        reason: reason.filter(|reason| !reason.is_empty()),
        last_failure_signature: stopped.signature.clone(),
    }
}
