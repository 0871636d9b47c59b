//! How a handler run ended: a value for everything that a guest can do.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::Object;
use crate::cause::Cause;
use crate::id::TraceId;
use crate::named::named;
use crate::report::{Frame, TimeSplit};
use crate::signature::{INTERRUPTED, TIMED_OUT};

/// How one handler run ended. An `Outcome` is what the guest did or suffered; if the host could not
/// do its work, that is an `Err` elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It returned a success within its deadline.
    Completed(Completion),
    /// It returned a failure, or no valid result.
    Failed(Failure),
    /// Its deadline passed.
    TimedOut(Box<HandlerDeadlineExceeded>),
    /// It trapped.
    Trapped(Trap),
    /// It hit a limit other than its deadline.
    Limit(LimitBreach),
    /// The host could not start it.
    Rejected(Rejection),
    /// It was stopped from outside.
    Cancelled(Cancellation),
    /// The host ended while it was in flight, or lost it through a fault of its own. No report of a
    /// host has this outcome; the runtime decides it when a report is missing.
    Interrupted,
}

impl Outcome {
    /// Which of the outcomes this is.
    #[must_use]
    pub const fn kind(&self) -> OutcomeKind {
        match self {
            Self::Completed(_) => OutcomeKind::Completed,
            Self::Failed(_) => OutcomeKind::Failed,
            Self::TimedOut(_) => OutcomeKind::TimedOut,
            Self::Trapped(_) => OutcomeKind::Trapped,
            Self::Limit(_) => OutcomeKind::Limit,
            Self::Rejected(_) => OutcomeKind::Rejected,
            Self::Cancelled(_) => OutcomeKind::Cancelled,
            Self::Interrupted => OutcomeKind::Interrupted,
        }
    }

    /// The kind of the error and a sentence about it; `None` if the run completed.
    #[must_use]
    pub fn error(&self) -> Option<(String, String)> {
        let (kind, message) = match self {
            Self::Completed(_) => return None,
            Self::Failed(failure) => (failure.kind.as_str().to_owned(), failure.message.clone()),
            Self::TimedOut(exceeded) => (TIMED_OUT.to_owned(), exceeded.to_string()),
            Self::Trapped(trap) => (trap.kind.as_str().to_owned(), trap.message.clone()),
            Self::Limit(breach) => (breach.kind.as_str().to_owned(), breach.to_string()),
            Self::Rejected(rejection) => {
                (rejection.kind.as_str().to_owned(), rejection.message.clone())
            }
            Self::Cancelled(cancellation) => ("cancelled".to_owned(), cancellation.to_string()),
            Self::Interrupted => (
                INTERRUPTED.to_owned(),
                "the host ended while the handler was in flight; its effects may have landed"
                    .to_owned(),
            ),
        };
        Some((kind, message))
    }
}

/// A success that a guest returned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The action that the guest names, if it names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The parameters of that action.
    #[serde(default)]
    pub params: Object,
    /// The whole result.
    pub result: Value,
}

/// A failure that a guest returned, or a result that is not valid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What is wrong.
    pub kind: FailureKind,
    /// A sentence about it, for people.
    pub message: String,
    /// The whole result, if it was readable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
}

impl Failure {
    /// The failure as the guest declared it; `None` if its kind is not
    /// [`FailureKind::TypedFailure`], or if its result is not kept, or is that of a workflow's node.
    #[must_use]
    pub fn typed(&self) -> Option<TypedFailure> {
        let typed = self.result.as_ref()?.get("typed_failure")?;
        let is_typed = self.kind == FailureKind::TypedFailure;
        is_typed.then(|| TypedFailure::deserialize(typed).ok()).flatten()
    }
}

/// A failure that a guest declared, for callers that decide by its parts. The host does not act on
/// it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TypedFailure {
    /// The version of this form.
    #[serde(default)]
    pub version: u32,
    /// The class of the failure, such as `transient` or `budget`.
    pub category: String,
    /// Which failure it is, in a word that does not change.
    pub code: String,
    /// Whether, and after what, a new attempt may help, such as `never` or `with_backoff`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retryability: Option<String>,
    /// Whether the operation took effect: `not_applied`, `applied` or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// A sentence for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostic: Option<String>,
    /// Further facts; empty if the guest stated them in another form than an object.
    #[serde(default, deserialize_with = "object_or_empty")]
    pub details: Object,
}

fn object_or_empty<'de, D: Deserializer<'de>>(details: D) -> Result<Object, D::Error> {
    Ok(match Value::deserialize(details)? {
        Value::Object(details) => details.into_iter().collect(),
        _ => Object::new(),
    })
}

