//! The host's functions as a core module imports them: by the ABI of `docs/guest-abi.md`.

mod imports;
mod outside;

use std::fmt::Write as _;

use serde_json::value::RawValue;

use crate::failure::{Failure, Form, Typed};
use crate::glue::Answered;
use crate::log::Level;
use crate::metrics::Kind;
use crate::{Completion, Context, HostError, glue};

use imports::Room;

pub(crate) use outside::{ask, send, send_batch};

/// Makes `$handler` what the host calls.
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

/// Room that most contexts, secrets and values of the scratch fit in, so that they are asked
/// for once.
const USUAL_BYTES: usize = 1024;

/// Room for the sentence that says why a function failed: the host's own bound.
const ERROR_BYTES: usize = 1024;

/// Runs `handler`, and gives its answer to the host; what the export does.
pub fn run(handler: fn(&Context) -> Answered) -> i32 {
    glue::log_panics();
    let answer = match context() {
        Ok(context) => handler(&context),
        Err(why) => Err(Failure::from(why)),
    };
    imports::set_result(&match answer.and_then(Completion::into_parts) {
        Ok((action, params)) => success(action.as_deref(), &params),
        Err(failure) => failed(&failure),
    });
    0
}

fn context() -> Result<Context, HostError> {
    serde_json::from_str(&context_text()?)
        .map_err(|error| HostError::new(format!("the context can't be read: {error}")))
}

fn context_text() -> Result<String, HostError> {
    text("the context", probe(imports::context)?)
}

pub(crate) fn whole_context(_context: &Context) -> Result<String, HostError> {
    context_text()
}

