//! The host's functions as a component imports them: by the WIT package in `wit/`.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::context::Config;
use crate::glue::Answered;
use crate::log::Level;
use crate::metrics::Kind;
use crate::{Context, HostError, ask, failure, glue, http};

use bindings::sandglass::integration as host;

#[allow(
    missing_docs,
    unsafe_code,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::undocumented_unsafe_blocks,
    reason = "generated: every function of the host is foreign, and described in wit/"
)]
/// The bindings of the WIT package, generated: each import with the types of its own, for
/// what only components have, such as HTTP bodies that are read and written in pieces.
///
/// A guest without the SDK's attribute implements `Guest` and exports it by `export!`.
pub mod bindings {
    wit_bindgen::generate!({
        world: "integration",
        path: "wit",
        pub_export_macro: true,
        default_bindings_module: "sandglass_guest::bindings",
    });
}

/// Makes `$handler` what the host calls.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        struct __Guest;

        impl $crate::bindings::Guest for __Guest {
            fn handle(
                context: $crate::bindings::DispatchContext,
            ) -> ::core::result::Result<$crate::bindings::Completion, $crate::bindings::Failure>
            {
                $crate::__private::run(context, $handler)
            }
        }

        $crate::bindings::export!(__Guest with_types_in $crate::bindings);
    };
}

/// Runs `handler`; what the export does.
///
/// # Errors
/// The handler's.
pub fn run(
    given: bindings::DispatchContext,
    handler: fn(&Context) -> Answered,
) -> Result<bindings::Completion, bindings::Failure> {
    glue::log_panics();
    let context = Context {
        tenant: given.tenant,
        entity_type: given.entity_type,
        entity_id: given.entity_id,
        trigger_action: given.trigger_action,
        trigger_params: raw(given.trigger_params),
        entity_state: raw(given.entity_state),
        integration_config: Config(given.integration_config),
        trace_id: given.trace_id,
        agent_id: given.agent_id,
        session_id: given.session_id,
        dispatch_id: given.dispatch_id,
        attempt: given.attempt,
    };
    match handler(&context).and_then(crate::Completion::into_parts) {
        Ok((action, params)) => Ok(bindings::Completion { action, params }),
        Err(failure) => Err(match failure.form {
            failure::Form::Plain(sentence) => bindings::Failure::Plain(sentence),
            failure::Form::Typed(typed) => bindings::Failure::Typed(host::types::TypedFailure {
                category: typed.category,
                code: typed.code,
                retryability: typed.retryability,
                outcome: typed.outcome,
                details: typed.details,
                diagnostic: typed.diagnostic,
            }),
        }),
    }
}

/// `text` as JSON that is kept as it is; `null` where it is none.
fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

pub(crate) fn whole_context(_context: &Context) -> Result<String, HostError> {
    Ok(host::context::whole())
}

pub(crate) fn now_ms() -> i64 {
    host::clock::now_ms()
}

pub(crate) fn remaining_ms() -> u64 {
    host::clock::deadline_remaining_ms()
}

pub(crate) fn should_stop() -> bool {
    host::clock::should_stop()
}

pub(crate) fn log(level: Level, line: &str) {
    host::log::write(level.into(), line);
}

pub(crate) fn log_fields(level: Level, line: &str, fields: &str) -> Result<(), HostError> {
    host::log::write_fields(level.into(), line, fields).map_err(HostError::new)
}

pub(crate) fn wide_event(event: &str) -> Result<(), HostError> {
    host::log::wide_event(event).map_err(HostError::new)
}

pub(crate) fn progress(progress: &str) -> Result<(), HostError> {
    host::progress::emit(progress).map_err(HostError::new)
}

pub(crate) fn status(line: &str) {
    host::progress::set_status(line);
}

pub(crate) fn secret(name: &str) -> Result<String, HostError> {
    host::secrets::get(name).map_err(HostError::new)
}

pub(crate) fn metric(
    name: &str,
    kind: Kind,
    value: f64,
    labels: &[(&str, &str)],
) -> Result<(), HostError> {
    let kind = match kind {
        Kind::Counter => host::metrics::Kind::Counter,
        Kind::Gauge => host::metrics::Kind::Gauge,
        Kind::Histogram => host::metrics::Kind::Histogram,
    };
    let labels: Vec<(String, String)> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    host::metrics::emit(name, kind, value, &labels).map_err(HostError::new)
}

#[derive(Debug)]
pub(crate) struct Span(host::spans::Span);

pub(crate) fn start_span(name: &str, attributes: &str) -> Result<Span, HostError> {
    if name.trim().is_empty() {
        return Err(HostError::new("the span has no name"));
    }
    host::spans::start(name, None, attributes).map(Span).map_err(HostError::new)
}

