//! The backend for core modules, which import the host functions by the ABI in `docs/guest-abi.md`.

mod imports;
mod outside;

use std::fmt::Write as _;

use serde_json::value::RawValue;

use crate::failure::{Failure, Form, Typed};
use crate::glue::HandlerResult;
use crate::log::Level;
use crate::metrics::Kind;
use crate::{Completion, Context, HostError, glue};

use imports::Buffer;

pub(crate) use outside::{ask, send, send_batch, signal};

/// Exports `$handler` for the host to call.
#[doc(hidden)]
#[macro_export]
macro_rules! __export_handler {
    ($handler:path) => {
        /// The host calls this once per dispatch.
        #[unsafe(no_mangle)]
        extern "C" fn run(_context: i32, _context_len: i32) -> i32 {
            $crate::__private::run($handler)
        }
    };
}

/// The first size of a buffer: most contexts, secrets and scratch values fit, so that one call is
/// enough.
const FIRST_CAPACITY_BYTES: usize = 1024;

/// The longest message of `host_last_error`, by the host's limit.
const ERROR_BYTES: usize = 1024;

/// Runs `handler`, and passes its result to the host. The export calls this.
pub fn run(handler: fn(&Context) -> HandlerResult) -> i32 {
    glue::log_panics();
    let result = match read_context() {
        Ok(context) => handler(&context),
        Err(why) => Err(Failure::from(why)),
    };
    imports::set_result(&match result.and_then(Completion::into_parts) {
        Ok((action, params)) => success_json(action.as_deref(), &params),
        Err(failure) => failure_json(&failure),
    });
    0
}

fn read_context() -> Result<Context, HostError> {
    serde_json::from_str(&context_json()?)
        .map_err(|error| HostError::new(format!("the context cannot be read: {error}")))
}

fn context_json() -> Result<String, HostError> {
    to_text("the context", read_into_buffer(imports::context)?)
}

pub(crate) fn read_context_json(_context: &Context) -> Result<String, HostError> {
    context_json()
}