/// The answer of one that did its work. `params` is JSON already.
fn success(action: Option<&str>, params: &str) -> String {
    let mut answer = String::with_capacity(params.len() + 64);
    answer.push_str(r#"{"success":true"#);
    if let Some(action) = action {
        // A text can be written, and so can a string be written to.
        let _ = write!(answer, r#","action":{}"#, quoted(action));
    }
    let _ = write!(answer, r#","params":{params}}}"#);
    answer
}

fn failed(failure: &Failure) -> String {
    let mut answer = String::from(r#"{"success":false,"#);
    match &failure.form {
        Form::Plain(sentence) => {
            let _ = write!(answer, r#""error":{}"#, quoted(sentence));
        }
        Form::Typed(typed) => {
            let Typed { category, code, retryability, outcome, details, diagnostic } = &**typed;
            answer.push_str(r#""typed_failure":{"version":1"#);
            let texts = [
                ("category", Some(category)),
                ("code", Some(code)),
                ("retryability", retryability.as_ref()),
                ("outcome", outcome.as_ref()),
                ("diagnostic", diagnostic.as_ref()),
            ];
            for (name, text) in texts {
                if let Some(text) = text {
                    let _ = write!(answer, r#","{name}":{}"#, quoted(text));
                }
            }
            let details = details.as_deref().unwrap_or("{}");
            let _ = write!(answer, r#","details":{details}}}"#);
        }
    }
    answer.push('}');
    answer
}

fn quoted(text: &str) -> String {
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
    imports::log(name(level), line);
}

pub(crate) fn log_fields(level: Level, line: &str, fields: &str) -> Result<(), HostError> {
    let (level, line) = (name(level), quoted(line));
    let json = format!(r#"{{"level":"{level}","message":{line},"fields":{fields}}}"#);
    done(imports::log_structured(&json))
}

fn name(level: Level) -> &'static str {
    match level {
        Level::Trace => "trace",
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warn",
        Level::Error => "error",
    }
}

pub(crate) fn wide_event(event: &str) -> Result<(), HostError> {
    done(imports::emit_wide_event(event))
}

pub(crate) fn progress(progress: &str) -> Result<(), HostError> {
    done(imports::emit_progress(progress))
}

pub(crate) fn status(line: &str) {
    // A line in this guest's memory is never refused.
    let _ = imports::set_status(line);
}

pub(crate) fn secret(key: &str) -> Result<String, HostError> {
    text("the secret", probe(|room| imports::secret(key, room))?)
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
        let _ = write!(tags, "{comma}{}:{}", quoted(name), quoted(value));
    }
    let name = quoted(name);
    let json = format!(r#"{{"name":{name},"kind":"{kind}","value":{value},"tags":{{{tags}}}}}"#);
    done(imports::emit_metric(&json))
}

#[derive(Debug)]
pub(crate) struct Span(i64);

pub(crate) fn start_span(name: &str, attributes: &str) -> Result<Span, HostError> {
    match imports::start_span(&named(name, attributes)) {
        handle if handle > 0 => Ok(Span(handle)),
        _ => Err(last_error()),
    }
}

impl Span {
    pub(crate) fn add_event(&self, name: &str, attributes: &str) -> Result<(), HostError> {
        done(imports::add_span_event(self.0, &named(name, attributes)))
    }

    pub(crate) fn set_attributes(&self, attributes: &str) -> Result<(), HostError> {
        let json = format!(r#"{{"attributes":{attributes}}}"#);
        done(imports::set_span_attributes(self.0, &json))
    }

    pub(crate) fn end(self, error: Option<&str>) {
        let json = match error {
            Some(error) => {
                let error = quoted(error);
                format!(r#"{{"status":"error","error.message":{error}}}"#)
            }
            None => String::new(),
        };
        // It may have been ended with the run's other spans.
        let _ = imports::end_span(self.0, &json);
    }
}

fn named(name: &str, attributes: &str) -> String {
    format!(r#"{{"name":{},"attributes":{attributes}}}"#, quoted(name))
}

pub(crate) fn scratch_get(key: &str) -> Result<Option<Vec<u8>>, HostError> {
    match probe(|room| imports::scratch_get(key, room)) {
        Ok(value) => Ok(Some(value)),
        // Nothing there is an error of this ABI, as is a key that can't be. Removing what
        // isn't there tells the two apart, and changes nothing.
        Err(why) => match imports::scratch_delete(key) {
            0.. => Ok(None),
            _ => Err(why),
        },
    }
}

pub(crate) fn scratch_set(key: &str, value: &[u8]) -> Result<(), HostError> {
    done(imports::scratch_set(key, value))
}

pub(crate) fn scratch_delete(key: &str) -> Result<bool, HostError> {
    let answered = imports::scratch_delete(key);
    done(answered).map(|()| answered > 0)
}

/// What a function gives that says the size it needs where its buffer is too small.
fn probe(mut function: impl FnMut(&mut Room) -> i32) -> Result<Vec<u8>, HostError> {
    let mut room = Room::of(USUAL_BYTES);
    let mut bytes = length(function(&mut room))?;
    if bytes > room.bytes() {
        room = Room::of(bytes);
        bytes = length(function(&mut room))?;
    }
    Ok(room.written(bytes))
}

/// A count that a function answered, or the reason why it failed.
fn length(answered: i32) -> Result<usize, HostError> {
    usize::try_from(answered).map_err(|_| last_error())
}

fn done(answered: i32) -> Result<(), HostError> {
    length(answered).map(drop)
}

fn last_error() -> HostError {
    let mut room = Room::of(ERROR_BYTES);
    let bytes = usize::try_from(imports::last_error(&mut room)).unwrap_or(0);
    HostError::new(String::from_utf8_lossy(&room.written(bytes)))
}

fn text(what: &str, bytes: Vec<u8>) -> Result<String, HostError> {
    String::from_utf8(bytes).map_err(|_| HostError::new(format!("{what} is no UTF-8")))
}

/// JSON that is part of other JSON.
fn part(json: &str) -> Result<&RawValue, HostError> {
    serde_json::from_str(json).map_err(|error| HostError::new(error.to_string()))
}
