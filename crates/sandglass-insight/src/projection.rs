//! Projects the records of sessions into the formats of other systems: the events of a watchdog,
//! the records of an audit, and the warnings of a silence detector. Each is derived from the
//! journal alone and adds nothing to it.
//!
//! A projection is a function of one record and of what [`Needs`] names: earlier records of the same
//! entity, never later ones. So it is the same whether a file is folded ([`Projection`]), a reader
//! follows a runtime, or a reader resumes at any position. Which records have a projection, and what
//! each needs, is decided from the record alone, so a reader that follows pays for no other record.

use sandglass_model::signature::TIMED_OUT;
use sandglass_model::timeout::timeout_text;
use sandglass_model::{
    Decision, DispatchId, Ended, EntityRef, Event, Limit, LimitBreached, Outcome, Record, Repeated,
    RunStopped, StopCause, WallTime,
};
use serde::Serialize;

use sandglass_liveness::entity::Entity;
use sandglass_liveness::fold::{Fold, Unfit};
use sandglass_liveness::session::{
    STATUS, STATUS_MAX_CHARS, error_type_of, failed_by_timed_out_call,
};
use sandglass_liveness::spec::Spec;

/// The error type of a handler that failed because its run was stopped.
const RUN_STOPPED: &str = "run_stopped";

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

/// What a projection needs besides the record itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// The integration of this dispatch.
    Integration(DispatchId),
    /// The record's entity as it was before the record, and its spec.
    Entity,
}

/// What was looked up for a record; see [`Needs`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Context<'a> {
    /// For [`Needs::Integration`].
    pub integration: Option<&'a str>,
    /// For [`Needs::Entity`].
    pub entity: Option<(&'a Spec, &'a Entity)>,
}

impl Shape {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Watchdog, Self::Audit, Self::Silence];

    /// The [kinds](Event::KINDS) of records among which are all that have a projection.
    #[must_use]
    pub const fn kinds(self) -> &'static [&'static str] {
        match self {
            Self::Watchdog | Self::Silence => &["limit.breached"],
            Self::Audit => &["ended", "signal", "limit.breached", "run.stopped"],
        }
    }

    /// What the projection of a record of `event` needs; `None` if it has no projection.
    #[must_use]
    pub fn needs(self, event: &Event) -> Option<Needs> {
        match (self, event) {
            (Self::Watchdog, Event::LimitBreached(breach)) => {
                (breach.limit == Limit::RunTimeout).then_some(Needs::Entity)
            }
            (Self::Silence, Event::LimitBreached(breach)) => {
                matches!(breach.limit, Limit::InactivityWarn | Limit::InactivityTimeout)
                    .then_some(Needs::Entity)
            }
            (Self::Audit, Event::Ended(ended)) => {
                let is_failure = !matches!(ended.outcome, Outcome::Completed(_));
                is_failure.then_some(Needs::Integration(ended.dispatch))
            }
            (Self::Audit, Event::Signal { name, dispatch: Some(dispatch), .. }) => {
                (name == STATUS).then_some(Needs::Integration(*dispatch))
            }
            (Self::Audit, Event::LimitBreached(breach)) => {
                (breach.limit == Limit::HostCallTimeout).then_some(Needs::Nothing)
            }
            (Self::Audit, Event::RunStopped(_)) => Some(Needs::Nothing),
            _ => None,
        }
    }

    /// The projection of `record`, in the context that it [needs](Shape::needs); `None` if it has
    /// none, or `context` lacks something.
    #[must_use]
    pub fn project(self, record: &Record, context: Context<'_>) -> Option<Projected> {
        let session = record.entity.as_ref()?;
        match (self, &record.event) {
            (Self::Watchdog, Event::LimitBreached(breach)) => {
                let (_, entity) = context.entity?;
                watchdog_cancel(entity, breach).map(Box::new).map(Projected::Watchdog)
            }
            (Self::Silence, Event::LimitBreached(breach)) => {
                let (spec, entity) = context.entity?;
                silence_warning(spec, entity, breach).map(Box::new).map(Projected::Silence)
            }
            (Self::Audit, event) => {
                let audited = audit(session, event, record.at, context.integration);
                audited.map(Box::new).map(Projected::Audit)
            }
            _ => None,
        }
    }
}

/// The tool under which the status texts of handlers are audited.
pub const STATUS_TOOL: &str = "set_status";

/// The event kind of a watchdog.
pub const WATCHDOG_EVENT: &str = "runtime.watchdog.cancel";

