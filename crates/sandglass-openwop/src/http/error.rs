//! The responses to requests that are refused or fail: exactly `{error, message, details?}`.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandglass_workflow::Problem;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::code::Code;
use crate::service;

/// When a client should try again if nothing else determines it: about as long as a short run takes.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The status of responses with `code`.
const fn status(code: Code) -> StatusCode {
    match code {
        Code::Validation | Code::UnsupportedStreamMode | Code::CapabilityRequired => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated | Code::WrongClusterKey => StatusCode::UNAUTHORIZED,
        Code::NotFound | Code::WorkflowNotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::NotAcceptable => StatusCode::NOT_ACCEPTABLE,
        Code::SlowRequest => StatusCode::REQUEST_TIMEOUT,
        Code::IdempotencyKeyMismatch | Code::RunActive | Code::InterruptResolved => {
            StatusCode::CONFLICT
        }
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::ForkPastEnd => StatusCode::UNPROCESSABLE_ENTITY,
        Code::RateLimited => StatusCode::TOO_MANY_REQUESTS,
        Code::NotImplemented => StatusCode::NOT_IMPLEMENTED,
        Code::NotOwner => StatusCode::MISDIRECTED_REQUEST,
        Code::OutcomeUnknown => StatusCode::BAD_GATEWAY,
        Code::Unavailable | Code::OwnerMoving => StatusCode::SERVICE_UNAVAILABLE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// An error of the interface.
#[derive(Clone, Debug)]
pub(crate) struct Error {
    code: Code,
    message: String,
    details: Option<Map<String, Value>>,
    retry_after: Option<Duration>,
    allow: Option<&'static str>,
}

/// The body of every response with a status of 400 or above.
#[derive(Serialize)]
pub(crate) struct ErrorEnvelope {
    /// What is wrong, for programs.
    error: &'static str,
    /// What is wrong, where, and what to do, for people.
    message: String,
    /// More about the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Map<String, Value>>,
}

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        let error = Self { code, message, details: None, retry_after: None, allow: None };
        match code {
            Code::RateLimited | Code::Unavailable | Code::OwnerMoving => {
                error.retry_after(RETRY_AFTER)
            }
            _ => error,
        }
    }

    /// A value of the request is invalid.
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

    /// The path supports other methods: these.
    pub(crate) fn allowing(methods: &'static str, message: impl Into<String>) -> Self {
        Self { allow: Some(methods), ..Self::new(Code::MethodNotAllowed, message) }
    }
}

/// Whole seconds, rounded up, and at least one.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

impl From<service::Error> for Error {
    fn from(error: service::Error) -> Self {
        use service::Error as Refused;
        let plain = Self::new(error.code(), error.to_string());
        match error {
            Refused::NoRun(id) => plain.detail("runId", id),
            Refused::NoNode(id) | Refused::NotWaiting(id) => plain.detail("nodeId", id),
            Refused::Invalid { path, .. } | Refused::LimitUsedUp { path, .. } => {
                plain.detail("path", path)
            }
            Refused::Differs { problems, .. } | Refused::InvalidInputs(problems) => {
                let problem = |problem: Problem| {
                    Map::from_iter([
                        ("path".to_owned(), Value::from(problem.path)),
                        ("message".to_owned(), problem.what.into()),
                    ])
                };
                plain.detail("problems", problems.into_iter().map(problem).collect::<Vec<_>>())
            }
            Refused::UnknownAction(actions) => {
                plain.detail("path", "/resumeValue/action").detail("actions", actions)
            }
            Refused::CapabilityRequired { capability, type_id, node } => plain
                .detail("requiredCapability", capability)
                .detail("offendingTypeId", type_id)
                .detail("nodeId", node),
            Refused::ForkPastEnd { last } => plain.detail("lastSequence", last),
            _ => plain,
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let Self { code, message, details, retry_after, allow } = self;
        let envelope = ErrorEnvelope { error: code.as_str(), message, details };
        let mut response = (status(code), Json(envelope)).into_response();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_its_own_name_and_is_an_error() {
        let names: BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!(status(*code).as_u16() >= 400, "{code:?}");
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