named! {
    /// The name of an [`Outcome`], as reports, records and metric labels spell it.
    OutcomeKind {
        /// [`Outcome::Completed`]
        Completed = "completed",
        /// [`Outcome::Failed`]
        Failed = "failed",
        /// [`Outcome::TimedOut`]
        TimedOut = "timed_out",
        /// [`Outcome::Trapped`]
        Trapped = "trapped",
        /// [`Outcome::Limit`]
        Limit = "limit",
        /// [`Outcome::Rejected`]
        Rejected = "rejected",
        /// [`Outcome::Cancelled`]
        Cancelled = "cancelled",
        /// [`Outcome::Interrupted`]
        Interrupted = "interrupted",
    }
}

named! {
    /// Why a handler run failed.
    FailureKind {
        /// The guest returned `success: false`.
        GuestFailure = "guest_failure",
        /// The guest returned a typed failure.
        TypedFailure = "typed_failure",
        /// The guest returned no result.
        AbsentResult = "absent_result",
        /// The guest set its result more than once.
        MultipleWrites = "multiple_writes",
        /// The guest set a result and also returned a pointer to one.
        MultipleSources = "multiple_sources",
        /// The result lies outside the guest's memory.
        ResultOutOfBounds = "result_out_of_bounds",
        /// The result is larger than allowed.
        ResultTooLarge = "result_too_large",
        /// The result is not UTF-8.
        InvalidUtf8 = "invalid_utf8",
        /// The result is not JSON.
        InvalidJson = "invalid_json",
        /// The result is JSON, but not of the shape of a result.
        InvalidShape = "invalid_shape",
        /// A call was refused because it is not granted, and the guest reported success without
        /// asking why.
        Denied = "denied",
        /// The result names no action, and the integration declares no `on_success`.
        NoAction = "no_action",
        /// The result names an action that the entity's state does not take.
        ActionNotTaken = "action_not_taken",
    }
}

named! {
    /// How a guest trapped.
    TrapKind {
        /// It reached an `unreachable` instruction: how most languages abort.
        Unreachable = "unreachable",
        /// It used up its stack.
        StackOverflow = "stack_overflow",
        /// It accessed memory outside its bounds.
        MemoryOutOfBounds = "memory_out_of_bounds",
        /// It accessed a table element outside its bounds.
        TableOutOfBounds = "table_out_of_bounds",
        /// It called through a null or wrongly typed table element.
        BadIndirectCall = "bad_indirect_call",
        /// It divided by zero, or a number did not fit its type.
        Arithmetic = "arithmetic",
        /// It threw an exception that was not caught.
        UncaughtException = "uncaught_exception",
        /// It called `proc_exit`.
        Exit = "exit",
        /// It passed invalid arguments to a host function.
        BadHostCall = "bad_host_call",
        /// Any other trap.
        Other = "other",
    }
}

/// A trap of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trap {
    /// The kind of trap.
    pub kind: TrapKind,
    /// A sentence about it, for people.
    pub message: String,
}

named! {
    /// A limit that a guest hit.
    LimitKind {
        /// Linear memory: a growth was denied, and the guest trapped on it.
        WasmMemory = "wasm-memory",
        /// A table: a growth was denied, and the guest trapped on it.
        WasmTable = "wasm-table",
        /// Fuel is spent.
        WasmFuel = "wasm-fuel",
        /// Memory that the host holds for the run: a call needed more, and its ABI has no
        /// error for that.
        HostMemory = "host-memory",
    }
}

/// The breach of a limit by a guest. `observed` is always above `limit`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBreach {
    /// Which limit.
    pub kind: LimitKind,
    /// The threshold: bytes, elements or units of fuel.
    pub limit: u64,
    /// The requested amount, in the same unit.
    pub observed: u64,
}

impl fmt::Display for LimitBreach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, observed, .. } = self;
        match self.kind {
            LimitKind::WasmMemory => {
                write!(f, "guest asked for {observed} bytes of memory and may have {limit}")
            }
            LimitKind::WasmTable => {
                write!(f, "guest asked for a table of {observed} elements and may have {limit}")
            }
            LimitKind::WasmFuel => write!(f, "guest spent its {limit} units of fuel"),
            LimitKind::HostMemory => {
                write!(
                    f,
                    "host would hold {observed} bytes for the handler run, whose limit is {limit}"
                )
            }
        }
    }
}