/// The result of a handler that did its work. `params` is JSON.
fn success_json(action: Option<&str>, params: &str) -> String {
    let mut json = String::with_capacity(params.len() + 64);
    json.push_str(r#"{"success":true"#);
    if let Some(action) = action {
        // Writing to a `String` cannot fail.
        let _ = write!(json, r#","action":{}"#, quote(action));
    }
    let _ = write!(json, r#","params":{params}}}"#);
    json
}

fn failure_json(failure: &Failure) -> String {
    let mut json = String::from(r#"{"success":false,"#);
    match &failure.form {
        Form::Plain(sentence) => {
            let _ = write!(json, r#""error":{}"#, quote(sentence));
        }
        Form::Typed(typed) => {
            let Typed { category, code, retryability, outcome, details, diagnostic } = &**typed;
            json.push_str(r#""typed_failure":{"version":1"#);
            let texts = [
                ("category", Some(category)),
                ("code", Some(code)),
                ("retryability", retryability.as_ref()),
                ("outcome", outcome.as_ref()),
                ("diagnostic", diagnostic.as_ref()),
            ];
            for (name, text) in texts {
                if let Some(text) = text {
                    let _ = write!(json, r#","{name}":{}"#, quote(text));
                }
            }
            let details = details.as_deref().unwrap_or("{}");
            let _ = write!(json, r#","details":{details}}}"#);
        }
    }
    json.push('}');
    json
}

fn quote(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

pub(crate) fn now_ms() -> i64 {
    imports::time_millis()
}

pub(crate) fn remaining_ms() -> u64 {
    u64::try_from(imports::deadline_remaining_ms()).unwrap_or(0)
}

pub(crate) fn should_stop() -> bool {
    imports::should_stop() != 0
}

pub(crate) fn log(level: Level, line: &str) {
    imports::log(level_name(level), line);
}

pub(crate) fn log_fields(level: Level, line: &str, fields: &str) -> Result<(), HostError> {
    let (level, line) = (level_name(level), quote(line));
    let json = format!(r#"{{"level":"{level}","message":{line},"fields":{fields}}}"#);
    check(imports::log_structured(&json))
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Trace => "trace",
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    }
}

pub(crate) fn wide_event(event: &str) -> Result<(), HostError> {
    check(imports::emit_wide_event(event))
}

pub(crate) fn progress(progress: &str) -> Result<(), HostError> {
    check(imports::emit_progress(progress))
}

pub(crate) fn status(line: &str) {
    // The host refuses a status only if it is outside of the guest's memory.
    let _ = imports::set_status(line);
}

pub(crate) async fn secret(key: &str) -> Result<String, HostError> {
    to_text("the secret", read_into_buffer(|buffer| imports::secret(key, buffer))?)
}

pub(crate) fn metric(
    name: &str,
    kind: Kind,
    value: f64,
    labels: &[(&str, &str)],
) -> Result<(), HostError> {
    let kind = match kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram => "histogram",
    };
    let mut tags = String::new();
    for (name, value) in labels {
        let comma = if tags.is_empty() { "" } else { "," };
        let _ = write!(tags, "{comma}{}:{}", quote(name), quote(value));
    }
    let name = quote(name);
    let json = format!(r#"{{"name":{name},"kind":"{kind}","value":{value},"tags":{{{tags}}}}}"#);
    check(imports::emit_metric(&json))
}

#[derive(Debug)]
pub(crate) struct Span(i64);

pub(crate) fn start_span(name: &str, attributes: &str) -> Result<Span, HostError> {
    match imports::start_span(&span_json(name, attributes)) {
        handle if handle > 0 => Ok(Span(handle)),
        _ => Err(last_error()),
    }
}

impl Span {
    pub(crate) fn add_event(&self, name: &str, attributes: &str) -> Result<(), HostError> {
        check(imports::add_span_event(self.0, &span_json(name, attributes)))
    }

    pub(crate) fn set_attributes(&self, attributes: &str) -> Result<(), HostError> {
        let json = format!(r#"{{"attributes":{attributes}}}"#);
        check(imports::set_span_attributes(self.0, &json))
    }

    pub(crate) fn end(self, error: Option<&str>) {
        let json = match error {
            Some(error) => {
                let error = quote(error);
                format!(r#"{{"status":"error","error.message":{error}}}"#)
            }
            None => String::new(),
        };
        // The host may have ended it already, together with the span of its handler.
        let _ = imports::end_span(self.0, &json);
    }
}

fn span_json(name: &str, attributes: &str) -> String {
    format!(r#"{{"name":{},"attributes":{attributes}}}"#, quote(name))
}

pub(crate) fn scratch_get(key: &str) -> Result<Option<Vec<u8>>, HostError> {
    match read_into_buffer(|buffer| imports::scratch_get(key, buffer)) {
        Ok(value) => Ok(Some(value)),
        // A missing key and an invalid key are both errors in this ABI. Deleting a missing key
        // distinguishes them, and changes nothing.
        Err(why) => match imports::scratch_delete(key) {
            0.. => Ok(None),
            _ => Err(why),
        },
    }
}

pub(crate) fn scratch_set(key: &str, value: &[u8]) -> Result<(), HostError> {
    check(imports::scratch_set(key, value))
}

pub(crate) fn scratch_delete(key: &str) -> Result<bool, HostError> {
    length(imports::scratch_delete(key)).map(|deleted| deleted > 0)
}

/// Calls a function that returns the size that it needs if the buffer is too small.
fn read_into_buffer(mut function: impl FnMut(&mut Buffer) -> i32) -> Result<Vec<u8>, HostError> {
    let mut buffer = Buffer::with_capacity(FIRST_CAPACITY_BYTES);
    let mut bytes = length(function(&mut buffer))?;
    if bytes > buffer.capacity() {
        buffer = Buffer::with_capacity(bytes);
        bytes = length(function(&mut buffer))?;
    }
    Ok(buffer.into_written(bytes))
}

/// Converts the returned count, or reads the reason why the function failed.
fn length(returned: i32) -> Result<usize, HostError> {
    usize::try_from(returned).map_err(|_| last_error())
}

fn check(returned: i32) -> Result<(), HostError> {
    length(returned).map(drop)
}

fn last_error() -> HostError {
    let mut buffer = Buffer::with_capacity(ERROR_BYTES);
    let bytes = usize::try_from(imports::last_error(&mut buffer)).unwrap_or(0);
    HostError::new(String::from_utf8_lossy(&buffer.into_written(bytes)))
}

fn to_text(what: &str, bytes: Vec<u8>) -> Result<String, HostError> {
    String::from_utf8(bytes).map_err(|_| HostError::new(format!("{what} is not UTF-8")))
}

/// Returns `json` unparsed, as part of other JSON.
fn raw_json(json: &str) -> Result<&RawValue, HostError> {
    serde_json::from_str(json).map_err(|error| HostError::new(error.to_string()))
}
