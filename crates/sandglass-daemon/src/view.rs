//! The bodies of responses. Doc comments of types and fields appear in the OpenAPI document.

use std::sync::Arc;

use sandglass_journal::Entry;
use sandglass_liveness::session::StatusView;
use sandglass_model::{
    Cause, DeadlineReport, Decision, DispatchId, Dispatched, Ended, EntityRef, HostCalls, HostId,
    ModuleHash, Object, Outcome, Position, Record, Sequence, SpawnObstacle, SpecDigest, TimeSplit,
    TraceContext, WallTime,
};
use sandglass_runtime::{Accepted, RunView, Snapshot};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cluster::MissingView;

/// An entity at one moment.
#[derive(Serialize, ToSchema)]
pub(crate) struct EntityView {
    #[serde(rename = "type")]
    entity_type: String,
    id: String,
    /// The tenant that it belongs to.
    tenant: String,
    state: String,
    /// The last values of the parameters of all actions that it took, and its variables, which take
    /// precedence.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    fields: Object,
    /// How many transitions it has taken.
    #[schema(value_type = u64)]
    sequence: Sequence,
    /// The digest of its spec.
    #[schema(value_type = String)]
    spec: SpecDigest,
    /// The handlers that are queued or in flight, in the order of their dispatch.
    in_flight: Vec<HandlerView>,
    /// How many actions are scheduled for later.
    schedules: usize,
    /// The entities that it spawns and whose creation it has not recorded yet, as TYPE/ID.
    #[schema(value_type = Vec<String>)]
    spawning: Vec<EntityRef>,
    /// Why it has not moved to the current version of its spec, if it has not.
    #[schema(required)]
    held_back: Option<String>,
}

impl EntityView {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let mut fields = snapshot.fields.to_object();
        fields.extend(snapshot.variables.clone());
        Self {
            entity_type: snapshot.entity.entity_type().to_owned(),
            id: snapshot.entity.id().to_owned(),
            tenant: snapshot.tenant.clone(),
            state: snapshot.state.clone(),
            fields,
            sequence: snapshot.sequence,
            spec: snapshot.spec,
            in_flight: snapshot.in_flight.iter().map(HandlerView::new).collect(),
            schedules: snapshot.schedules,
            spawning: snapshot.spawning.clone(),
            held_back: snapshot.held_back.clone(),
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
    pub(crate) fn new(run: &RunView) -> Self {
        Self {
            dispatch: run.dispatch,
            integration: run.integration.clone(),
            action: run.action.clone(),
            attempt: run.attempt,
            budget_ms: run.budget_ms,
        }
    }
}

/// A handler in flight, with its entity.
#[derive(Serialize, ToSchema)]
pub(crate) struct InFlightView {
    /// TYPE/ID.
    #[schema(value_type = String)]
    pub(crate) entity: EntityRef,
    #[serde(flatten)]
    pub(crate) handler: HandlerView,
    /// The host that it is on; absent without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub(crate) host: Option<HostId>,
}

/// A page of the handlers in flight.
#[derive(Serialize, ToSchema)]
pub(crate) struct InFlightPage {
    pub(crate) dispatches: Vec<InFlightView>,
    /// The `after` of the next page; null on the last page.
    #[schema(value_type = Option<String>, required)]
    pub(crate) next: Option<DispatchId>,
    /// The hosts that did not respond in time: what they have is not in the page. Absent without a
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<Vec<MissingView>>,
}

/// A transition that was taken. It is durable, and its handlers execute in the background.
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
    /// The position of its record in the journal.
    #[schema(value_type = u64)]
    position: Position,
    /// The result of waiting, if the request waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    waited: Option<WaitedView>,
}

/// The result of waiting for an entity to settle.
#[derive(Serialize, ToSchema)]
pub(crate) struct WaitedView {
    /// Whether it has settled: no handler of it is queued or in flight.
    pub(crate) settled: bool,
    /// The entity now; absent if it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entity: Option<EntityView>,
    /// How the handlers that the action started ended; only of those that have.
    pub(crate) outcomes: Vec<OutcomeView>,
    /// The entities that the action was to spawn, and that were not created.
    pub(crate) not_spawned: Vec<NotSpawnedView>,
    /// Why this is incomplete, if it is. The transition was taken in any case.
    #[serde(rename = "untold", skip_serializing_if = "Option::is_none")]
    pub(crate) incomplete: Option<String>,
}

/// An entity that was not spawned.
#[derive(Serialize, ToSchema)]
pub(crate) struct NotSpawnedView {
    /// TYPE/ID.
    #[schema(value_type = String)]
    pub(crate) entity: EntityRef,
    /// Why, as in the record `spawn_refused`.
    #[schema(value_type = String)]
    pub(crate) reason: SpawnObstacle,
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
    pub(crate) fn new(accepted: Accepted, waited: Option<WaitedView>) -> Self {
        let Accepted { sequence, state, dispatches, position } = accepted;
        Self { state, sequence, dispatches, position, waited }
    }

    /// Whether there is nothing more to wait for or to read.
    pub(crate) fn is_complete(&self) -> bool {
        self.waited.as_ref().is_none_or(|waited| waited.settled && waited.incomplete.is_none())
    }
}

/// How a handler ended; further fields depend on `outcome`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes how another type is serialized")]
pub(crate) struct OutcomeSchema {
    outcome: OutcomeName,
}

/// The names of outcomes.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes how another type is serialized")]
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

