//! The names of spans and of their attributes.

/// A request that came without a trace, from its mailbox to its record: the root
/// of what follows.
pub const REQUEST: &str = "sandglass.request";
/// A run of a handler.
pub const DISPATCH: &str = "sandglass.dispatch";
/// One host call of a handler.
pub const HOST_CALL: &str = "sandglass.host_call";
/// A transition of an entity.
pub const TRANSITION: &str = "sandglass.transition";
/// A breach of a bound of a workflow run.
pub const CAP_BREACHED: &str = "openwop.cap_breached";
/// Which bound of a workflow run or of its node was breached, as OpenWOP names it.
pub const CAP_KIND: &str = "openwop.cap_kind";
/// What the bound allows.
pub const CAP_LIMIT: &str = "openwop.cap_limit";
/// What was observed.
pub const CAP_OBSERVED: &str = "openwop.cap_observed";

/// Why a span failed (OpenTelemetry, stable).
pub const ERROR_TYPE: &str = "error.type";
/// The host function of a host call (OpenTelemetry, stable).
pub const FUNCTION: &str = "code.function.name";

/// The entity's type.
pub const ENTITY_TYPE: &str = "sandglass.entity.type";
/// The entity's id.
pub const ENTITY_ID: &str = "sandglass.entity.id";
/// The action that triggered a handler, or that a transition took.
pub const ACTION: &str = "sandglass.action";
/// The integration that a handler runs.
pub const INTEGRATION: &str = "sandglass.integration";
/// The dispatch.
pub const DISPATCH_ID: &str = "sandglass.dispatch.id";
/// Which attempt of the dispatch, from 1.
pub const ATTEMPT: &str = "sandglass.dispatch.attempt";
/// How the run ended.
pub const OUTCOME: &str = "sandglass.outcome";
/// What was running when a handler was stopped.
pub const DYING_SPAN: &str = "sandglass.dying_span";
/// The budget, in milliseconds.
pub const BUDGET_MS: &str = "sandglass.deadline.budget_ms";
/// How long the run took, in milliseconds, rounded up.
pub const ELAPSED_MS: &str = "sandglass.deadline.elapsed_ms";
/// From the deadline to the guest off the CPU, in microseconds.
pub const OVERRUN_US: &str = "sandglass.deadline.overrun_us";
/// Whose deadline it was.
pub const DEADLINE_OWNER: &str = "sandglass.deadline.owner";
/// The hash of the module.
pub const MODULE_HASH: &str = "sandglass.module.hash";
/// The state that a transition left.
pub const STATE_FROM: &str = "sandglass.state.from";
/// The state that a transition led to.
pub const STATE_TO: &str = "sandglass.state.to";
/// The entity's sequence after a transition.
pub const SEQUENCE: &str = "sandglass.entity.sequence";

/// Host calls of a run that have no span, beyond those that are recorded.
pub const UNRECORDED: &str = "sandglass.host_calls.unrecorded";

/// The event of a dispatch that its soft deadline has passed, or the share of its budget at
/// which that is told of handlers that have none.
pub const SOFT_DEADLINE_PASSED: &str = "sandglass.soft_deadline_passed";
/// The event of a dispatch for a wide event that names no operation.
pub const WIDE_EVENT: &str = "sandglass.wide_event";
/// How long before its deadline a handler is warned, in milliseconds.
pub const SOFT_BEFORE_MS: &str = "sandglass.deadline.soft_before_ms";
/// What was running at the moment of an event.
pub const RUNNING: &str = "sandglass.running";
/// What begins the names that are the host's: a guest's attribute can't have one.
pub const HOST_PREFIX: &str = "sandglass.";

/// The value of [`ERROR_TYPE`] for a handler that was killed at its deadline.
pub const HANDLER_DEADLINE_EXCEEDED: &str = "handler_deadline_exceeded";
/// The value of [`ERROR_TYPE`] for a handler that was lost with its host.
pub const INTERRUPTED: &str = "interrupted";
/// The value of [`ERROR_TYPE`] for a host call that was ended, and its run not.
pub const CALL_ENDED: &str = "call_ended";
/// The value of [`ERROR_TYPE`] for a guest's span that says it failed, and not how.
pub const GUEST_ERROR: &str = "guest_error";
/// The value of [`ERROR_TYPE`] for a host call or a guest's span that its run's
/// end cut.
pub const UNFINISHED: &str = "unfinished";
