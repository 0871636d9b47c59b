//! What a guest reports to machines: structured log lines, wide events, metrics and spans, each as
//! JSON.

use sandglass_telemetry::metrics::GuestKind;
use sandglass_telemetry::trace::Kind;
use serde::Deserialize;
use serde_json::{Map, Value};
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::CallFailure;
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::capability::log::{FIELDS_MAX_BYTES, Level};
use sandglass_supervisor::capability::spans::{Attributes, SpanEnd};
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, OK, json};

/// Largest observation of a metric that is read, in bytes: a name and a few labels.
const METRIC_BYTES: u32 = 16 * 1024;

#[derive(Deserialize)]
#[serde(expecting = "an object with a `message`")]
struct LogLine {
    level: Option<String>,
    message: String,
    fields: Option<Value>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object with a `name` and a `value`")]
struct Observation {
    name: String,
    value: f64,
    kind: Option<String>,
    tags: Option<Map<String, Value>>,
}

/// A span that starts, or an event of a span.
#[derive(Deserialize)]
#[serde(expecting = "an object with a `name`")]
struct Named {
    name: String,
    kind: Option<String>,
    attributes: Option<Map<String, Value>>,
}

/// An addition to a span, or its end.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Update {
    status: Option<String>,
    #[serde(rename = "error.type")]
    error_type: Option<String>,
    #[serde(rename = "error.message")]
    error_message: Option<String>,
    attributes: Option<Map<String, Value>>,
}

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_log_and_metrics(linker, functions)?;
    link_spans(linker, functions)
}

fn link_log_and_metrics(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_log_structured(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let LogLine { level, message, fields } =
                json(caller, "the log line", (ptr, len), FIELDS_MAX_BYTES)?;
            let level = Level::of(level.as_deref().unwrap_or_default());
            let guest = caller.data_mut().guest_mut();
            match fields {
                Some(fields) => guest.log.write_fields(level, message, fields),
                None => guest.log.write(level, message),
            }
            Ok(OK)
        }
        fn host_emit_wide_event(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let event = json(caller, "the wide event", (ptr, len), FIELDS_MAX_BYTES)?;
            caller.data_mut().guest_mut().wide_event(event);
            Ok(OK)
        }
        fn host_emit_metric(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(METRIC_BYTES)) -> i32 {
            let Observation { name, value, kind, tags } =
                json(caller, "the metric", (ptr, len), METRIC_BYTES)?;
            let kind = metric_kind(kind.as_deref())?;
            let labels = tags.unwrap_or_default().into_iter().filter_map(label).collect();
            caller.data_mut().guest_mut().meter.observe(&name, kind, value, labels)?;
            Ok(OK)
        }
    }
    Ok(())
}

/// A metric without a kind is a histogram, because most guests measure durations.
fn metric_kind(kind: Option<&str>) -> Result<GuestKind, CallFailure> {
    match kind {
        Some("counter") => Ok(GuestKind::Counter),
        Some("gauge") => Ok(GuestKind::Gauge),
        None | Some("" | "histogram" | "distribution" | "timing") => Ok(GuestKind::Histogram),
        Some(_) => Err("the metric's `kind` is none of counter, gauge and histogram".into()),
    }
}

/// A tag as a label; `None` if it is not a single value.
fn label((name, value): (String, Value)) -> Option<(String, String)> {
    match value {
        Value::String(text) => Some((name, text)),
        Value::Bool(_) | Value::Number(_) => Some((name, value.to_string())),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn link_spans(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_start_span(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i64 {
            let Named { name, kind, attributes } = read_named(caller, "the span", (ptr, len))?;
            let (kind, attributes) = (span_kind(kind.as_deref()), to_attributes(attributes));
            Ok(caller.data_mut().guest_mut().spans.start(None, &name, kind, attributes)?)
        }
        fn host_add_span_event(caller, span: i64, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let Named { name, attributes, .. } = read_named(caller, "the event", (ptr, len))?;
            caller.data_mut().guest_mut().spans.add_event(span, &name, to_attributes(attributes))?;
            Ok(OK)
        }
        fn host_set_span_attributes(caller, span: i64, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let update: Update =
                json(caller, "the attributes' JSON", (ptr, len), FIELDS_MAX_BYTES)?;
            caller.data_mut().guest_mut().spans.set_attributes(span, to_attributes(update.attributes))?;
            Ok(OK)
        }
        fn host_end_span(caller, span: i64, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let mut update = match len {
                0 => Update::default(),
                _ => json(caller, "the span's end", (ptr, len), FIELDS_MAX_BYTES)?,
            };
            let attributes = to_attributes(update.attributes.take());
            caller.data_mut().guest_mut().spans.end(span, attributes, span_end(update))?;
            Ok(OK)
        }
    }
    Ok(())
}

fn read_named(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    place: (i32, i32),
) -> Result<Named, CallFailure> {
    let named: Named = json(caller, what, place, FIELDS_MAX_BYTES)?;
    if named.name.trim().is_empty() {
        return Err(format!("{what} has no name").into());
    }
    Ok(named)
}

fn to_attributes(attributes: Option<Map<String, Value>>) -> Attributes {
    attributes.unwrap_or_default().into_iter().collect()
}

/// A kind that is not known counts as internal.
fn span_kind(kind: Option<&str>) -> Kind {
    match kind {
        Some("client" | "producer") => Kind::Client,
        Some("server" | "consumer") => Kind::Server,
        _ => Kind::Internal,
    }
}

fn span_end(update: Update) -> SpanEnd {
    if !update.status.is_some_and(|status| status.eq_ignore_ascii_case("error")) {
        return SpanEnd::Done;
    }
    let message = update.error_message.unwrap_or_else(|| "the span failed".to_owned());
    SpanEnd::Failed { kind: update.error_type, message }
}
