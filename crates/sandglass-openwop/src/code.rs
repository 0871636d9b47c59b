//! The codes of errors that clients receive, as the protocol names them.

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What is wrong, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)*];

            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

codes! {
    /// A value of the request is invalid.
    Validation = "validation_error",
    UnsupportedStreamMode = "unsupported_stream_mode",
    Unauthenticated = "unauthenticated",
    /// The workflow needs a capability that the host does not advertise.
    CapabilityRequired = "capability_required",
    NotFound = "not_found",
    WorkflowNotFound = "workflow_not_found",
    MethodNotAllowed = "method_not_allowed",
    NotAcceptable = "not_acceptable",
    SlowRequest = "request_timeout",
    IdempotencyKeyMismatch = "idempotency_key_mismatch",
    /// The run has not ended.
    RunActive = "run_active",
    /// The node does not wait for an answer.
    InterruptResolved = "interrupt_already_resolved",
    TooLarge = "payload_too_large",
    UnsupportedMediaType = "unsupported_media_type",
    /// A fork from an event after the last one of its source.
    ForkPastEnd = "fork_past_end",
    RateLimited = "rate_limited",
    /// An endpoint of the protocol that this host does not have.
    NotImplemented = "not_implemented",
    Unavailable = "service_unavailable",
    /// No host of the cluster owns the run at present; another one takes it over.
    OwnerMoving = "owner_moving",
    /// The host that owns the run did not respond: the request may have been done.
    OutcomeUnknown = "outcome_unknown",
    /// Another host owns the run. Only hosts get this; they look for the owner again.
    NotOwner = "not_owner",
    /// Another host sent a cluster key, and it is not the one of this host.
    WrongClusterKey = "wrong_cluster_key",
    Internal = "internal_error",
}