/// The failure type of a silence detector.
const SILENCE: &str = "sdk_silence";

/// Where a handler is if it is in none of its host calls.
const OUTSIDE_OF_CALLS: [&str; 3] = ["queued", "instantiate", "guest"];

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

impl Projected {
    /// The type of the event: `runtime.watchdog.cancel`, `audit` or `sdk_silence`.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Watchdog(_) => WATCHDOG_EVENT,
            Self::Audit(_) => "audit",
            Self::Silence(_) => SILENCE,
        }
    }
}

/// A session was stopped by a watchdog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WatchdogCancel {
    /// `runtime_control`.
    pub aggregate_type: &'static str,
    /// The session.
    pub aggregate_id: EntityRef,
    /// [`WATCHDOG_EVENT`].
    pub event_kind: &'static str,
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

/// An audit record: a handler that failed, host calls that timed out, a status text that a handler
/// set, or a session that was stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Audited {
    /// A handler failed.
    Tool(AuditedTool),
    /// Host calls of a handler exceeded their time limit.
    Call(AuditedCall),
    /// A handler set its status text.
    Status(AuditedStatus),
    /// A session was stopped.
    Session(AuditedSession),
}

/// A status text that a handler set, if it is recorded: of a handler that sends very many signals,
/// not all are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditedStatus {
    /// When it was recorded.
    pub at: String,
    /// The session.
    pub session_id: EntityRef,
    /// The dispatch.
    pub dispatch: DispatchId,
    /// [`STATUS_TOOL`].
    pub tool: &'static str,
    /// The integration.
    pub handler: String,
    /// The text, cut to [`STATUS_MAX_CHARS`].
    pub text: String,
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
    /// The text about the timeout, with what to do about it.
    pub message: String,
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

/// The last sign of life of a session, or of handlers without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastEvent {
    /// The kind of the signal.
    #[serde(rename = "type")]
    pub kind: String,
    /// The host call that has not returned. If none is known, the handler in flight, or else what
    /// the signal was about.
    pub tool_name: Option<String>,
    /// The handler in flight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handler: Option<String>,
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

    /// Starts behind the records in `fold`. If these are all earlier records of one entity and its
    /// specs, the next record of that entity has the projection that it has in the whole journal.
    #[must_use]
    pub const fn behind(shape: Shape, fold: Fold) -> Self {
        Self { shape, fold }
    }

    /// Applies the next record and returns its projection, or `None` if the format has none for it.
    ///
    /// # Errors
    /// The record does not fit the records before it.
    pub fn feed(&mut self, record: &Record) -> Result<Option<Projected>, Unfit> {
        let projected = self.shape.needs(&record.event).and_then(|needs| {
            let entity = self.fold.entity(record.entity.as_ref()?)?;
            let context = match needs {
                Needs::Nothing => Context::default(),
                Needs::Integration(dispatch) => {
                    let integration = &*entity.in_flight_handler(dispatch)?.dispatched.integration;
                    Context { integration: Some(integration), ..Context::default() }
                }
                Needs::Entity => {
                    let entity = Some((&**self.fold.spec(entity.spec)?, entity));
                    Context { entity, ..Context::default() }
                }
            };
            self.shape.project(record, context)
        });
        self.fold.apply(record)?;
        Ok(projected)
    }
}

fn watchdog_cancel(entity: &Entity, breach: &LimitBreached) -> Option<WatchdogCancel> {
    let session = entity.session().filter(|_| breach.limit == Limit::RunTimeout)?;
    Some(WatchdogCancel {
        aggregate_type: "runtime_control",
        aggregate_id: entity.entity.clone(),
        event_kind: WATCHDOG_EVENT,
        reason: "wall_clock_exceeded",
        session_started_at: session.run_started.to_string(),
        fired_at: breach.at.to_string(),
        elapsed_seconds: breach.observed.div_ceil(1_000),
        configured_budget_seconds: breach.threshold.div_ceil(1_000),
        status: "BLOCKED",
        stop_reason_code: breach.limit.stop_reason_code(),
        session_id: entity.entity.clone(),
        run_seq: session.run_seq,
    })
}

