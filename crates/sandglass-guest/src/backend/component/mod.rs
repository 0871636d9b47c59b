//! The backend for components, which import the host functions by the WIT packages in `wit/` and, with
//! the feature `async`, `wit-0.2/`. What differs between their worlds is in `blocking` and `concurrent`.

#[cfg(not(feature = "async"))]
mod blocking;
#[cfg(feature = "async")]
mod concurrent;

use std::time::Duration;

use serde_json::value::RawValue;

use crate::context::Config;
use crate::glue::HandlerResult;
use crate::log::Level;
use crate::metrics::Kind;
use crate::{Context, HostError, ask, failure, http, signal};

#[cfg(not(feature = "async"))]
use bindings::sandglass::integration as host;
#[cfg(feature = "async")]
use bindings::sandglass::integration0_1_1 as host;
#[cfg(not(feature = "async"))]
pub use blocking::run;
#[cfg(not(feature = "async"))]
pub(crate) use blocking::*;
#[cfg(feature = "async")]
pub(crate) use concurrent::*;
#[cfg(feature = "async")]
pub use concurrent::{block_on, run};

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
    #[cfg(not(feature = "async"))]
    wit_bindgen::generate!({
        world: "integration",
        path: "wit",
        pub_export_macro: true,
        default_bindings_module: "sandglass_guest::bindings",
    });

    #[cfg(feature = "async")]
    wit_bindgen::generate!({
        world: "sandglass:integration/integration@0.2.0",
        path: ["wit", "wit-0.2"],
        generate_all,
        pub_export_macro: true,
        default_bindings_module: "sandglass_guest::bindings",
    });
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

fn read(context: bindings::DispatchContext) -> Context {
    Context {
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
    }
}

fn write(result: HandlerResult) -> Result<bindings::Completion, bindings::Failure> {
    match result.and_then(crate::Completion::into_parts) {
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

fn ask_request(request: &ask::Request) -> host::ask::Request {
    host::ask::Request {
        entity_type: request.entity_type.clone(),
        entity_id: request.entity_id.clone(),
        action: request.action.clone(),
        params: request.params.clone().unwrap_or_default(),
        until: match request.until_settled {
            true => host::ask::Until::Settled,
            false => host::ask::Until::Transition,
        },
    }
}

impl From<host::ask::Answer> for ask::Answer {
    fn from(answer: host::ask::Answer) -> Self {
        Self { sequence: answer.sequence, state: answer.state, fields: answer.fields }
    }
}

fn notice(notice: &signal::Notice) -> host::signal::Notice {
    host::signal::Notice {
        entity_type: notice.entity_type.clone(),
        entity_id: notice.entity_id.clone(),
        name: notice.name.clone(),
        payload: notice.payload.clone().unwrap_or_default(),
    }
}
