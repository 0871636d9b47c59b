//! What answers look like.

use std::sync::Arc;

use sandglass_journal::Entry;
use sandglass_liveness::session::StatusView;
use sandglass_model::{
    Cause, DeadlineReport, Decision, DispatchId, Dispatched, Ended, EntityRef, HostCalls,
    ModuleHash, Object, Outcome, Position, Record, Sequence, SpecDigest, TimeSplit, TraceContext,
    WallTime,
};
use sandglass_runtime::{Accepted, RunView, Snapshot};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::daemon::Unhealthy;

/// An entity as it is at one moment.
#[derive(Serialize, ToSchema)]
pub(crate) struct EntityView {
    #[serde(rename = "type")]
    entity_type: String,
    id: String,
    /// On whose behalf it lives.
    tenant: String,
    state: String,
    /// Its variables.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    fields: Object,
    /// How many transitions it has taken.
    #[schema(value_type = u64)]
    sequence: Sequence,
    /// The digest of the spec that it obeys.
    #[schema(value_type = String)]
    spec: SpecDigest,
    /// The handlers that are queued or in flight, in the order of their dispatch.
    in_flight: Vec<HandlerView>,
    /// How many actions are scheduled for later.
    schedules: usize,
    /// Why it has not gone over to the version of its spec that new entities obey, where
    /// that doesn't fit it.
    #[schema(required)]
    held_back: Option<String>,
}

impl EntityView {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let Snapshot {
            entity,
            spec,
            tenant,
            state,
            variables,
            sequence,
            in_flight,
            schedules,
            held_back,
            incarnation: _,
            session: _,
        } = snapshot;
        Self {
            entity_type: entity.entity_type().to_owned(),
            id: entity.id().to_owned(),
            tenant: tenant.clone(),
            state: state.clone(),
            fields: variables.clone(),
            sequence: *sequence,
            spec: *spec,
            in_flight: in_flight.iter().map(HandlerView::of).collect(),
            schedules: *schedules,
            held_back: held_back.clone(),
        }
    }
}

/// A handler in flight.
#[derive(Serialize, ToSchema)]
pub(crate) struct HandlerView {
    #[schema(value_type = String)]
    dispatch: DispatchId,
    integration: String,
    /// The action that triggered it.
    action: String,
    attempt: u32,
    budget_ms: u64,
}

impl HandlerView {
    pub(crate) fn of(run: &RunView) -> Self {
        Self {
            dispatch: run.dispatch,
            integration: run.integration.clone(),
            action: run.action.clone(),
            attempt: run.attempt,
            budget_ms: run.budget_ms,
        }
    }
}

/// A handler in flight, and whose.
#[derive(Serialize, ToSchema)]
pub(crate) struct InFlightView {
    /// TYPE/ID.
    #[schema(value_type = String)]
    pub(crate) entity: EntityRef,
    #[serde(flatten)]
    pub(crate) handler: HandlerView,
}

/// A page of the handlers in flight.
#[derive(Serialize, ToSchema)]
pub(crate) struct InFlightPage {
    pub(crate) dispatches: Vec<InFlightView>,
    /// The `after` of the next page; none where this is the last.
    #[schema(value_type = Option<String>, required)]
    pub(crate) next: Option<DispatchId>,
}

/// An action that was taken: it is durable, and its handlers run in the background.
#[derive(Serialize, ToSchema)]
pub(crate) struct TakenView {
    /// The entity's state after it.
    state: String,
    /// The entity's sequence after it.
    #[schema(value_type = u64)]
    sequence: Sequence,
    /// The handlers that it started.
    #[schema(value_type = Vec<String>)]
    dispatches: Vec<DispatchId>,
    /// The place of its record.
    #[schema(value_type = u64)]
    position: Position,
    /// Where it was waited for: what came of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<WaitedView>,
}

/// What came of waiting for an entity to settle.
#[derive(Serialize, ToSchema)]
pub(crate) struct WaitedView {
    /// Whether it has settled: no handler of it is queued or in flight.
    pub(crate) settled: bool,
    /// The entity now; left out where that can't be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entity: Option<EntityView>,
    /// How the handlers ended that the action started, as far as they have.
    pub(crate) outcomes: Vec<OutcomeView>,
    /// Why not all of it can be told, where that is so; what was taken stays taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) untold: Option<String>,
}