fn silence_warning(spec: &Spec, entity: &Entity, breach: &LimitBreached) -> Option<Silent> {
    let killed = match breach.limit {
        Limit::InactivityWarn => false,
        Limit::InactivityTimeout => true,
        _ => return None,
    };
    let in_flight = breach.in_flight.as_ref();
    let handler = in_flight.map(|doing| doing.handler.clone());
    let call = in_flight.and_then(|doing| doing.host_call.clone());
    let call = call.filter(|call| !OUTSIDE_OF_CALLS.contains(&call.as_str()));
    Some(Silent {
        at: breach.at.to_string(),
        session_id: entity.entity.clone(),
        phase: entity.state.clone(),
        // Handlers of an entity that is not a session are warned about, too, and loop in none.
        iteration: entity.session().map_or(1, |session| session.iteration(spec)),
        failure_type: SILENCE,
        elapsed_silent_seconds: breach.observed.div_ceil(1_000),
        last_event: breach.last_signal.as_ref().map(|last| LastEvent {
            kind: last.kind.clone(),
            tool_name: call.or_else(|| handler.clone()).or_else(|| last.of.clone()),
            handler,
            at: last.at.to_string(),
        }),
        killed,
    })
}

fn audit(
    session: &EntityRef,
    event: &Event,
    at: WallTime,
    integration: Option<&str>,
) -> Option<Audited> {
    match event {
        Event::Ended(ended) => audit_tool(session, ended, at, integration?).map(Audited::Tool),
        Event::Signal { name, dispatch: Some(dispatch), payload, .. } if name == STATUS => {
            let text = payload.as_str().unwrap_or_default();
            Some(Audited::Status(AuditedStatus {
                at: at.to_string(),
                session_id: session.clone(),
                dispatch: *dispatch,
                tool: STATUS_TOOL,
                handler: integration?.to_owned(),
                text: text.chars().take(STATUS_MAX_CHARS).collect(),
            }))
        }
        Event::LimitBreached(breach) => audit_call(session, breach).map(Audited::Call),
        Event::RunStopped(stopped) => Some(Audited::Session(audit_stop(session, stopped, at))),
        _ => None,
    }
}

fn audit_tool(
    session: &EntityRef,
    ended: &Ended,
    at: WallTime,
    integration: &str,
) -> Option<AuditedTool> {
    let (error, message) = ended.outcome.error()?;
    let elapsed_ms = ended.deadline.elapsed_ms;
    let message = match &ended.outcome {
        Outcome::TimedOut(exceeded) => timeout_text(exceeded.budget_ms),
        _ => message,
    };
    let error_type = ended_by(ended).unwrap_or_else(|| error_type_of(&error));
    Some(AuditedTool {
        at: at.to_string(),
        session_id: session.clone(),
        dispatch: ended.dispatch,
        tool: integration.to_owned(),
        error_type: error_type.to_owned(),
        message,
        elapsed_ms,
    })
}

/// What ended a handler, if that is not the error that it was recorded with: a limit, or the stop of
/// its run. A guest reports either as a failure of its own.
fn ended_by(ended: &Ended) -> Option<&'static str> {
    let limit = |limit: Limit| ended.overruns.iter().find(|one| one.limit == limit);
    if let Some(late) = limit(Limit::ScheduleToStartTimeout) {
        return Some(late.limit.as_str());
    }
    if !matches!(ended.outcome, Outcome::Failed(_)) {
        return None;
    }
    if matches!(ended.decision, Decision::Held | Decision::Dropped) {
        return Some(RUN_STOPPED);
    }
    failed_by_timed_out_call(ended).then(|| error_type_of(TIMED_OUT))
}

fn audit_call(session: &EntityRef, breach: &LimitBreached) -> Option<AuditedCall> {
    let doing = breach.in_flight.as_ref().filter(|_| breach.limit == Limit::HostCallTimeout)?;
    Some(AuditedCall {
        at: breach.at.to_string(),
        session_id: session.clone(),
        run_seq: breach.run_seq?,
        tool: doing.handler.clone(),
        host_call: doing.host_call.clone().unwrap_or_default(),
        error_type: error_type_of(TIMED_OUT),
        started_at: doing.since.to_string(),
        timeout_ms: breach.threshold,
        elapsed_ms: breach.observed,
        times: breach.times,
        message: timeout_text(breach.threshold),
    })
}

fn audit_stop(session: &EntityRef, stopped: &RunStopped, at: WallTime) -> AuditedSession {
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
        session_id: session.clone(),
        run_seq: stopped.run_seq,
        status,
        stop_reason_code: stopped.stop_reason_code.clone(),
        by,
        reason: reason.filter(|reason| !reason.is_empty()),
        last_failure_signature: stopped.signature.clone(),
    }
}
