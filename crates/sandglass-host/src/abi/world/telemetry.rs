//! `sandglass:integration/spans` and `metrics`: what a guest reports to machines.

use sandglass_telemetry::metrics::GuestKind;
use sandglass_telemetry::trace::Kind as SpanKind;
use wasmtime::Result;
use wasmtime::component::Resource;

use super::interface::{metrics, spans};
use super::{FIRST, basics, fields_of, http};
use crate::boundary::imports;
use sandglass_supervisor::capability::spans::{Attributes, Handle, SpanEnd};

/// The index of the first function of the next table.
pub(super) const END: usize = FIRST + basics::IMPORTS.len() + http::IMPORTS.len() + IMPORTS.len();

imports! { IMPORTS from FIRST + basics::IMPORTS.len() + http::IMPORTS.len();
    "sandglass:integration/spans" in spans {
        HostSpan {
            instant "[method]span.add-event"
            fn add_event(store, this: Resource<Span>, name: String, attributes: Json)
                -> Result<Result<(), String>>
            {
                let span = store.wasi().table().get(&this)?.0;
                Ok(parse_attributes(&attributes).and_then(|attributes| {
                    let added = store.guest_mut().spans.add_event(span, &name, attributes);
                    added.map_err(|error| error.to_string())
                }))
            }
            instant "[method]span.set-attributes"
            fn set_attributes(store, this: Resource<Span>, attributes: Json)
                -> Result<Result<(), String>>
            {
                let span = store.wasi().table().get(&this)?.0;
                Ok(parse_attributes(&attributes).and_then(|attributes| {
                    let set = store.guest_mut().spans.set_attributes(span, attributes);
                    set.map_err(|error| error.to_string())
                }))
            }
            instant "[static]span.end"
            fn end(store, this: Resource<Span>, error: Option<String>) -> Result<()> {
                let Handle(span) = store.wasi().table().delete(this)?;
                let end = error.map_or(SpanEnd::Done, |message| {
                    SpanEnd::Failed { kind: None, message }
                });
                // It may have ended with its parent.
                let _ = store.guest_mut().spans.end(span, Attributes::new(), end);
                Ok(())
            }
            instant "[resource-drop]span"
            fn drop(store, this: Resource<Span>) -> Result<()> {
                let Handle(span) = store.wasi().table().delete(this)?;
                let _ = store.guest_mut().spans.end(span, Attributes::new(), SpanEnd::Done);
                Ok(())
            }
        }
        Host {
            instant "start"
            fn start(store, name: String, parent: Option<Resource<Span>>, attributes: Json)
                -> Result<Result<Resource<Span>, String>>
            {
                let table = store.wasi().table();
                let parent = parent.map(|parent| table.get(&parent).map(|Handle(span)| *span));
                let parent = parent.transpose()?;
                let started = parse_attributes(&attributes).and_then(|attributes| {
                    let started =
                        store.guest_mut().spans.start(parent, &name, SpanKind::Internal, attributes);
                    started.map_err(|error| error.to_string())
                });
                Ok(match started {
                    Ok(span) => Ok(store.wasi().table().push(Handle(span))?),
                    Err(why) => Err(why),
                })
            }
        }
    }
    "sandglass:integration/metrics" in metrics {
        Host {
            instant "emit"
            fn emit(store, name: String, kind: Kind, value: f64, labels: Vec<(String, String)>)
                -> Result<Result<(), String>>
            {
                let kind = match kind {
                    Kind::Counter => GuestKind::Counter,
                    Kind::Gauge => GuestKind::Gauge,
                    Kind::Histogram => GuestKind::Histogram,
                };
                let observed = store.guest_mut().meter.observe(&name, kind, value, labels);
                Ok(observed.map_err(|error| error.to_string()))
            }
        }
    }
}

fn parse_attributes(attributes: &str) -> Result<Attributes, String> {
    Ok(fields_of("the attributes' JSON", attributes)?.into_iter().collect())
}
