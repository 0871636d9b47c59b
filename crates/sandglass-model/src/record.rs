//! The records of the journal: what was decided, in order.
//!
//! A record is written before its effect is visible, and never changed. State is
//! the fold of the records; the fold reads no clock.

use serde::{Deserialize, Serialize};

use crate::Object;
use crate::ask::Asked;
use crate::clock::WallTime;
use crate::ended::Ended;
use crate::id::{DispatchId, EntityRef, Incarnation, ModuleHash, Sequence, SpecDigest};
use crate::idempotency::Idempotency;
use crate::outcome::DeadlineOwner;
use crate::rules::RulesVersion;
use crate::session::{LastSignal, Limit, LimitBreached, RunLimits, RunStopped, RunStopping};
use crate::spawn::{Spawn, SpawnObstacle, SpawnedBy, Unspawnable};
use crate::trace::TraceContext;

/// The tenant of entities and dispatches that name none.
pub const DEFAULT_TENANT: &str = "default";

/// The place of a record in its journal, from 1, without gaps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Position(pub u64);

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One record, as the journal returns it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its position in the journal.
    pub position: Position,
    /// When it was decided.
    pub at: WallTime,
    /// The entity that it is about; `None` for a spec, which concerns many.
    pub entity: Option<EntityRef>,
    /// The entity's sequence after this record.
    pub sequence: Sequence,
    /// What was decided.
    pub event: Event,
}