/// How a handler ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct OutcomeView {
    #[schema(value_type = String)]
    pub(crate) dispatch: DispatchId,
    #[schema(value_type = OutcomeSchema)]
    pub(crate) outcome: Outcome,
}

impl TakenView {
    pub(crate) fn of(accepted: Accepted, waited: Option<WaitedView>) -> Self {
        let Accepted { sequence, state, dispatches, position } = accepted;
        Self { state, sequence, dispatches, position, waited }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.waited.as_ref().is_none_or(|waited| waited.settled && waited.untold.is_none())
    }
}

/// How a handler ended; the other fields depend on that.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what another type writes")]
pub(crate) struct OutcomeSchema {
    outcome: OutcomeName,
}

/// The names of outcomes.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes what another type writes")]
pub(crate) enum OutcomeName {
    Completed,
    Failed,
    TimedOut,
    Trapped,
    Limit,
    Rejected,
    Cancelled,
    Interrupted,
}

/// A dispatch, as its records tell of its last attempt.
#[derive(Serialize, ToSchema)]
pub(crate) struct DispatchView {
    #[schema(value_type = String)]
    dispatch: DispatchId,
    /// TYPE/ID.
    #[schema(value_type = String)]
    entity: EntityRef,
    status: Status,
    integration: String,
    module: String,
    /// The hash of the module's bytes, where it was known when it was dispatched.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    module_hash: Option<ModuleHash>,
    /// The action that triggered it.
    action: String,
    /// The state that was entered.
    state: String,
    attempt: u32,
    budget_ms: u64,
    /// The span of its run, as a W3C `traceparent`.
    #[schema(value_type = String)]
    trace: TraceContext,
    /// When it was recorded, in milliseconds since 1970.
    #[schema(value_type = i64)]
    dispatched_at: WallTime,
    /// Where it has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<EndView>,
}

/// Whether a dispatch has ended.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    InFlight,
    Ended,
}

/// How a dispatch ended.
#[derive(Serialize, ToSchema)]
pub(crate) struct EndView {
    /// When it was recorded, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
    #[schema(value_type = OutcomeSchema)]
    outcome: Outcome,
    /// What ended it.
    #[schema(value_type = String)]
    cause: Cause,
    /// What followed.
    #[schema(value_type = Object)]
    decision: Decision,
    /// When its guest might run, in milliseconds since 1970; none where it never might.
    #[schema(value_type = Option<i64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<WallTime>,
    #[schema(value_type = Object)]
    deadline: DeadlineReport,
    /// What was running when it was stopped or trapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    dying_span: Option<String>,
    #[schema(value_type = Object)]
    host_calls: HostCalls,
    #[schema(value_type = Object)]
    time_split_us: TimeSplit,
}

impl DispatchView {
    pub(crate) fn of(entity: EntityRef, at: WallTime, dispatched: Dispatched) -> Self {
        Self {
            dispatch: dispatched.dispatch,
            entity,
            status: Status::InFlight,
            integration: dispatched.integration,
            module: dispatched.module,
            module_hash: dispatched.module_hash,
            action: dispatched.action,
            state: dispatched.state,
            attempt: dispatched.attempt,
            budget_ms: dispatched.budget_ms,
            trace: dispatched.trace,
            dispatched_at: at,
            ended: None,
        }
    }

    pub(crate) fn ended(self, at: WallTime, ended: Ended) -> Self {
        let Ended { end, decision, .. } = ended;
        let end = Arc::unwrap_or_clone(end);
        let end = EndView {
            at,
            outcome: end.outcome,
            cause: end.cause,
            decision,
            started_at: end.started_at,
            deadline: end.deadline,
            dying_span: end.dying_span,
            host_calls: end.host_calls,
            time_split_us: end.time_split_us,
        };
        Self { status: Status::Ended, ended: Some(end), ..self }
    }
}

/// That a handler was asked to end: how it did is in its dispatch soon.
#[derive(Serialize, ToSchema)]
pub(crate) struct CancelledView {
    #[schema(value_type = String)]
    pub(crate) dispatch: DispatchId,
    /// TYPE/ID.
    #[schema(value_type = String)]
    pub(crate) entity: EntityRef,
}

/// A page of an entity's records.
#[derive(Serialize, ToSchema)]
pub(crate) struct HistoryPage {
    #[schema(value_type = Vec<EntrySchema>)]
    entries: Vec<EntryView>,
    /// The `after` of the next page; none at the end of what there is by now.
    #[schema(value_type = Option<u64>, required)]
    next: Option<Position>,
}

