//! What a guest tells machines: structured log lines, wide events, metrics and
//! spans, each as JSON.

use sandglass_telemetry::metrics::GuestKind;
use sandglass_telemetry::trace::Kind;
use serde::Deserialize;
use serde_json::{Map, Value};
use wasmtime::{Caller, Linker, Result};

use crate::abi::guest_memory::FAILED;
use crate::boundary::instant;
use crate::store::RunStore;
use sandglass_supervisor::capability::log::{FIELDS_MAX_BYTES, Level};
use sandglass_supervisor::capability::spans::{Attributes, SpanEnd};
use sandglass_supervisor::functions::{Functions, Reads};

use super::{MODULE, done, failed, json};

/// What is read of one observation of a metric, in bytes: a name and a few labels.
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

/// A span that starts, or an event of one.
#[derive(Deserialize)]
#[serde(expecting = "an object with a `name`")]
struct Named {
    name: String,
    kind: Option<String>,
    attributes: Option<Map<String, Value>>,
}

/// What is added to a span, or the end of one.
#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Known {
    status: Option<String>,
    #[serde(rename = "error.type")]
    error_type: Option<String>,
    #[serde(rename = "error.message")]
    error_message: Option<String>,
    attributes: Option<Map<String, Value>>,
}

pub(super) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    link_log(linker, functions)?;
    link_metrics(linker, functions)?;
    link_spans(linker, functions)
}

fn link_log(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_log_structured(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let line = json::<LogLine>(caller, "the log line", (ptr, len), FIELDS_MAX_BYTES)?;
            let written = line.map(|LogLine { level, message, fields }| {
                let level = Level::of(level.as_deref().unwrap_or_default());
                let guest = caller.data_mut().guest_mut();
                match fields {
                    Some(fields) => guest.log_fields(level, message, fields),
                    None => guest.log(level, message),
                }
            });
            Ok(done(caller, written))
        }
    }
    instant! { linker, functions, MODULE;
        fn host_emit_wide_event(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let event = json::<Map<_, _>>(caller, "the wide event", (ptr, len), FIELDS_MAX_BYTES)?;
            let told = event.map(|event| caller.data_mut().guest_mut().wide_event(event));
            Ok(done(caller, told))
        }
    }
    Ok(())
}

fn link_metrics(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    instant! { linker, functions, MODULE;
        fn host_emit_metric(caller, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(METRIC_BYTES)) -> i32 {
            let observed = json::<Observation>(caller, "the metric", (ptr, len), METRIC_BYTES)?;
            let taken = observed.and_then(|Observation { name, value, kind, tags }| {
                let kind = metric_kind(kind.as_deref())?;
                let labels = tags.unwrap_or_default().into_iter().filter_map(label).collect();
                let guest = caller.data_mut().guest_mut();
                guest.observe(&name, kind, value, labels).map_err(|error| error.to_string())
            });
            Ok(done(caller, taken))
        }
    }
    Ok(())
}

/// A metric that doesn't say what it is is a histogram, as its users have it.
fn metric_kind(kind: Option<&str>) -> Result<GuestKind, String> {
    match kind {
        Some("counter") => Ok(GuestKind::Counter),
        Some("gauge") => Ok(GuestKind::Gauge),
        None | Some("" | "histogram" | "distribution" | "timing") => Ok(GuestKind::Histogram),
        Some(_) => Err("the metric's `kind` is none of counter, gauge and histogram".to_owned()),
    }
}

/// A tag as a label; what is no single value has no place in one.
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
            let span = named(caller, "the span", (ptr, len))?;
            let started = span.and_then(|Named { name, kind, attributes }| {
                let guest = caller.data_mut().guest_mut();
                guest
                    .start_span(None, &name, span_kind(kind.as_deref()), listed(attributes))
                    .map_err(|error| error.to_string())
            });
            Ok(match started {
                Ok(handle) => handle,
                Err(why) => {
                    caller.data_mut().guest_mut().fail(why);
                    i64::from(FAILED)
                }
            })
        }
    }
    instant! { linker, functions, MODULE;
        fn host_add_span_event(caller, span: i64, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let Named { name, attributes, .. } = match named(caller, "the event", (ptr, len))? {
                Ok(event) => event,
                Err(why) => return Ok(failed(caller, why)),
            };
            let guest = caller.data_mut().guest_mut();
            let added = guest.add_span_event(span, &name, listed(attributes));
            Ok(done(caller, added))
        }
    }
    instant! { linker, functions, MODULE;
        fn host_set_span_attributes(caller, span: i64, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let known =
                json::<Known>(caller, "the attributes' JSON", (ptr, len), FIELDS_MAX_BYTES)?;
            let known = match known {
                Ok(known) => known,
                Err(why) => return Ok(failed(caller, why)),
            };
            let guest = caller.data_mut().guest_mut();
            let set = guest.set_span_attributes(span, listed(known.attributes));
            Ok(done(caller, set))
        }
    }
    instant! { linker, functions, MODULE;
        fn host_end_span(caller, span: i64, ptr: i32, len: i32) reads [(ptr, len)] up_to (Reads::bytes(FIELDS_MAX_BYTES)) -> i32 {
            let known = match len {
                0 => Ok(Known::default()),
                _ => json(caller, "the span's end", (ptr, len), FIELDS_MAX_BYTES)?,
            };
            let mut known = match known {
                Ok(known) => known,
                Err(why) => return Ok(failed(caller, why)),
            };
            let attributes = listed(known.attributes.take());
            let ended = caller.data_mut().guest_mut().end_span(span, attributes, span_end(known));
            Ok(done(caller, ended))
        }
    }
    Ok(())
}

fn named(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    place: (i32, i32),
) -> Result<Result<Named, String>> {
    let named = json::<Named>(caller, what, place, FIELDS_MAX_BYTES)?;
    Ok(named.and_then(|named| match named.name.trim() {
        "" => Err(format!("{what} has no name")),
        _ => Ok(named),
    }))
}

fn listed(attributes: Option<Map<String, Value>>) -> Attributes {
    attributes.unwrap_or_default().into_iter().collect()
}

/// Whatever is none of the kinds is internal.
fn span_kind(kind: Option<&str>) -> Kind {
    match kind {
        Some("client" | "producer") => Kind::Client,
        Some("server" | "consumer") => Kind::Server,
        _ => Kind::Internal,
    }
}

fn span_end(known: Known) -> SpanEnd {
    if !known.status.is_some_and(|status| status.eq_ignore_ascii_case("error")) {
        return SpanEnd::Done;
    }
    let message = known.error_message.unwrap_or_else(|| "the span failed".to_owned());
    SpanEnd::Failed { kind: known.error_type, message }
}
