//! The errors of the interface: one shape for all, with a code for programs and a message for people.
//! Errors of the runtime, the journal and HTTP are mapped to codes here.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandglass_http::{CrossSite, body};
use sandglass_journal as journal;
use sandglass_liveness::Refusal;
use sandglass_model::{EntityRef, Rejection, RejectionKind};
use sandglass_runtime::ActorError;
use serde::Serialize;
use utoipa::ToSchema;

/// When a client may retry if nothing states when capacity will be free: about as long as a short
/// handler takes.
const RETRY_AFTER_MS: u64 = 1_000;

/// Defines the codes, each with its status.
macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $status:ident,)*) => {
        /// What is wrong, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name,)*];

            pub(crate) const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }
        }
    };
}

codes! {
    BadPath = BAD_REQUEST,
    BadQuery = BAD_REQUEST,
    BadHeader = BAD_REQUEST,
    /// The body is not JSON.
    BadJson = BAD_REQUEST,
    /// The body is JSON, but does not have the expected shape.
    BadBody = BAD_REQUEST,
    Unauthorized = UNAUTHORIZED,
    /// Another host sent a cluster key, and it is not the one of this host.
    WrongClusterKey = UNAUTHORIZED,
    Forbidden = FORBIDDEN,
    CrossSite = FORBIDDEN,
    UnknownPath = NOT_FOUND,
    UnknownType = NOT_FOUND,
    UnknownEntity = NOT_FOUND,
    UnknownAction = NOT_FOUND,
    UnknownDispatch = NOT_FOUND,
    UnknownModule = NOT_FOUND,
    /// The daemon is not a member of a cluster.
    NoCluster = NOT_FOUND,
    /// The cluster has no such host that lives.
    UnknownHost = NOT_FOUND,
    /// The cluster has no such generation.
    UnknownGeneration = NOT_FOUND,
    MethodNotAllowed = METHOD_NOT_ALLOWED,
    SlowRequest = REQUEST_TIMEOUT,
    EntityExists = CONFLICT,
    /// Another generation is active than expected.
    GenerationReplaced = CONFLICT,
    /// Hosts of the cluster cannot read the format of records.
    FormatUnreadable = CONFLICT,
    /// The entity is not at the expected sequence.
    Conflict = CONFLICT,
    /// The entity's state does not take the action, or a guard refuses it.
    NotTaken = CONFLICT,
    NotInFlight = CONFLICT,
    /// The dispatch is in flight, or its entity's state does not take all endings of the handler.
    NotRetried = CONFLICT,
    /// The entity is not a session.
    NoSession = CONFLICT,
    /// The run of the session has not stopped, or is not the expected one.
    NotStopped = CONFLICT,
    /// The run of the session has stopped, or is about to.
    AlreadyStopped = CONFLICT,
    /// The requested position is after the end of the journal.
    AheadOfJournal = CONFLICT,
    /// Another host owns the entity. Only hosts get this; they look for the owner again.
    NotOwner = MISDIRECTED_REQUEST,
    TooLarge = PAYLOAD_TOO_LARGE,
    UnsupportedMediaType = UNSUPPORTED_MEDIA_TYPE,
    BadParams = UNPROCESSABLE_ENTITY,
    /// Another request was taken with the same idempotency key.
    IdempotencyKeyReused = UNPROCESSABLE_ENTITY,
    ModuleRefused = UNPROCESSABLE_ENTITY,
    /// The host cannot run the generation.
    GenerationRefused = UNPROCESSABLE_ENTITY,
    Busy = TOO_MANY_REQUESTS,
    JournalUnavailable = SERVICE_UNAVAILABLE,
    /// The daemon ends. What it had begun may be done: read the entity at the next one to see it.
    ShuttingDown = SERVICE_UNAVAILABLE,
    Unavailable = SERVICE_UNAVAILABLE,
    /// The request took too long; read the entity to see whether it was done.
    TimedOut = SERVICE_UNAVAILABLE,
    /// No host owns the entity at present; another one takes it over. Nothing was done.
    OwnerMoving = SERVICE_UNAVAILABLE,
    /// The host that owns the entity did not respond; read the entity to see whether it was done.
    OutcomeUnknown = BAD_GATEWAY,
    Internal = INTERNAL_SERVER_ERROR,
}