/// What a record states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// A spec came into use. The record contains its text, so that a journal replays by itself.
    SpecRegistered {
        /// The digest of `source` and `rules`.
        digest: SpecDigest,
        /// The automaton's name: the entity type.
        automaton: String,
        /// The text of the spec file.
        source: String,
        /// The rules by which its entities' decisions are made; version 1 if the record states
        /// none.
        #[serde(
            default = "RulesVersion::unstated",
            skip_serializing_if = "RulesVersion::is_unstated"
        )]
        rules: RulesVersion,
    },
    /// An entity was created, at sequence 0.
    Created {
        /// Its spec.
        spec: SpecDigest,
        /// Distinguishes this life of the entity from others of the same name.
        incarnation: Incarnation,
        /// Its first state.
        state: String,
        /// Its variables.
        variables: Object,
        /// Its tenant; `None` for [`DEFAULT_TENANT`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
        /// The transition of another entity that created it, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        spawned_by: Option<Box<SpawnedBy>>,
    },
    /// An action was taken. The sequence increases by one.
    Transition {
        /// The action.
        action: String,
        /// Its parameters.
        params: Object,
        /// The state that it was taken in.
        from: String,
        /// The state that it led to.
        to: String,
        /// The variables afterwards.
        variables: Object,
        /// Why it was taken.
        cause: TransitionCause,
        /// The trace that it belongs to.
        trace: TraceContext,
        /// The states of other entities that conditions read for the decision, if it begins with this
        /// record.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        observed: Vec<Observed>,
        /// The key of the request that it was taken for, if it has one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency: Option<Box<Idempotency>>,
    },
    /// The entity changed to another version of its spec, which an earlier record contains.
    SpecChanged {
        /// The version before.
        from: SpecDigest,
        /// The version from now on.
        to: SpecDigest,
        /// Its variables afterwards.
        variables: Object,
    },
    /// A handler was dispatched. The record is durable before its guest starts.
    Dispatched(Box<Dispatched>),
    /// A handler ended, and what follows was decided.
    Ended(Box<Ended>),
    /// No action was taken in a state for as long as the state allows.
    StateIdle {
        /// The state.
        state: String,
        /// The time that it allows, in milliseconds.
        after_ms: u64,
        /// How long nothing was dispatched, in milliseconds.
        idle_ms: u64,
        /// How often this state's timer has fired for this entity, from 1.
        occurrence: u32,
        /// The action to take.
        action: String,
        /// Whether the state takes it; a guard may refuse.
        taken: bool,
        /// The states of other entities that conditions read for the decision.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        observed: Vec<Observed>,
    },
    /// An action was scheduled for later.
    Scheduled {
        /// Its number within the entity's life, from 0.
        schedule: u64,
        /// The action.
        action: String,
        /// When it is due.
        due: WallTime,
    },
    /// A scheduled action came due.
    ScheduleDue {
        /// Its number.
        schedule: u64,
        /// The action.
        action: String,
        /// Whether the current state takes it.
        taken: bool,
        /// The entity that it would have spawned, if it was refused for that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unspawnable: Option<Box<Unspawnable>>,
        /// The states of other entities that conditions read for the decision.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        observed: Vec<Observed>,
    },
    /// A transition emitted an event, for those who follow the records.
    Emitted {
        /// The event.
        name: String,
        /// The action whose transition emitted it.
        action: String,
    },
    /// A transition spawns an entity. The record is durable before the entity is created.
    Spawning(Box<Spawn>),
    /// A spawned entity exists.
    Spawned {
        /// The sequence of the transition that spawned it.
        spawned_at: Sequence,
        /// Its number within the transition.
        index: u32,
        /// The entity.
        entity: EntityRef,
        /// Why it did not take its first action, if it refused that.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        action_refused: Option<String>,
    },
    /// An entity was not spawned, although the transition was taken.
    SpawnRefused {
        /// The sequence of the transition.
        spawned_at: Sequence,
        /// The number of the spawn within the transition.
        index: u32,
        /// The entity.
        entity: EntityRef,
        /// Why.
        reason: SpawnObstacle,
    },
    /// A signal arrived. It is not an action: it changes no state and no sequence.
    Signal {
        /// What kind: a name, or `progress` or `status` from a handler.
        name: String,
        /// The entity that sent it, if one did. A signal without this and without `dispatch` came from
        /// outside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<EntityRef>,
        /// The handler that sent it, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dispatch: Option<DispatchId>,
        /// Its content.
        #[serde(default)]
        payload: serde_json::Value,
        /// Whether it restarts the state's idle timer.
        resets_idle: bool,
    },
    /// A run of a session began.
    #[serde(rename = "run.started")]
    RunStarted {
        /// Its number, from 1.
        run_seq: u32,
        /// Its limits.
        limits: RunLimits,
    },
    /// A limit of a session, or of handlers of an entity that is not a session, was breached.
    #[serde(rename = "limit.breached")]
    LimitBreached(Box<LimitBreached>),
    /// A session, or handlers of an entity that is not a session, were active again after a warning
    /// about their inactivity.
    #[serde(rename = "limit.cleared")]
    LimitCleared {
        /// The run of the session; `None` if the entity is not a session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run_seq: Option<u32>,
        /// Which limit had been breached.
        limit: Limit,
        /// How long it was inactive, in milliseconds: by its records, unless they show no activity.
        silent_ms: u64,
        /// The activity, if no record shows it: a host call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_signal: Option<Box<LastSignal>>,
    },
    /// A run of a session is to stop.
    #[serde(rename = "run.stopping")]
    RunStopping(Box<RunStopping>),
    /// A run of a session has stopped.
    #[serde(rename = "run.stopped")]
    RunStopped(Box<RunStopped>),
    /// A session was resumed: its next run begins.
    #[serde(rename = "session.resumed")]
    SessionResumed {
        /// The run that had stopped.
        from_run_seq: u32,
        /// The one that begins.
        run_seq: u32,
        /// Who resumed it; `None` if the directive was to retry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// The reason; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// Whether the session is resumed only to be cancelled: its held handlers end without a
        /// start.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        to_cancel: bool,
    },
}

/// The state of another entity, as it was read for a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// The entity.
    pub entity: EntityRef,
    /// Its state; `None` if there was no such entity of the same tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

impl Observed {
    /// Formats several as the end of a sentence.
    #[must_use]
    pub fn format_all(observed: &[Self]) -> String {
        observed.iter().map(|one| format!("; {one}")).collect()
    }
}

impl std::fmt::Display for Observed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            Some(state) => write!(f, "{} was in state `{state}`", self.entity),
            None => write!(f, "there was no {}", self.entity),
        }
    }
}

