//! The records of the journal: what was decided, in the order in which it was.
//!
//! A record is written before its effect is visible, and never changed. State is
//! the fold of the records; the fold reads no clock.

use serde::{Deserialize, Serialize};

use crate::Object;
use crate::ask::Asked;
use crate::clock::WallTime;
use crate::ended::Ended;
use crate::id::{DispatchId, EntityRef, Incarnation, ModuleHash, Sequence, SpecDigest};
use crate::outcome::DeadlineOwner;
use crate::rules::RulesVersion;
use crate::session::{Limit, LimitBreached, RunLimits, RunStopped, RunStopping};
use crate::trace::TraceContext;

/// The tenant of whatever names none.
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

/// One record, as the journal gives it back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its place.
    pub position: Position,
    /// When it was decided.
    pub at: WallTime,
    /// The entity that it is about; none for what concerns all (a spec).
    pub entity: Option<EntityRef>,
    /// The entity's sequence once this record holds.
    pub sequence: Sequence,
    /// What was decided.
    pub event: Event,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Event {
    /// A spec came into use. Its text is kept, so that a journal replays alone.
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
    /// An entity came to be, at sequence 0.
    Created {
        /// The spec that it obeys.
        spec: SpecDigest,
        /// Tells this life of the entity from any other of the same name.
        incarnation: Incarnation,
        /// Its first state.
        state: String,
        /// Its variables.
        variables: Object,
        /// On whose behalf it lives; none for [`DEFAULT_TENANT`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tenant: Option<String>,
    },
    /// An action was taken. The sequence goes up by one.
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
    },
    /// The entity went over to another version of its spec, which is in the journal by
    /// then.
    SpecChanged {
        /// The version that it obeyed.
        from: SpecDigest,
        /// The one that it obeys from now on.
        to: SpecDigest,
        /// Its variables afterwards.
        variables: Object,
    },
    /// A handler was asked for. Durable before its guest starts.
    Dispatched(Box<Dispatched>),
    /// A handler ended, and what that means was decided.
    Ended(Box<Ended>),
    /// A state had no action for its whole time.
    StateIdle {
        /// The state.
        state: String,
        /// The time that it allows, in milliseconds.
        after_ms: u64,
        /// How long nothing had been dispatched, in milliseconds.
        idle_ms: u64,
        /// How often this state's timer has now fired for this entity, from 1.
        occurrence: u32,
        /// The action that is to be taken.
        action: String,
        /// Whether the state takes it; a guard may refuse.
        taken: bool,
    },
    /// An action was scheduled for later.
    Scheduled {
        /// Its number within the entity's life, from 0.
        schedule: u64,
        /// The action.
        action: String,
        /// When.
        due: WallTime,
    },
    /// A scheduled action came due.
    ScheduleDue {
        /// Its number.
        schedule: u64,
        /// The action.
        action: String,
        /// Whether the present state takes it.
        taken: bool,
    },
    /// Something was told that is no action: it changes no state and no sequence.
    Signal {
        /// What kind: a name, or `progress` or `status` from a handler.
        name: String,
        /// The other entity that sent it, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<EntityRef>,
        /// The handler that sent it, if one did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dispatch: Option<DispatchId>,
        /// What it says.
        #[serde(default)]
        payload: serde_json::Value,
        /// Whether it restarts the state's idle timer.
        resets_idle: bool,
    },
    /// A run of a session began.
    #[serde(rename = "run.started")]
    RunStarted {
        /// Which, from 1.
        run_seq: u32,
        /// What holds it.
        limits: RunLimits,
    },
    /// A limit of a session was breached.
    #[serde(rename = "limit.breached")]
    LimitBreached(Box<LimitBreached>),
    /// A session gave a sign of life after a silence that was warned of.
    #[serde(rename = "limit.cleared")]
    LimitCleared {
        /// In which run of it.
        run_seq: u32,
        /// Which limit had been breached.
        limit: Limit,
        /// How long the silence lasted, in milliseconds, as the records tell.
        silent_ms: u64,
    },
    /// A run of a session is to stop.
    #[serde(rename = "run.stopping")]
    RunStopping(Box<RunStopping>),
    /// A run of a session has stopped.
    #[serde(rename = "run.stopped")]
    RunStopped(Box<RunStopped>),
    /// A session goes on: its next run begins.
    #[serde(rename = "session.resumed")]
    SessionResumed {
        /// The run that had stopped.
        from_run_seq: u32,
        /// The one that begins.
        run_seq: u32,
        /// Who asked for that; none where the directive was to retry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
        /// Why; may be empty.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
        /// Whether that is for one thing alone: the session is cancelled, and what was held of
        /// it ends without a start.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        to_cancel: bool,
    },
}

/// That a handler was asked for, and everything that it was asked with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dispatched {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// The spec that it was asked for by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<SpecDigest>,
    /// The entity's sequence that the decision was made at, and so the one that the
    /// journal had to find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Sequence>,
    /// The integration, as the spec names it.
    pub integration: String,
    /// The module that the integration names.
    pub module: String,
    /// The hash of that module's bytes, where it was known by then.
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
    /// Whether the spec declares no budget, so that this is the default.
    #[serde(default)]
    pub budget_defaulted: bool,
    /// Whose budget it is: the asker's, where it had less left than the handler may
    /// have.
    #[serde(default)]
    pub owner: DeadlineOwner,
    /// The handler that asked for the action, or that waits for what follows it, if one
    /// does. It gives this one at most what it has left itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asker: Option<DispatchId>,
    /// How many asks lead to it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub depth: u32,
    /// Who asked for this attempt, where it is neither the first nor a rerun.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried: Option<Retried>,
    /// The span that its run will have.
    pub trace: TraceContext,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// That somebody asked for one more attempt of a dispatch that had ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// Who.
    pub by: String,
    /// Why; may be empty.
    #[serde(default)]
    pub reason: String,
    /// The budget that was asked for, in milliseconds; none for that of the last
    /// attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_ms: Option<u64>,
}

/// What follows from a handler's end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
pub enum Decision {
    /// The entity takes this action: the next record.
    Take {
        /// The action.
        action: String,
    },
    /// The entity's state has moved on and takes it no more: nothing changes.
    Superseded {
        /// The action that it would have been.
        action: String,
    },
    /// The integration allows that a lost run is run again: the next record.
    Rerun,
    /// The run of its session was stopped: it is dispatched anew when that is resumed.
    Held,
    /// The session was stopped for good before it could begin: nothing follows.
    Dropped,
}

/// Why an action was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum TransitionCause {
    /// Somebody asked for it.
    Requested,
    /// A handler of an entity asked for it.
    Asked(Asked),
    /// A handler ended.
    HandlerEnded {
        /// Which dispatch.
        dispatch: DispatchId,
    },
    /// The state was idle for its whole time.
    StateIdle,
    /// It was scheduled.
    Scheduled {
        /// Its number.
        schedule: u64,
    },
}

impl Event {
    /// All types of records, as they are written.
    pub const KINDS: [&'static str; 16] = [
        "spec_registered",
        "created",
        "transition",
        "spec_changed",
        "dispatched",
        "ended",
        "state_idle",
        "scheduled",
        "schedule_due",
        "signal",
        "run.started",
        "limit.breached",
        "limit.cleared",
        "run.stopping",
        "run.stopped",
        "session.resumed",
    ];

    /// The record's type, as it is written: one of [`Event::KINDS`].
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