/// An error, as in every response with a status of 400 or above.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Error {
    code: Code,
    /// What is wrong, on what, and what to do, for people.
    message: String,
    /// Why a module was refused: a code that `sandglass explain` describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    rejection: Option<&'static str>,
    /// When the same request may succeed, in milliseconds from now.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

/// The body of an error.
#[derive(Serialize, ToSchema)]
pub(crate) struct Envelope {
    error: Error,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let retry = matches!(
            code,
            Code::Busy | Code::JournalUnavailable | Code::Unavailable | Code::OwnerMoving
        );
        let retry_after_ms = retry.then_some(RETRY_AFTER_MS);
        Self { code, message: message.into(), rejection: None, retry_after_ms }
    }

    pub(crate) const fn code(&self) -> Code {
        self.code
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// As from `error`, with what only a client that may read the entity may know.
    pub(crate) fn for_reader(error: ActorError) -> Self {
        let unmet = match &error {
            ActorError::Refused { refusal, .. } => {
                refusal.unmet().map(|unmet| format!(": {unmet}"))
            }
            _ => None,
        };
        let mut error = Self::from(error);
        error.message.extend(unmet);
        error
    }

    pub(crate) fn not_owner(entity: &EntityRef) -> Self {
        ActorError::Elsewhere(entity.clone()).into()
    }

    pub(crate) fn closing() -> Self {
        Self::new(
            Code::ShuttingDown,
            "the daemon is shutting down; send the request to the next one",
        )
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let retry_after = self.retry_after_ms.map(|millis| millis.div_ceil(1_000).max(1));
        let code = self.code;
        let mut response = (status, Json(Envelope { error: self })).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if code == Code::Unauthorized {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

impl From<body::Error> for Error {
    fn from(error: body::Error) -> Self {
        let code = match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Code::TooLarge,
            StatusCode::REQUEST_TIMEOUT => Code::SlowRequest,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => Code::UnsupportedMediaType,
            _ if error.is_shape() => Code::BadBody,
            _ => Code::BadJson,
        };
        Self::new(code, error.to_string())
    }
}

impl From<CrossSite> for Error {
    fn from(error: CrossSite) -> Self {
        Self::new(Code::CrossSite, error.to_string())
    }
}

impl From<ActorError> for Error {
    fn from(error: ActorError) -> Self {
        let code = match &error {
            ActorError::UnknownEntity(_) => Code::UnknownEntity,
            ActorError::UnknownType { .. } => Code::UnknownType,
            ActorError::UnknownDispatch { .. } => Code::UnknownDispatch,
            ActorError::EntityExists(_) => Code::EntityExists,
            ActorError::Conflict { .. } => Code::Conflict,
            ActorError::Refused { refusal, .. } => code_of_refusal(refusal),
            ActorError::MailboxFull(_) | ActorError::Busy { .. } => Code::Busy,
            ActorError::JournalUnavailable { .. } => Code::JournalUnavailable,
            ActorError::Elsewhere(_) => Code::NotOwner,
            ActorError::Journal(error) => code_of_journal_error(error),
            ActorError::Fenced { .. } | ActorError::NoRandomness => Code::Unavailable,
            ActorError::NotAnOperator { .. } => Code::Forbidden,
            ActorError::Closed => Code::ShuttingDown,
            // A request that waits for handlers gets their outcomes instead of this error.
            ActorError::HandlerDeadlineExceeded(_) => Code::Internal,
        };
        let retry_after_ms = match &error {
            ActorError::Busy { busy, .. } => Some(busy.retry_after_ms),
            _ => None,
        };
        let error = Self::new(code, error.to_string());
        Self { retry_after_ms: retry_after_ms.or(error.retry_after_ms), ..error }
    }
}

const fn code_of_refusal(refusal: &Refusal) -> Code {
    match refusal {
        Refusal::UnknownEntity => Code::UnknownEntity,
        Refusal::EntityExists => Code::EntityExists,
        Refusal::UnknownAction { .. } => Code::UnknownAction,
        Refusal::BadParam { .. }
        | Refusal::UnfitParam(_)
        | Refusal::BadSignal(_)
        | Refusal::BadTenant(_)
        | Refusal::BadRetry(_)
        | Refusal::BadPrincipal(_)
        | Refusal::BadBudget { .. } => Code::BadParams,
        Refusal::KeyReused { .. } => Code::IdempotencyKeyReused,
        Refusal::NotAtSequence { .. } => Code::Conflict,
        Refusal::NoSession => Code::NoSession,
        Refusal::StillRunning { .. } | Refusal::NotTheRun { .. } => Code::NotStopped,
        Refusal::RunStopping { .. } | Refusal::RunStopped { .. } => Code::AlreadyStopped,
        Refusal::StillInFlight { .. }
        | Refusal::NotTheLastAttempt { .. }
        | Refusal::NothingToRetry { .. }
        | Refusal::NoHandlerRunLeft { .. }
        | Refusal::RetryOfSuccess { .. }
        | Refusal::UnknownIntegration { .. }
        | Refusal::EndingsNotTaken { .. } => Code::NotRetried,
        Refusal::TooLarge { .. } => Code::TooLarge,
        Refusal::TooManyInFlight { .. }
        | Refusal::TooManySchedules { .. }
        | Refusal::TooManySpawns { .. } => Code::Busy,
        Refusal::UnknownDispatch { .. } | Refusal::StaleAttempt { .. } => Code::NotInFlight,
        Refusal::NotTaken { .. }
        | Refusal::TakenBefore { .. }
        | Refusal::AskTooDeep { .. }
        | Refusal::AskCycle
        | Refusal::AskTooLate
        | Refusal::RecordedAtTheEnd { .. }
        | Refusal::GuardRefused(_)
        | Refusal::TooManyReads { .. }
        | Refusal::Unobserved(_)
        | Refusal::InvariantBroken(_)
        | Refusal::Unspawnable(_)
        | Refusal::NotSpawned
        | Refusal::StaleTimer
        | Refusal::NotIdleYet { .. }
        | Refusal::SpecUnfit { .. }
        | Refusal::UnknownSchedule { .. } => Code::NotTaken,
    }
}

impl From<journal::Error> for Error {
    fn from(error: journal::Error) -> Self {
        Self::new(code_of_journal_error(&error), error.to_string())
    }
}

// Only unavailability is temporary; clients must not retry what the journal will never accept.
const fn code_of_journal_error(error: &journal::Error) -> Code {
    match error {
        journal::Error::Unavailable { .. } | journal::Error::Disowned { .. } => {
            Code::JournalUnavailable
        }
        journal::Error::Closed => Code::ShuttingDown,
        journal::Error::TooLarge { .. } => Code::TooLarge,
        journal::Error::Conflict { .. }
        | journal::Error::Invalid { .. }
        | journal::Error::Damaged { .. }
        | journal::Error::Foreign { .. }
        | journal::Error::Newer { .. } => Code::Internal,
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        let code = match rejection.kind {
            RejectionKind::ModuleTooLarge => Code::TooLarge,
            RejectionKind::UnknownModule => Code::UnknownModule,
            RejectionKind::HostUnavailable => Code::Unavailable,
            _ => Code::ModuleRefused,
        };
        let kind = rejection.kind.as_str();
        let refused = code == Code::ModuleRefused;
        Self { rejection: refused.then_some(kind), ..Self::new(code, rejection.message) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_on_the_page_of_errors_with_its_status() {
        let page = include_str!("../../../docs/errors/daemon.md");
        for code in Code::ALL {
            let name = serde_json::to_value(code).expect("plain data");
            let name = format!("`{}`", name.as_str().expect("a text"));
            let status = format!("({})", code.status().as_u16());
            let is_listed = page.split(&name).skip(1).any(|rest| {
                // Codes that share a status are listed together, followed by the status.
                let until = rest.find(['(', ':']).unwrap_or(0);
                rest[until..].starts_with(&status)
            });
            assert!(is_listed, "docs/errors/daemon.md has no {name} {status}");
        }
    }

    #[test]
    fn no_client_is_asked_to_retry_what_the_journal_never_takes() {
        let (place, what) = ("position 7".to_owned(), "no record".to_owned());
        let large = journal::Error::TooLarge { what: "record", size: 2, limit: 1 };
        for (error, status, again) in [
            (journal::Error::Unavailable { what: what.clone() }, 503, true),
            (journal::Error::Closed, 503, false),
            (large, 413, false),
            (journal::Error::Invalid { what: what.clone() }, 500, false),
            (journal::Error::Damaged { place, what }, 500, false),
        ] {
            for sent in [Error::from(error.clone()), ActorError::Journal(error.clone()).into()] {
                assert_eq!(sent.code.status().as_u16(), status, "{error}");
                assert_eq!(sent.retry_after_ms.is_some(), again, "{error}");
            }
        }
    }
}