named! {
    /// Why the host could not start a guest.
    RejectionKind {
        /// No module of that name is known.
        UnknownModule = "unknown_module",
        /// The bytes are not WebAssembly, neither text nor binary.
        InvalidModule = "invalid_module",
        /// It is valid WebAssembly of a kind that this host does not run.
        UnsupportedModule = "unsupported_module",
        /// It does not have the hash that its manifest names.
        ModuleHashMismatch = "module_hash_mismatch",
        /// It is not written against the ABI that its manifest names.
        ModuleAbiMismatch = "module_abi_mismatch",
        /// The module is larger than allowed.
        ModuleTooLarge = "module_too_large",
        /// It imports something that the host does not have.
        MissingImport = "missing_import",
        /// It imports something that it is not granted.
        MissingGrant = "missing_grant",
        /// It does not export something that the host calls.
        MissingExport = "missing_export",
        /// An import or export has another type than in the contract.
        WrongSignature = "wrong_signature",
        /// It is an OpenWOP node pack of an ABI version that the host does not run.
        UnsupportedAbiVersion = "unsupported_abi_version",
        /// It is an OpenWOP node pack with an invalid description, or without one.
        InvalidPack = "invalid_pack",
        /// It needs more memory or tables at the start than it may have.
        NeedsTooMuch = "needs_too_much",
        /// Compiling it takes more time or memory than it may, or crashes the compiler.
        CompileLimit = "compile_limit",
        /// The arguments of the dispatch are not valid.
        InvalidDispatch = "invalid_dispatch",
        /// A template in its configuration names a secret or a field that it does not have.
        UnresolvedTemplate = "unresolved_template",
        /// The host refused: it is too busy, shutting down, or not healthy.
        HostUnavailable = "host_unavailable",
    }
}

/// The reason why the host could not start a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// What is wrong.
    pub kind: RejectionKind,
    /// What is wrong, where, and what to do.
    pub message: String,
}

/// Who stopped a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelledBy {
    /// An operator or the embedder cancelled it.
    Operator,
    /// The caller that waited for the run went away.
    Caller,
    /// The entity left the state that started the handler.
    StateLeft,
    /// The host is shutting down.
    Shutdown,
    /// The run of the session that it belongs to was stopped.
    RunStopped,
    /// Another host took over the entity.
    OwnershipLost,
}

impl CancelledBy {
    /// Who stopped a run that ended for `cause`.
    #[must_use]
    pub const fn of(cause: Cause) -> Self {
        match cause {
            Cause::StateLeft => Self::StateLeft,
            Cause::Shutdown | Cause::HostLost => Self::Shutdown,
            Cause::CallerGone => Self::Caller,
            Cause::RunStopped => Self::RunStopped,
            Cause::OwnershipLost => Self::OwnershipLost,
            // Only the first of these cancels runs, unless an embedder
            // names another one.
            Cause::Cancel
            | Cause::Returned
            | Cause::Deadline
            | Cause::ParentDeadline
            | Cause::Trap
            | Cause::NotStarted => Self::Operator,
        }
    }
}

/// The stop of a handler run: by whom, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancellation {
    /// Who stopped it.
    pub by: CancelledBy,
    /// The reason; may be empty.
    #[serde(default)]
    pub reason: String,
    /// What was running when it was stopped, as in [`HandlerDeadlineExceeded::dying_span`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dying_span: Option<String>,
}

impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            CancelledBy::Operator => "cancelled",
            CancelledBy::Caller => "cancelled, because nobody waits for it any more",
            CancelledBy::StateLeft => {
                "cancelled, because the entity left the state that started it"
            }
            CancelledBy::Shutdown => "cancelled, because the host is shutting down",
            CancelledBy::RunStopped => "cancelled, because the run of its session was stopped",
            CancelledBy::OwnershipLost => "cancelled, because another host took over its entity",
        };
        f.write_str(by)?;
        if self.reason.is_empty() { Ok(()) } else { write!(f, ": {}", self.reason) }
    }
}

named! {
    /// Whose deadline it was that ended a run, or would have.
    #[derive(Default)]
    DeadlineOwner {
        /// The handler's own budget.
        #[default]
        Handler = "handler",
        /// The remaining time of the asking handler.
        Parent = "parent",
    }
}

