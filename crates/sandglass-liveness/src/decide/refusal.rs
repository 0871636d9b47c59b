//! Why an input is refused and changes nothing.

use sandglass_model::id::InvalidId;
use sandglass_model::{DispatchId, EntityRef, Observed, Sequence, SpawnObstacle, Unspawnable};

use crate::spec::guard::READS_MAX;

/// Why an input is refused and changes nothing. These texts become part of records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such entity.
    #[error("no such entity; create it first")]
    UnknownEntity,
    /// An entity of this name exists already.
    #[error("the entity exists already")]
    EntityExists,
    /// The entity is not at the sequence that the caller expects.
    #[error("the entity is not at sequence {expected}; read it again")]
    NotAtSequence {
        /// The expected sequence.
        expected: Sequence,
    },
    /// The same request, with the same idempotency key, was taken before.
    #[error("the request was taken before, by the transition to sequence {sequence}")]
    TakenBefore {
        /// The entity's sequence after that transition.
        sequence: Sequence,
    },
    /// Another request with the same idempotency key was taken before.
    #[error(
        "its idempotency key was used by another request, which led to sequence {sequence}; \
         send each request with a key of its own"
    )]
    KeyReused {
        /// The entity's sequence after the transition of the other request.
        sequence: Sequence,
    },
    /// The spec declares no such action.
    #[error("no action is named `{action}`{}", hint(.nearest.as_deref()))]
    UnknownAction {
        /// The start of the action's name, without control characters.
        action: String,
        /// The declared action with the most similar name.
        nearest: Option<String>,
    },
    /// The state does not accept the action.
    #[error("state `{state}` doesn't take `{action}`")]
    NotTaken {
        /// The action.
        action: String,
        /// The state.
        state: String,
    },
    /// The guard of the action does not hold.
    #[error(transparent)]
    GuardRefused(Box<UnmetGuard>),
    /// The guard of the action reads the states of too many other entities.
    #[error("the guard of `{action}` reads the states of more than {READS_MAX} entities")]
    TooManyReads {
        /// The action.
        action: String,
    },
    /// The states of these entities have to be read before it can be decided.
    #[error("it depends on the states of other entities, which are not known")]
    Unobserved(Vec<EntityRef>),
    /// A parameter that the action needs is missing or has another type.
    #[error("`{action}` needs the parameter `{param}`, {wanted}")]
    BadParam {
        /// The action.
        action: String,
        /// The parameter.
        param: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// A parameter has a type that does not fit the variable that an effect changes with it.
    #[error(transparent)]
    UnfitParam(Box<UnfitParam>),
    /// The transition would break an invariant of the spec.
    #[error(transparent)]
    InvariantBroken(Box<BrokenInvariant>),
    /// Something is larger than allowed.
    #[error("more than {max} bytes of {what}")]
    TooLarge {
        /// What.
        what: &'static str,
        /// How large it may be, in bytes as JSON.
        max: usize,
    },
    /// The entity has as many handlers in flight as it may have.
    #[error("the entity has {max} handlers in flight; wait until one has ended")]
    TooManyInFlight {
        /// How many it may have.
        max: usize,
    },
    /// The entity has as many actions scheduled as it may have.
    #[error("the entity has {max} actions scheduled; wait until one has come due")]
    TooManySchedules {
        /// How many it may have.
        max: usize,
    },
    /// The action would spawn an entity that cannot be spawned.
    #[error("it would spawn {}, {}", .0.entity, describe(.0.reason))]
    Unspawnable(Unspawnable),
    /// As many entities as may be are spawned and not created yet.
    #[error("the entity spawns {max} others that are not created yet; try again later")]
    TooManySpawns {
        /// How many may be.
        max: usize,
    },
    /// No entity is spawned under this number, or the entity was not spawned.
    #[error("no such spawn is in progress")]
    NotSpawned,
    /// A host call that reached its time limit is not recorded before its handler ends.
    #[error("the host call is recorded with the end of dispatch {dispatch}")]
    RecordedAtTheEnd {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// The name of a signal is invalid.
    #[error(transparent)]
    BadSignal(InvalidId),
    /// The name of a tenant is invalid.
    #[error(transparent)]
    BadTenant(InvalidId),
    /// No handler of this dispatch is in flight.
    #[error("dispatch {dispatch} is not in flight")]
    UnknownDispatch {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// Another attempt of the dispatch is in flight.
    #[error("attempt {attempt} of dispatch {dispatch} is not the one in flight")]
    StaleAttempt {
        /// The dispatch.
        dispatch: DispatchId,
        /// The attempt.
        attempt: u32,
    },
    /// Asks are nested too deeply.
    #[error("asks are nested more than {max} deep")]
    AskTooDeep {
        /// How deep they may be.
        max: u32,
    },
    /// The asker would wait for itself to settle.
    #[error("ask_cycle: a handler can't wait until its own entity has settled")]
    AskCycle,
    /// The asker's deadline has passed.
    #[error("the asker has no time left")]
    AskTooLate,
    /// A handler that is in flight cannot be retried.
    #[error("dispatch {dispatch} is in flight; wait until it has ended, or cancel it")]
    StillInFlight {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// The dispatch was retried since the attempt that the caller saw end, or never had such an
    /// attempt.
    #[error(
        "the last attempt of dispatch {dispatch} is {last}, not {expected}; read its status first"
    )]
    NotTheLastAttempt {
        /// The dispatch.
        dispatch: DispatchId,
        /// The attempt that was expected to be the last.
        expected: u32,
        /// The last attempt.
        last: u32,
    },
    /// No handler of this dispatch has ended, or too many have since.
    #[error(
        "the entity remembers no ended dispatch {dispatch} (the last {} of it can be retried)",
        crate::entity::ENDED_DISPATCHES_MAX
    )]
    NothingToRetry {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// A handler that completed is not started again: its effects have landed.
    #[error(
        "dispatch {dispatch} has completed, so its effects have landed; send an action instead"
    )]
    RetryOfSuccess {
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// The spec that the entity obeys has no such integration any more.
    #[error("the entity's spec has no integration `{integration}`")]
    UnknownIntegration {
        /// The integration, with control characters removed.
        integration: String,
    },
    /// The present state does not accept all endings of the handler.
    #[error("state `{state}` doesn't take {missing} of integration `{integration}`")]
    EndingsNotTaken {
        /// The integration.
        integration: String,
        /// The state.
        state: String,
        /// The endings that it does not accept, as in the spec.
        missing: String,
    },
    /// The name of the operator who retries is invalid.
    #[error(transparent)]
    BadRetry(InvalidId),
    /// The budget is out of range.
    #[error("a budget of {budget_ms} ms can't be given; it is from 1 ms to 366 days")]
    BadBudget {
        /// The budget, in milliseconds.
        budget_ms: u64,
    },
    /// The state's timer was restarted, or is not running.
    #[error("the state's timer has been restarted or stopped")]
    StaleTimer,
    /// The state's timer has not run down.
    #[error("the state was idle for {idle_ms} ms and may be for {after_ms} ms")]
    NotIdleYet {
        /// How long nothing had been dispatched, in milliseconds.
        idle_ms: u64,
        /// How long that is allowed, in milliseconds.
        after_ms: u64,
    },
    /// The entity cannot change to another version of its spec.
    #[error("the new version of its spec doesn't fit: {what}")]
    SpecUnfit {
        /// Why.
        what: String,
    },
    /// The entity is not a session.
    #[error(
        "it is no session: its spec has no [limits], and its host has none for all; \
         cancel its handlers one by one"
    )]
    NoSession,
    /// The run of the session is running.
    #[error("run {run_seq} of the session goes on")]
    StillRunning {
        /// The run.
        run_seq: u32,
    },
    /// The run of the session is stopping.
    #[error("run {run_seq} of the session is stopping ({code}); wait until it has stopped")]
    RunStopping {
        /// The run.
        run_seq: u32,
        /// Why it is stopping.
        code: String,
    },
    /// The run of the session has stopped.
    #[error(
        "already stopped: run {run_seq} of the session ({code}); {}",
        if *.can_be_resumed { "resume it first" } else { "it is over" }
    )]
    RunStopped {
        /// The run.
        run_seq: u32,
        /// Why it stopped.
        code: String,
        /// Whether the session waits to be resumed.
        can_be_resumed: bool,
    },
    /// The run of the session has started as many handlers as it may.
    #[error(
        "the run of the session has started the {max} handlers that it may, and a retry is one more"
    )]
    NoHandlerRunLeft {
        /// How many it may start.
        max: u64,
    },
    /// The session is in another run than the caller saw.
    #[error("the present run of the session is {run_seq}, not {expected}; read its status first")]
    NotTheRun {
        /// The run that was expected.
        expected: u32,
        /// The present one.
        run_seq: u32,
    },
    /// The name of the operator who stops or resumes the session is invalid.
    #[error(transparent)]
    BadPrincipal(InvalidId),
    /// No action is scheduled under this number.
    #[error("no action is scheduled under number {number}")]
    UnknownSchedule {
        /// The number.
        number: u64,
    },
}