/// A dispatch and its last attempt, from its records.
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
    /// The hash of the module, if it was known when the handler was dispatched.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    module_hash: Option<ModuleHash>,
    /// The action that triggered it.
    action: String,
    /// The state that was entered.
    state: String,
    attempt: u32,
    budget_ms: u64,
    /// The span of the handler, as a W3C `traceparent`.
    #[schema(value_type = String)]
    trace: TraceContext,
    /// When the dispatch was recorded, in milliseconds since 1970.
    #[schema(value_type = i64)]
    dispatched_at: WallTime,
    /// Its end; absent while it is in flight.
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
    /// When the end was recorded, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
    #[schema(value_type = OutcomeSchema)]
    outcome: Outcome,
    /// The first cause of the end.
    #[schema(value_type = String)]
    cause: Cause,
    /// The decision that followed.
    #[schema(value_type = Object)]
    decision: Decision,
    /// When its guest was permitted to start, in milliseconds since 1970; absent if it never was.
    #[schema(value_type = Option<i64>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<WallTime>,
    #[schema(value_type = Object)]
    deadline: DeadlineReport,
    /// What was executing when the handler was killed or trapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    dying_span: Option<String>,
    #[schema(value_type = Object)]
    host_calls: HostCalls,
    #[schema(value_type = Object)]
    time_split_us: TimeSplit,
}

impl DispatchView {
    pub(crate) fn new(entity: EntityRef, at: WallTime, dispatched: Dispatched) -> Self {
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

    pub(crate) fn with_end(self, at: WallTime, ended: Ended) -> Self {
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

/// A handler that is being cancelled. Its dispatch will have the outcome soon.
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
    /// The `after` of the next page; null at the present end of the history.
    #[schema(value_type = Option<u64>, required)]
    next: Option<Position>,
}

impl HistoryPage {
    pub(crate) fn new(page: sandglass_journal::Page) -> Self {
        let next = page.next.map(|next| Position(next.0.saturating_sub(1)));
        Self { entries: page.entries.into_iter().map(EntryView).collect(), next }
    }
}

/// An entry of the journal, as `sandglass log --json` writes it.
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

/// A record, or a damaged entry.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes how another type is serialized")]
pub(crate) enum EntrySchema {
    /// A record.
    Record {
        position: u64,
        /// When it was decided, in milliseconds since 1970.
        at: i64,
        /// TYPE/ID; null if the record concerns no single entity.
        #[schema(required)]
        entity: Option<String>,
        /// The entity's sequence after this record.
        sequence: u64,
        /// What was decided.
        event: EventSchema,
    },
    /// An entry that is not as it was written.
    Damaged {
        position: u64,
        /// What is wrong.
        damaged: String,
    },
}

/// The content of a record; further fields depend on `type`.
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
    /// Who uploaded it, if it was uploaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<String>,
    /// When it was uploaded, in milliseconds since 1970, if it was.
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
    /// An upload, which is stored beside the journal, or in the database of a cluster.
    Put,
    /// An upload, which ends with this process, because there is no journal file.
    PutInMemory,
}

/// All modules.
#[derive(Serialize, ToSchema)]
pub(crate) struct ModuleList {
    pub(crate) modules: Vec<ModuleView>,
}

/// The health of the daemon.
#[derive(Serialize, ToSchema)]
pub(crate) struct HealthView {
    pub(crate) healthy: bool,
    /// Why it is not healthy; empty if it is.
    reasons: Vec<ReasonView>,
}

impl HealthView {
    pub(crate) fn new(unhealthy: &[ReasonCode]) -> Self {
        let view = |code: &ReasonCode| ReasonView { code: *code, message: code.message() };
        Self { healthy: unhealthy.is_empty(), reasons: unhealthy.iter().map(view).collect() }
    }
}

/// Why the daemon is not healthy.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasonView {
    code: ReasonCode,
    /// For people.
    message: &'static str,
}

/// What is not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReasonCode {
    Ticker,
    KillOverdue,
    Journal,
    Ownership,
    Refused,
    Deployment,
    ShuttingDown,
}

impl ReasonCode {
    // Contains no path and no name, because clients without a key read it. The log has the details.
    const fn message(self) -> &'static str {
        match self {
            Self::Ticker => {
                "deadlines cannot be enforced, so no handler is started; restart the daemon"
            }
            Self::KillOverdue => {
                "a handler is more than a second past its deadline and has not ended"
            }
            Self::Journal => {
                "the journal takes no appends, so requests are refused; check its disk or database"
            }
            Self::Ownership => {
                "this host's lease has expired, so its handlers begin no effects until its database \
                 acknowledges a beat; check the database"
            }
            Self::Refused => {
                "the other hosts of the cluster refuse this one; give all hosts the same cluster key, and \
                 certificates of the same CA"
            }
            Self::Deployment => {
                "this host cannot run the active generation, so it owns no entities; see \
                 `sandglass cluster status`"
            }
            Self::ShuttingDown => "the daemon is shutting down",
        }
    }
}

/// The status of a session, or without `run_seq`, of the handlers in flight of another entity.
#[derive(Serialize, ToSchema)]
#[schema(value_type = Object)]
#[serde(transparent)]
pub(crate) struct SessionView(OnHost);

#[derive(Serialize)]
struct OnHost {
    #[serde(flatten)]
    status: StatusView,
    /// The host that it is on, in lists of a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<HostId>,
}

impl SessionView {
    pub(crate) const fn new(status: StatusView) -> Self {
        Self::on(status, None)
    }

    pub(crate) const fn on(status: StatusView, host: Option<HostId>) -> Self {
        Self(OnHost { status, host })
    }

    /// TYPE/ID.
    pub(crate) fn session(&self) -> &str {
        &self.0.status.session
    }
}

/// A page of the sessions that are awake.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionPage {
    pub(crate) sessions: Vec<SessionView>,
    /// The `after` of the next page; null on the last page.
    #[schema(required)]
    pub(crate) next: Option<String>,
    /// The hosts that did not respond in time: what they have is not in the page. Absent without a
    /// cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<Vec<MissingView>>,
}