impl Span {
    pub(crate) fn add_event(&self, name: &str, attributes: &str) -> Result<(), HostError> {
        self.0.add_event(name, attributes).map_err(HostError::new)
    }

    pub(crate) fn set_attributes(&self, attributes: &str) -> Result<(), HostError> {
        self.0.set_attributes(attributes).map_err(HostError::new)
    }

    pub(crate) fn end(self, error: Option<&str>) {
        host::spans::Span::end(self.0, error);
    }
}

pub(crate) fn scratch_get(key: &str) -> Result<Option<Vec<u8>>, HostError> {
    host::scratch::get(key).map_err(HostError::from)
}

pub(crate) fn scratch_set(key: &str, value: &[u8]) -> Result<(), HostError> {
    host::scratch::set(key, value).map_err(HostError::from)
}

pub(crate) fn scratch_delete(key: &str) -> Result<bool, HostError> {
    host::scratch::delete(key).map_err(HostError::from)
}

impl From<host::scratch::Error> for HostError {
    fn from(error: host::scratch::Error) -> Self {
        Self::new(match error {
            host::scratch::Error::Denied => "no scratch was granted to this integration".to_owned(),
            host::scratch::Error::Full(bytes) => format!("the scratch of {bytes} bytes is full"),
            host::scratch::Error::InvalidKey(why) => why,
        })
    }
}

pub(crate) fn send(request: http::Request) -> Result<http::Response, http::Error> {
    let head = host::http::RequestHead {
        method: request.method,
        url: request.url,
        headers: request.headers,
    };
    let response = host::http::send(&host::http::Request { head, body: request.body })?;
    let host::http::Response { status, headers, body } = response;
    Ok(http::Response { status, headers, body })
}

pub(crate) fn send_batch(
    requests: Vec<http::Request>,
) -> Result<Vec<Result<http::Response, http::Error>>, http::Error> {
    Ok(requests.into_iter().map(http::Request::send).collect())
}

impl From<host::http::Error> for http::Error {
    fn from(error: host::http::Error) -> Self {
        use host::http::Error as Told;
        use http::ErrorKind;
        let (kind, message) = match error {
            Told::InvalidRequest(why) => (ErrorKind::InvalidRequest, why),
            Told::NotAllowed(place) => {
                let why = format!("the host `{place}` is not allowed for this integration");
                (ErrorKind::NotAllowed, why)
            }
            Told::TimedOut(ms) => {
                (ErrorKind::TimedOut, format!("no complete response within {ms} ms"))
            }
            Told::CutShort(why) => (ErrorKind::CutShort, why),
            Told::TooLarge(bytes) => {
                (ErrorKind::TooLarge, format!("the response is larger than {bytes} bytes"))
            }
            Told::TooManyRedirects => {
                (ErrorKind::TooManyRedirects, "it was redirected too often".to_owned())
            }
            Told::Transport(why) => (ErrorKind::Transport, why),
        };
        Self::new(kind, message)
    }
}

pub(crate) fn ask(request: &ask::Request) -> Result<ask::Answer, ask::Error> {
    let answer = host::ask::ask(&host::ask::Request {
        entity_type: request.entity_type.clone(),
        entity_id: request.entity_id.clone(),
        action: request.action.clone(),
        params: request.params.clone().unwrap_or_default(),
        until: match request.until_settled {
            true => host::ask::Until::Settled,
            false => host::ask::Until::Transition,
        },
    })?;
    Ok(ask::Answer { sequence: answer.sequence, state: answer.state, fields: answer.fields })
}

impl From<host::ask::Error> for ask::Error {
    fn from(error: host::ask::Error) -> Self {
        use ask::ErrorKind;
        use host::ask::ErrorKind as Told;
        let kind = match error.kind {
            Told::NotAllowed => ErrorKind::NotAllowed,
            Told::UnknownTarget => ErrorKind::UnknownTarget,
            Told::Cycle => ErrorKind::Cycle,
            Told::TooDeep => ErrorKind::TooDeep,
            Told::Refused => ErrorKind::Refused,
            Told::Busy => ErrorKind::Busy,
            Told::TimedOut => ErrorKind::TimedOut,
            Told::CutShort => ErrorKind::CutShort,
            Told::Unavailable => ErrorKind::Unavailable,
            Told::InvalidRequest => ErrorKind::InvalidRequest,
        };
        let mut made = Self::new(kind, error.message);
        made.retry_after = error.retry_after_ms.map(Duration::from_millis);
        made
    }
}

impl From<Level> for host::log::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Trace => Self::Trace,
            Level::Debug => Self::Debug,
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
            Level::Error => Self::Error,
        }
    }
}
