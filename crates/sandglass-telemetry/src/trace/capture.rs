//! Spans that are collected in memory instead of being exported, for tests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::trace::Status;
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, Span as SdkSpan, SpanData, SpanProcessor};
use sandglass_model::{SpanId, TraceId};

use super::{DecidedIds, Tracer};

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedSpan {
    /// Its name.
    pub name: String,
    /// Its trace.
    pub trace_id: TraceId,
    /// Its id.
    pub span_id: SpanId,
    /// Its parent.
    pub parent: Option<SpanId>,
    /// The spans that it links to.
    pub links: Vec<SpanId>,
    /// Its attributes, with values as text.
    pub attributes: BTreeMap<String, String>,
    /// The message of its failure, if it failed.
    pub error: Option<String>,
    /// Its events, in order.
    pub events: Vec<CapturedEvent>,
}

/// An event of a span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedEvent {
    /// Its name.
    pub name: String,
    /// Its attributes, with values as text.
    pub attributes: BTreeMap<String, String>,
}

/// The ended spans of a [`Tracer::capturing`].
#[derive(Clone, Debug, Default)]
pub struct CapturedSpans(Arc<Mutex<Vec<CapturedSpan>>>);

/// Spans that are collected: more than any test uses, but not an unbounded number.
const CAPTURED_MAX: usize = 100_000;

impl CapturedSpans {
    /// The spans that have ended so far, in the order of their ends.
    #[must_use]
    pub fn spans(&self) -> Vec<CapturedSpan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Tracer {
    /// A tracer whose spans are collected in memory, up to 100,000.
    #[must_use]
    pub fn capturing() -> (Self, CapturedSpans) {
        let captured = CapturedSpans::default();
        let provider = SdkTracerProvider::builder()
            .with_id_generator(DecidedIds::default())
            .with_span_processor(captured.clone())
            .build();
        (Self::new(&provider), captured)
    }
}

impl SpanProcessor for CapturedSpans {
    fn on_start(&self, _: &mut SdkSpan, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        let mut spans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() < CAPTURED_MAX {
            spans.push(to_captured_span(&span));
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

fn to_captured_span(span: &SpanData) -> CapturedSpan {
    let id = |id: opentelemetry::trace::SpanId| SpanId::from_bytes(id.to_bytes());
    let parent = span.parent_span_id;
    CapturedSpan {
        name: span.name.clone().into_owned(),
        trace_id: TraceId::from_bytes(span.span_context.trace_id().to_bytes()),
        span_id: id(span.span_context.span_id()),
        parent: (parent != opentelemetry::trace::SpanId::INVALID).then(|| id(parent)),
        links: span.links.iter().map(|link| id(link.span_context.span_id())).collect(),
        attributes: as_text(&span.attributes),
        error: match &span.status {
            Status::Error { description } => Some(description.to_string()),
            Status::Unset | Status::Ok => None,
        },
        events: span
            .events
            .iter()
            .map(|event| CapturedEvent {
                name: event.name.clone().into_owned(),
                attributes: as_text(&event.attributes),
            })
            .collect(),
    }
}

fn as_text(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    attributes
        .iter()
        .map(|attribute| (attribute.key.to_string(), attribute.value.to_string()))
        .collect()
}
