//! The names of spans and of their attributes.

/// A request without a trace, from its mailbox to its record: the root of a new trace.
pub const REQUEST: &str = "sandglass.request";
/// A handler.
pub const DISPATCH: &str = "sandglass.dispatch";
/// One host call of a handler.
pub const HOST_CALL: &str = "sandglass.host_call";
/// A transition of an entity.
pub const TRANSITION: &str = "sandglass.transition";
/// A breach of a limit of a workflow run.
pub const CAP_BREACHED: &str = "openwop.cap_breached";
/// The breached limit of a workflow run or of its node, as OpenWOP names it.
pub const CAP_KIND: &str = "openwop.cap_kind";
/// The value of the limit.
pub const CAP_LIMIT: &str = "openwop.cap_limit";
/// The observed value.
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
/// The integration of a handler.
pub const INTEGRATION: &str = "sandglass.integration";
/// The dispatch.
pub const DISPATCH_ID: &str = "sandglass.dispatch.id";
/// Which attempt of the dispatch, from 1.
pub const ATTEMPT: &str = "sandglass.dispatch.attempt";
/// The outcome.
pub const OUTCOME: &str = "sandglass.outcome";
/// What was executing when a handler was killed.
pub const DYING_SPAN: &str = "sandglass.dying_span";
/// The budget, in milliseconds.
pub const BUDGET_MS: &str = "sandglass.deadline.budget_ms";
/// The duration of the handler, in milliseconds, rounded up.
pub const ELAPSED_MS: &str = "sandglass.deadline.elapsed_ms";
/// From the deadline until the guest was off the CPU, in microseconds.
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

/// The number of host calls without a span, beyond those that are recorded.
pub const UNRECORDED: &str = "sandglass.host_calls.unrecorded";

/// The event of a dispatch whose soft deadline has passed, or, if it declares none, the default share of
/// its budget.
pub const SOFT_DEADLINE_PASSED: &str = "sandglass.soft_deadline_passed";
/// The event of a dispatch for a wide event that names no operation.
pub const WIDE_EVENT: &str = "sandglass.wide_event";
/// How long before the deadline the soft deadline is, in milliseconds.
pub const SOFT_BEFORE_MS: &str = "sandglass.deadline.soft_before_ms";
/// What was executing at the moment of an event.
pub const RUNNING: &str = "sandglass.running";
/// The prefix of names that are reserved for the host; an attribute of a guest cannot have it.
pub const HOST_PREFIX: &str = "sandglass.";

/// The value of [`ERROR_TYPE`] for a handler that was killed at its deadline.
pub const HANDLER_DEADLINE_EXCEEDED: &str = "handler_deadline_exceeded";
/// The value of [`ERROR_TYPE`] for a handler that was lost with its host.
pub const INTERRUPTED: &str = "interrupted";
/// The value of [`ERROR_TYPE`] for a host call that was ended while its handler continued.
pub const CALL_ENDED: &str = "call_ended";
/// The value of [`ERROR_TYPE`] for a guest's span that failed without a type.
pub const GUEST_ERROR: &str = "guest_error";
/// The value of [`ERROR_TYPE`] for a host call or a guest's span that was unfinished when its handler
/// ended.
pub const UNFINISHED: &str = "unfinished";
