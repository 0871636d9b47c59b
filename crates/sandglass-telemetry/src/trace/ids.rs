//! Span ids that are decided before their span starts.
//!
//! Journal records name the span of a handler before it starts, so the exporter must use these ids. The SDK
//! takes ids from its generator while it builds a span; this generator returns the ids that the calling
//! thread has just decided.

use std::cell::Cell;

use opentelemetry::trace::{SpanId, TraceId};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator};
use sandglass_model::TraceContext;

thread_local! {
    static DECIDED: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// The id generator that the provider of a [`crate::Tracer`] must have. Other spans of the provider get
/// random ids.
#[derive(Clone, Debug, Default)]
pub struct DecidedIds(RandomIdGenerator);

impl IdGenerator for DecidedIds {
    fn new_trace_id(&self) -> TraceId {
        DECIDED.get().map_or_else(|| self.0.new_trace_id(), |context| trace_id(&context))
    }

    fn new_span_id(&self) -> SpanId {
        DECIDED.get().map_or_else(|| self.0.new_span_id(), |context| span_id(&context))
    }
}

/// Calls `build`, so that the span that it builds gets the ids of `context`.
pub(super) fn deciding<T>(context: TraceContext, build: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            DECIDED.set(None);
        }
    }
    DECIDED.set(Some(context));
    let _reset = Reset;
    build()
}

pub(super) fn trace_id(context: &TraceContext) -> TraceId {
    TraceId::from_bytes(*context.trace_id.as_bytes())
}

pub(super) fn span_id(context: &TraceContext) -> SpanId {
    SpanId::from_bytes(*context.span_id.as_bytes())
}