/// The details of a handler whose deadline passed. They become the parameters of the transition that
/// follows (by default `HandlerTimedOut`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "handler `{integration}` of {entity_type}/{entity_id} exceeded its budget of {budget_ms} ms \
     (stopped after {elapsed_ms} ms in {dying_span})"
)]
pub struct HandlerDeadlineExceeded {
    /// The integration.
    pub integration: String,
    /// The entity's type.
    pub entity_type: String,
    /// The entity's id.
    pub entity_id: String,
    /// The action that triggered the handler.
    pub action: String,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The budget that ended the run, in milliseconds.
    pub budget_ms: u64,
    /// Time since the budget began, in milliseconds, rounded up: always above
    /// `budget_ms`.
    pub elapsed_ms: u64,
    /// Time from the deadline until the guest was off the CPU, in microseconds.
    pub overrun_us: u64,
    /// Whose deadline it was.
    pub owner: DeadlineOwner,
    /// What was running, by its most specific name: the guest's innermost open span or the granted
    /// destination of a request, if the manifest declares their names; otherwise the host function,
    /// `guest`, or `instantiate`.
    pub dying_span: String,
    /// The host function that was running, if one was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dying_call: Option<String>,
    /// Where the guest was, innermost frame first.
    #[serde(default)]
    pub backtrace: Vec<Frame>,
    /// How many host calls it had made.
    pub host_calls: u64,
    /// Where the time went.
    pub time_split_us: TimeSplit,
    /// The trace that the run belongs to.
    pub trace_id: TraceId,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn outcomes_are_stored_as_readable_text() {
        let outcome =
            Outcome::Limit(LimitBreach { kind: LimitKind::WasmMemory, limit: 10, observed: 11 });
        let text = serde_json::to_string(&outcome).expect("plain data");
        assert_eq!(text, r#"{"outcome":"limit","kind":"wasm-memory","limit":10,"observed":11}"#);
        assert_eq!(serde_json::from_str::<Outcome>(&text).expect("what was written"), outcome);
        let interrupted = serde_json::to_string(&Outcome::Interrupted).expect("plain data");
        assert_eq!(interrupted, r#"{"outcome":"interrupted"}"#);
    }

    #[test]
    fn a_typed_failure_can_be_read_from_what_the_guest_declared() {
        let failure = |kind, result| Failure { kind, message: String::new(), result };
        let declared = json!({
            "version": 1,
            "category": "transient",
            "code": "ProviderUnavailable",
            "retryability": "with_backoff",
            "outcome": "not_applied",
            "details": { "status": { "kind": "unsigned", "value": 503 } },
        });
        let result = json!({ "success": false, "typed_failure": declared });
        let typed = failure(FailureKind::TypedFailure, Some(result.clone())).typed();
        let typed = typed.expect("it is typed");
        assert_eq!((typed.version, &*typed.category), (1, "transient"));
        assert_eq!((&*typed.code, typed.diagnostic.as_deref()), ("ProviderUnavailable", None));
        assert_eq!(serde_json::to_value(&typed).expect("plain data"), declared);
        let mut listed = result.clone();
        listed["typed_failure"]["details"] = json!(["a list"]);
        let typed = failure(FailureKind::TypedFailure, Some(listed)).typed().expect("typed");
        assert_eq!((&*typed.category, typed.details), ("transient", Object::new()));
        for other in [
            failure(FailureKind::InvalidShape, Some(result)),
            failure(FailureKind::TypedFailure, Some(json!({ "error": { "code": "E1" } }))),
            failure(FailureKind::TypedFailure, None),
        ] {
            assert_eq!(other.typed(), None, "{other:?}");
        }
    }

    #[test]
    fn causes_that_stop_runs_name_who_did_it() {
        for (cause, by) in [
            (Cause::Cancel, CancelledBy::Operator),
            (Cause::StateLeft, CancelledBy::StateLeft),
            (Cause::Shutdown, CancelledBy::Shutdown),
            (Cause::HostLost, CancelledBy::Shutdown),
            (Cause::CallerGone, CancelledBy::Caller),
            (Cause::RunStopped, CancelledBy::RunStopped),
            (Cause::OwnershipLost, CancelledBy::OwnershipLost),
        ] {
            assert_eq!(CancelledBy::of(cause), by, "{cause:?}");
        }
    }

    #[test]
    fn every_outcome_but_success_has_an_error() {
        let cancelled = Outcome::Cancelled(Cancellation {
            by: CancelledBy::Operator,
            reason: "maintenance".to_owned(),
            dying_span: None,
        });
        assert_eq!(
            cancelled.error(),
            Some(("cancelled".to_owned(), "cancelled: maintenance".to_owned()))
        );
        assert_eq!(Outcome::Completed(Completion::default()).error(), None);
    }
}