/// The dispatch of a handler, with all of its inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatched {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// The spec that declares its integration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecDigest>,
    /// The entity's sequence when this was decided, which the journal verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Sequence>,
    /// The integration, as the spec names it.
    pub integration: String,
    /// The module that the integration names.
    pub module: String,
    /// The hash of that module, if it was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module_hash: Option<ModuleHash>,
    /// The action that triggered it.
    pub action: String,
    /// The parameters of that action.
    pub params: Object,
    /// The state that was entered.
    pub state: String,
    /// The variables then.
    pub variables: Object,
    /// The integration's configuration.
    pub config: std::collections::BTreeMap<String, String>,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The budget, in milliseconds.
    pub budget_ms: u64,
    /// Whether the budget is the default, because the spec declares none.
    #[serde(default)]
    pub budget_defaulted: bool,
    /// Whose budget it is: the asker's, if that had less time left than the handler may have.
    #[serde(default)]
    pub owner: DeadlineOwner,
    /// The handler that asked for the action, or that waits for its consequences, if there is one.
    /// Its remaining time bounds the budget of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<DispatchId>,
    /// How many asks deep it is nested.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub depth: u32,
    /// The shape of what the handler is about, if its own action states none in
    /// [`SHAPE_PARAM`](crate::signature::SHAPE_PARAM): that of an earlier action of its session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
    /// Who requested this attempt, if it is neither the first nor a rerun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<Retried>,
    /// The span of its run.
    pub trace: TraceContext,
}

/// The request for one more attempt of an ended dispatch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// Who requested it.
    pub by: String,
    /// The reason; may be empty.
    #[serde(default)]
    pub reason: String,
    /// The requested budget, in milliseconds; `None` for that of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ms: Option<u64>,
}

/// The action in the record of a handler's end that names no action and changes nothing: a success with an
/// empty action, or a message.
pub const NO_ACTION: &str = "none";

/// What follows from a handler's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// The entity takes this action: the next record.
    Take {
        /// The action.
        action: String,
    },
    /// The entity's state has changed and no longer takes it, or there is none: nothing follows.
    Superseded {
        /// The action that would have been taken, or [`NO_ACTION`].
        action: String,
    },
    /// The integration allows another attempt of a lost handler: the next record.
    Rerun,
    /// The run of its session was stopped: it is dispatched again when the session is resumed.
    Held,
    /// The session was stopped permanently before it could begin: nothing follows.
    Dropped,
}

/// Why an action was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum TransitionCause {
    /// A client or operator requested it.
    Requested,
    /// A handler of an entity asked for it.
    Asked(Asked),
    /// A handler ended.
    HandlerEnded {
        /// Which dispatch.
        dispatch: DispatchId,
    },
    /// The state was idle for as long as it allows.
    StateIdle,
    /// It was scheduled.
    Scheduled {
        /// Its number.
        schedule: u64,
    },
    /// It is the first action of an entity that another one spawned.
    Spawned,
}

impl Event {
    /// All record types, as they are serialized.
    pub const KINDS: [&'static str; 20] = [
        "spec_registered",
        "created",
        "transition",
        "spec_changed",
        "dispatched",
        "ended",
        "state_idle",
        "scheduled",
        "schedule_due",
        "emitted",
        "spawning",
        "spawned",
        "spawn_refused",
        "signal",
        "run.started",
        "limit.breached",
        "limit.cleared",
        "run.stopping",
        "run.stopped",
        "session.resumed",
    ];

    /// The states of other entities that were read for the decision that it begins.
    #[must_use]
    pub fn observed(&self) -> &[Observed] {
        match self {
            Self::Transition { observed, .. }
            | Self::StateIdle { observed, .. }
            | Self::ScheduleDue { observed, .. } => observed,
            Self::Ended(ended) => &ended.observed,
            _ => &[],
        }
    }

    /// The serialized type of the record: one of [`Event::KINDS`].
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::SpecRegistered { .. } => "spec_registered",
            Self::Created { .. } => "created",
            Self::Transition { .. } => "transition",
            Self::SpecChanged { .. } => "spec_changed",
            Self::Dispatched(_) => "dispatched",
            Self::Ended(_) => "ended",
            Self::StateIdle { .. } => "state_idle",
            Self::Scheduled { .. } => "scheduled",
            Self::ScheduleDue { .. } => "schedule_due",
            Self::Emitted { .. } => "emitted",
            Self::Spawning(_) => "spawning",
            Self::Spawned { .. } => "spawned",
            Self::SpawnRefused { .. } => "spawn_refused",
            Self::Signal { .. } => "signal",
            Self::RunStarted { .. } => "run.started",
            Self::LimitBreached(_) => "limit.breached",
            Self::LimitCleared { .. } => "limit.cleared",
            Self::RunStopping(_) => "run.stopping",
            Self::RunStopped(_) => "run.stopped",
            Self::SessionResumed { .. } => "session.resumed",
        }
    }
}
