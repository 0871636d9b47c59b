//! The backend for components, which import the host functions by the WIT package in `wit/`.

use std::time::Duration;

use serde_json::value::RawValue;

use crate::context::Config;
use crate::glue::HandlerResult;
use crate::log::Level;
use crate::metrics::Kind;
use crate::{Context, HostError, ask, failure, glue, http, signal};

use bindings::sandglass::integration as host;

#[allow(
    missing_docs,
    unsafe_code,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::undocumented_unsafe_blocks,
    reason = "generated code; the items are described in wit/"
)]
/// The generated bindings of the WIT package, for what only components have, such as HTTP bodies that
/// are read and written in pieces.
///
/// A guest that does not use `#[handler]` implements `Guest` and exports it with `export!`.
pub mod bindings {
    wit_bindgen::generate!({
        world: "integration",
        path: "wit",
        pub_export_macro: true,
        default_bindings_module: "sandglass_guest::bindings",
    });
}

/// Exports `$handler` for the host to call.
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

/// Runs `handler`. The export calls this.
///
/// # Errors
/// Errors if the handler fails.
pub fn run(
    context: bindings::DispatchContext,
    handler: fn(&Context) -> HandlerResult,
) -> Result<bindings::Completion, bindings::Failure> {
    glue::log_panics();
    let context = Context {
        tenant: context.tenant,
        entity_type: context.entity_type,
        entity_id: context.entity_id,
        trigger_action: context.trigger_action,
        trigger_params: raw(context.trigger_params),
        entity_state: raw(context.entity_state),
        integration_config: Config(context.integration_config),
        trace_id: context.trace_id,
        agent_id: context.agent_id,
        session_id: context.session_id,
        dispatch_id: context.dispatch_id,
        attempt: context.attempt,
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

/// Returns `text` as unparsed JSON; `null` if it is not JSON.
fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

pub(crate) fn read_context_json(_context: &Context) -> Result<String, HostError> {
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
        use host::http::Error as WitError;
        use http::ErrorKind;
        let (kind, message) = match error {
            WitError::InvalidRequest(why) => (ErrorKind::InvalidRequest, why),
            WitError::NotAllowed(place) => {
                let why = format!("the host `{place}` is not allowed for this integration");
                (ErrorKind::NotAllowed, why)
            }
            WitError::TimedOut(limit_ms) => return Self::timed_out(limit_ms),
            WitError::CutShort(why) => (ErrorKind::CutShort, why),
            WitError::TooLarge(bytes) => {
                (ErrorKind::TooLarge, format!("the response is larger than {bytes} bytes"))
            }
            WitError::TooManyRedirects => {
                (ErrorKind::TooManyRedirects, "too many redirects".to_owned())
            }
            WitError::Transport(why) => (ErrorKind::Transport, why),
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
        use host::ask::ErrorKind as WitKind;
        let kind = match error.kind {
            WitKind::NotAllowed => ErrorKind::NotAllowed,
            WitKind::UnknownTarget => ErrorKind::UnknownTarget,
            WitKind::Cycle => ErrorKind::Cycle,
            WitKind::TooDeep => ErrorKind::TooDeep,
            WitKind::Refused => ErrorKind::Refused,
            WitKind::Busy => ErrorKind::Busy,
            WitKind::TimedOut => ErrorKind::TimedOut,
            WitKind::CutShort => ErrorKind::CutShort,
            WitKind::Unavailable => ErrorKind::Unavailable,
            WitKind::InvalidRequest => ErrorKind::InvalidRequest,
        };
        let mut converted = Self::new(kind, error.message);
        converted.retry_after = error.retry_after_ms.map(Duration::from_millis);
        converted
    }
}

pub(crate) fn signal(notice: &signal::Notice) -> Result<(), signal::Error> {
    host::signal::send(&host::signal::Notice {
        entity_type: notice.entity_type.clone(),
        entity_id: notice.entity_id.clone(),
        name: notice.name.clone(),
        payload: notice.payload.clone().unwrap_or_default(),
    })?;
    Ok(())
}

impl From<host::signal::Error> for signal::Error {
    fn from(error: host::signal::Error) -> Self {
        use host::signal::ErrorKind as WitKind;
        use signal::ErrorKind;
        let kind = match error.kind {
            WitKind::NotAllowed => ErrorKind::NotAllowed,
            WitKind::UnknownTarget => ErrorKind::UnknownTarget,
            WitKind::Refused => ErrorKind::Refused,
            WitKind::TimedOut => ErrorKind::TimedOut,
            WitKind::CutShort => ErrorKind::CutShort,
            WitKind::Unavailable => ErrorKind::Unavailable,
            WitKind::InvalidRequest => ErrorKind::InvalidRequest,
        };
        Self::new(kind, error.message)
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
