//! The plain data that every part of Sandglass shares.
//!
//! - [`record`]: what a journal can contain. Start here.
//! - [`outcome`], [`cause`], [`report`], [`story`]: how a handler run ended, and what it did.
//! - [`session`], [`limit`]: the limits of sessions, runs and handlers.
//! - [`ask`], [`entity_signal`], [`busy`]: requests and signals from one entity to another, and
//!   refusals.
//! - [`spawn`]: entities that another entity creates.
//! - [`partition`], [`cursor`], [`membership`]: the parts of a store that several hosts share, places
//!   in it, and the hosts.
//! - [`idempotency`]: keys of requests that are sent again.
//! - [`id`], [`clock`], [`entropy`], [`trace`]: names and ids, time, randomness, trace contexts.
//!
//! The serialized names of these types are contracts with journals, clients and guests: a Rust item
//! may be renamed, its serialized name may not.
//!
//! Nothing here waits, decides what an entity does next, or does I/O, except [`SystemClock`] and
//! [`SystemEntropy`], which ask the operating system.

pub mod ask;
pub mod busy;
pub mod cause;
pub mod clock;
pub mod cursor;
pub mod ended;
pub mod entity_signal;
pub mod entropy;
pub mod id;
pub mod idempotency;
pub mod limit;
pub mod membership;
mod named;
pub mod outcome;
pub mod partition;
pub mod record;
pub mod report;
pub mod rules;
pub mod session;
pub mod signature;
pub mod spawn;
pub mod story;
pub mod text;
pub mod timeout;
pub mod trace;

pub use ask::{Answered, Ask, AskError, AskUntil, Asked};
pub use busy::{Busy, BusyScope};
pub use cause::{Cause, FirstCause};
pub use clock::{Clock, Monotonic, SystemClock, Until, WallTime};
pub use cursor::{CURSOR_MAX_BYTES, Cursor, InvalidCursor};
pub use ended::{Ended, HandlerEnd};
pub use entity_signal::{EntitySignal, SignalError};
pub use entropy::{Entropy, NoEntropy, SystemEntropy};
pub use id::{
    DispatchId, EntityRef, Incarnation, KeyDigest, ModuleHash, RequestDigest, Sequence, SpecDigest,
};
pub use idempotency::{Idempotency, IdempotencyKey};
pub use limit::GuestLimits;
pub use membership::{Agreement, DeploymentStatus, HostId, Member, Membership, Ownership, Refusal};
pub use outcome::{
    Cancellation, CancelledBy, Completion, DeadlineOwner, Failure, FailureKind,
    HandlerDeadlineExceeded, LimitBreach, LimitKind, Outcome, OutcomeKind, Rejection,
    RejectionKind, Trap, TrapKind, TypedFailure,
};
pub use partition::Partition;
pub use record::{
    DEFAULT_TENANT, Decision, Dispatched, Event, NO_ACTION, Observed, Position, Record, Retried,
    TransitionCause,
};
pub use report::{
    Account, Allocation, CallPlace, Calls, DeadlineReport, EndPoint, Frame, FunctionCalls,
    HostCalls, Overrun, Recorded, Recording, RunReport, TelemetryDropped, TimeSplit,
    WholeRecording,
};
pub use rules::RulesVersion;
pub use session::{
    Action, Directive, Doing, LastSignal, Limit, LimitBreached, Meter, Recovery, Repeated,
    RunLimits, RunStopped, RunStopping, Scope, StopCause,
};
pub use signature::Signature;
pub use spawn::{Spawn, SpawnObstacle, SpawnResult, SpawnedBy, Unspawnable};
pub use story::{
    Call, CallOutcome, OutgoingRequest, RequestOutcome, STORY_CALLS_MAX, STORY_ERROR_MAX_BYTES,
    STORY_REQUESTS_MAX, Story,
};
pub use trace::{SpanId, TraceContext, TraceId};

/// A JSON object with ordered keys: the form of parameters and variables.
pub type Object = std::collections::BTreeMap<String, serde_json::Value>;

/// Whether a field has its default, which records do not contain.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