impl Refusal {
    /// The part of a guard that does not hold, with the values that it has read (each cut at 80
    /// characters), for a client that may read the entity. It is not in the text of the refusal, which
    /// may become part of records and may be shown to handlers of other entities.
    #[must_use]
    pub fn unmet(&self) -> Option<&str> {
        match self {
            Self::GuardRefused(guard) => guard.unmet.as_deref(),
            _ => None,
        }
    }
}

/// A guard that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the guard of `{action}` doesn't hold in state `{state}`{}", Observed::format_all(.observed))]
pub struct UnmetGuard {
    /// The action.
    pub action: String,
    /// The state.
    pub state: String,
    /// The states of other entities that it has read.
    pub observed: Box<[Observed]>,
    /// What does not hold, if a client requested the action: the [`Refusal::unmet`].
    pub unmet: Option<String>,
}

/// A parameter whose type does not fit the variable that an effect changes with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{action}`: parameter `{param}` is {is}, and variable `{variable}` is a {of}: give {wanted}"
)]
pub struct UnfitParam {
    /// The action.
    pub action: String,
    /// The parameter.
    pub param: String,
    /// The type that it has.
    pub is: &'static str,
    /// The variable.
    pub variable: String,
    /// The type of the variable.
    pub of: &'static str,
    /// What the parameter must be.
    pub wanted: &'static str,
}

/// An invariant of the spec that a transition would break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{action}` would break the invariant `{invariant}` in state `{state}`{}",
    reason(.message.as_deref())
)]
pub struct BrokenInvariant {
    /// The action.
    pub action: String,
    /// The invariant.
    pub invariant: String,
    /// The state after the action.
    pub state: String,
    /// The text of the spec for that.
    pub message: Option<String>,
}

/// A name of foreign origin, cut and without control characters.
pub(super) fn shown(name: &str) -> String {
    // Longer than any declared name.
    name.chars().take(80).flat_map(char::escape_debug).collect()
}

fn reason(message: Option<&str>) -> String {
    message.map(|message| format!(": {message}")).unwrap_or_default()
}

/// Why an entity is not spawned, as the end of a sentence about it.
fn describe(obstacle: SpawnObstacle) -> &'static str {
    match obstacle {
        SpawnObstacle::Exists => "which exists already; give another id",
        SpawnObstacle::UnknownType => "whose type has no spec; load its spec file",
        SpawnObstacle::TooMany => {
            "which the host refuses, because too many spawned entities of the tenant have something to \
             do"
        }
        SpawnObstacle::NotRecorded => "which the journal does not take",
    }
}

fn hint(name: Option<&str>) -> String {
    name.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}
