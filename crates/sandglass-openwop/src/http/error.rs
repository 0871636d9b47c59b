//! What a client is told when it doesn't get what it asked for: exactly
//! `{error, message, details?}`.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandglass_runtime::ActorError;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// When to come again where nothing says how soon there is room: about as long as a short
/// run takes.
const RETRY_AFTER: Duration = Duration::from_secs(1);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:ident;)*) => {
        /// What is wrong, for programs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code { $($(#[$doc])* $name,)* }

        impl Code {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name,)*];

            pub(crate) const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            pub(crate) const fn status(self) -> StatusCode {
                match self { $(Self::$name => StatusCode::$status,)* }
            }
        }
    };
}

codes! {
    /// A value isn't one that it can be.
    Validation = "validation_error", BAD_REQUEST;
    UnsupportedStreamMode = "unsupported_stream_mode", BAD_REQUEST;
    Unauthenticated = "unauthenticated", UNAUTHORIZED;
    NotFound = "not_found", NOT_FOUND;
    WorkflowNotFound = "workflow_not_found", NOT_FOUND;
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED;
    NotAcceptable = "not_acceptable", NOT_ACCEPTABLE;
    SlowRequest = "request_timeout", REQUEST_TIMEOUT;
    IdempotencyKeyMismatch = "idempotency_key_mismatch", CONFLICT;
    /// The run has come to its end.
    RunTerminal = "run_already_terminal", CONFLICT;
    /// The run hasn't come to its end.
    RunActive = "run_active", CONFLICT;
    /// Nobody waits for this answer, or it was given.
    InterruptResolved = "interrupt_already_resolved", CONFLICT;
    TooLarge = "payload_too_large", PAYLOAD_TOO_LARGE;
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE;
    /// A fork from behind the end of its source.
    ForkPastEnd = "fork_past_end", UNPROCESSABLE_ENTITY;
    RateLimited = "rate_limited", TOO_MANY_REQUESTS;
    Unavailable = "service_unavailable", SERVICE_UNAVAILABLE;
    Internal = "internal_error", INTERNAL_SERVER_ERROR;
}

/// An error of the interface.
#[derive(Clone, Debug)]
pub(crate) struct Error {
    pub(crate) code: Code,
    message: String,
    details: Option<Map<String, Value>>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

/// The body of every answer of a status of 400 or above.
#[derive(Serialize)]
pub(crate) struct ErrorEnvelope {
    /// What is wrong, for programs.
    error: &'static str,
    /// What is wrong, where, and what to do, for people.
    message: String,
    /// What else is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Map<String, Value>>,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = Self { code, message, details: None, retry_after: None, allow: None };
        match code {
            Code::RateLimited | Code::Unavailable => error.retry_after(RETRY_AFTER),
            _ => error,
        }
    }

    /// That a value of the request isn't one that it can be.
    pub(crate) fn invalid(path: &str, message: impl Into<String>) -> Self {
        Self::new(Code::Validation, message).detail("path", path)
    }

    pub(crate) fn detail(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.get_or_insert_default().insert(key.to_owned(), value.into());
        self
    }

    fn retry_after(self, time: Duration) -> Self {
        let error = Self { retry_after: Some(time), ..self };
        error.detail("retryAfter", seconds(time))
    }

    /// That a path takes other methods: those.
    pub(crate) fn allowing(methods: &'static str, message: impl Into<String>) -> Self {
        Self { allow: Some(methods), ..Self::new(Code::MethodNotAllowed, message) }
    }

    /// That what is to be kept of a request is larger than it may be.
    pub(crate) fn too_large(what: &str, max_bytes: usize) -> Self {
        let message = format!("{what} would be larger than the {max_bytes} bytes that are allowed");
        Self::new(Code::TooLarge, message)
    }

    /// That there is no such run.
    pub(crate) fn no_run(id: &str) -> Self {
        let shown: String = id.chars().take(64).collect();
        Self::new(Code::NotFound, "there is no such run; POST /v1/runs answers the ids of runs")
            .detail("runId", shown)
    }
}

/// Whole seconds, rounded up, and at least one.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

impl From<ActorError> for Error {
    fn from(error: ActorError) -> Self {
        match error {
            ActorError::JournalUnavailable { .. } | ActorError::Closed => {
                Self::new(Code::Unavailable, format!("nothing was done: {error}"))
            }
            ActorError::MailboxFull(_) | ActorError::Busy { .. } => {
                Self::new(Code::RateLimited, format!("nothing was done: {error}"))
            }
            other => {
                tracing::error!(error = %other, "a request met an error of the host's own");
                Self::new(Code::Internal, "the host could not do this; its log says why")
            }
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let Self { code, message, details, retry_after, allow } = self;
        let envelope = ErrorEnvelope { error: code.as_str(), message, details };
        let mut response = (code.status(), Json(envelope)).into_response();
        if code == Code::Unauthenticated {
            let challenge = HeaderValue::from_static("Bearer realm=\"openwop\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(methods) = allow {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
        }
        if let Some(time) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds(time).into());
        }
        response
    }
}

/// As JSON, for where there is no response to make.
impl From<&Error> for Value {
    fn from(error: &Error) -> Self {
        json!({ "error": error.code.as_str(), "message": error.message })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_its_own_name_and_is_an_error() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!(code.status().as_u16() >= 400, "{code:?}");
        }
    }

    #[test]
    fn the_document_has_each_code_and_no_other() {
        let document: Value = serde_json::from_str(super::super::OPENAPI).expect("JSON");
        let codes = &document["components"]["schemas"]["ErrorEnvelope"]["properties"]["error"];
        let described = codes["enum"].as_array().expect("a list").iter().filter_map(Value::as_str);
        let own = Code::ALL.iter().map(|code| code.as_str());
        assert_eq!(described.collect::<BTreeSet<_>>(), own.collect());
    }
}
