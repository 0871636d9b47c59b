//! The label values that are known beforehand, as types.

/// Defines enums whose variants have names: the values of a label, or what pages and scrapes contain.
macro_rules! named {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident = $value:literal,)+
    })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            #[allow(dead_code, reason = "not every label is exported before its first event")]
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name of the variant.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $value,)+ }
            }
        }
    )+};
}

pub(crate) use named;

named! {
    /// Why a host refuses a dispatch: the label `reason`.
    Refusal {
        /// The journal takes no appends.
        JournalUnavailable = "journal_unavailable",
        /// The epoch ticker is dead or stalled.
        TickerUnhealthy = "ticker_unhealthy",
        /// Too many dispatches are waiting in the host.
        QueueFull = "queue_full",
        /// Too many dispatches of the integration are waiting.
        IntegrationQueueFull = "integration_queue_full",
        /// Too many dispatches of the tenant are waiting.
        TenantQueueFull = "tenant_queue_full",
        /// Too many handlers are waiting in asks.
        AskingFull = "asking_full",
        /// It did not get an admission permit in time.
        QueueTimeout = "queue_timeout",
        /// The host is shutting down.
        ShuttingDown = "shutting_down",
    }

    /// The result of a look-up of compiled code on disk: the label `found`.
    CompiledCode {
        /// The code, unchanged.
        Hit = "hit",
        /// No code.
        Miss = "miss",
        /// A file that was changed, or that another owner wrote.
        Unusable = "unusable",
    }

    /// Why spans were not exported: the label `reason`.
    SpansDropped {
        /// The queue was full.
        QueueFull = "queue_full",
        /// The collector did not accept them.
        NotTaken = "not_taken",
    }

    /// Telemetry of a guest that exceeded its bounds: the label `what`.
    DroppedTelemetry {
        /// A span.
        Span = "span",
        /// An event of a span.
        SpanEvent = "span_event",
        /// An attribute of a span or event.
        Attribute = "attribute",
        /// An observation of a metric.
        Metric = "metric",
        /// A label of a metric.
        Label = "label",
        /// A line of the log, or a wide event.
        LogLine = "log_line",
        /// A span of a host call, beyond those that are recorded for one handler.
        HostCallSpan = "host_call_span",
    }

    /// What resumed a session: the label `by`.
    ResumedBy {
        /// A request.
        Request = "request",
        /// Its spec, which declares that a stopped run is followed by another.
        Retry = "retry",
    }

    /// What a request tried to cancel: the label `of`.
    CancelTarget {
        /// The run of a session.
        Session = "session",
        /// One handler.
        Dispatch = "dispatch",
    }

    /// Why a host could claim a partition: the label `reason`.
    ClaimReason {
        /// No host owned it.
        Free = "free",
        /// Its owner was declared dead.
        DeadOwner = "dead_owner",
        /// The host owned it already, and did not hold it.
        Again = "again",
    }

    /// What became of a request that was sent to the owner of its entity: the label `outcome`.
    ForwardOutcome {
        /// There was a response.
        Ok = "ok",
        /// The host did not own the entity.
        NotOwner = "not_owner",
        /// The host refused the connection.
        Refused = "refused",
        /// There was no connection in time.
        Unreachable = "unreachable",
        /// The connection broke before the response.
        Broken = "broken",
        /// The response did not come in time.
        TimedOut = "timed_out",
    }

    /// Why a request of a client failed in a cluster: the label `code`, which is the code of the error.
    RequestFailure {
        /// No host that accepted it was found in time. Nothing was done.
        OwnerMoving = "owner_moving",
        /// The owner did not respond. It may have been done.
        OutcomeUnknown = "outcome_unknown",
    }

    /// What an OpenWOP host refused a client, because there were too many: the label `of`.
    OpenwopRefusal {
        /// Another active run.
        Runs = "runs",
        /// Another reader of events.
        Readers = "readers",
        /// Another poll for events.
        Polls = "polls",
        /// The log of another run.
        Logs = "logs",
    }
}

/// Whether something that dispatch depends on works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works.
    Healthy,
    /// It does not, and dispatches are refused.
    Unhealthy,
}

impl Health {
    pub(super) const fn as_gauge(self) -> f64 {
        match self {
            Self::Healthy => 1.0,
            Self::Unhealthy => 0.0,
        }
    }
}