impl HistoryPage {
    pub(crate) fn of(page: sandglass_journal::Page) -> Self {
        let next = page.next.map(|next| Position(next.0.saturating_sub(1)));
        Self { entries: page.entries.into_iter().map(EntryView).collect(), next }
    }
}

/// A place of the journal, as `sandglass log --json` writes it.
pub(crate) struct EntryView(pub(crate) Entry);

impl Serialize for EntryView {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Damaged {
            position: Position,
            damaged: String,
        }
        match &self.0 {
            Entry::Record(record) => Record::serialize(record, serializer),
            torn => {
                let damaged = torn.damage().unwrap_or_default();
                Damaged { position: torn.position(), damaged }.serialize(serializer)
            }
        }
    }
}

/// A record, or what is left of one.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what another type writes")]
pub(crate) enum EntrySchema {
    /// A record.
    Record {
        position: u64,
        /// When it was decided, in milliseconds since 1970.
        at: i64,
        /// TYPE/ID; none for what concerns all.
        #[schema(required)]
        entity: Option<String>,
        /// The entity's sequence once this record holds.
        sequence: u64,
        /// What was decided: an object whose `type` says what.
        event: EventSchema,
    },
    /// What is no record as it was written.
    Damaged {
        position: u64,
        /// What is wrong.
        damaged: String,
    },
}

/// What a record says; the other fields depend on its type.
#[derive(Serialize, ToSchema)]
pub(crate) struct EventSchema {
    r#type: String,
}

/// A module that integrations name.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ModuleView {
    pub(crate) name: String,
    /// SHA-256 of its bytes.
    #[schema(value_type = String)]
    pub(crate) hash: ModuleHash,
    pub(crate) bytes: usize,
    /// Where its bytes come from.
    pub(crate) source: Source,
    /// Where it was put: by whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// Where it was put: when, in milliseconds since 1970.
    #[schema(value_type = Option<i64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<WallTime>,
}

/// Where a module's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The folder of specs.
    Folder,
    /// A client, and it is kept beside the journal.
    Put,
    /// A client, and it is gone with this process: there is no journal file.
    PutInMemory,
}

/// All modules.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModuleList {
    pub(crate) modules: Vec<ModuleView>,
}

/// Whether the daemon does its work.
#[derive(Serialize, ToSchema)]
pub(crate) struct HealthView {
    pub(crate) healthy: bool,
    /// Why it isn't; empty where it is.
    reasons: Vec<ReasonView>,
}

impl HealthView {
    /// Of a daemon with these troubles.
    pub(crate) fn of(unhealthy: &[Unhealthy]) -> Self {
        let reasons: Vec<_> = unhealthy.iter().copied().map(reason).collect();
        Self { healthy: reasons.is_empty(), reasons }
    }
}

/// Why the daemon doesn't do its work.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasonView {
    code: ReasonCode,
    /// For people.
    message: &'static str,
}

/// Tells no path and no name: it is for everybody. The log says more.
const fn reason(unhealthy: Unhealthy) -> ReasonView {
    let (code, message) = match unhealthy {
        Unhealthy::Ticker => (
            ReasonCode::Ticker,
            "deadlines can't be kept, so no handler is started; restart the daemon",
        ),
        Unhealthy::KillOverdue => (
            ReasonCode::KillOverdue,
            "a handler is more than a second past its deadline and has not ended",
        ),
        Unhealthy::Journal => (
            ReasonCode::Journal,
            "the journal takes no appends, so nothing is taken; look at its disk",
        ),
        Unhealthy::Closing => (ReasonCode::ShuttingDown, "the daemon is shutting down"),
    };
    ReasonView { code, message }
}

/// What isn't healthy.
#[derive(Clone, Copy, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReasonCode {
    Ticker,
    KillOverdue,
    Journal,
    ShuttingDown,
}

/// How a session stands.
#[derive(Serialize, ToSchema)]
#[schema(value_type = Object)]
#[serde(transparent)]
pub(crate) struct SessionView(StatusView);

impl SessionView {
    pub(crate) const fn of(status: StatusView) -> Self {
        Self(status)
    }

    /// TYPE/ID.
    pub(crate) fn session(&self) -> &str {
        &self.0.session
    }
}

/// A page of the sessions that are awake.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionView>,
    /// The `after` of the next page; none where this is the last.
    #[schema(required)]
    pub(crate) next: Option<String>,
}
