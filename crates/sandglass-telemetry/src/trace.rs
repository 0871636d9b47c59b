//! Spans whose ids are decided before they start.
//!
//! The OpenTelemetry API is used directly: a journal record names the span of a handler before the handler
//! starts, and the exported span has exactly that id.

mod capture;
mod guest;
mod ids;
pub mod names;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, TraceFlags,
    TraceState, Tracer as _, TracerProvider as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span as SdkSpan};
use sandglass_model::{SpanId, TraceContext, TraceId};

pub use capture::{CapturedEvent, CapturedSpan, CapturedSpans};
pub use guest::GuestAttribute;
pub use ids::DecidedIds;

/// An attribute's name and value.
pub type Attribute<'a> = (&'static str, Value<'a>);

/// An attribute's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A text.
    Text(&'a str),
    /// A whole number.
    Number(i64),
    /// A number with a fraction.
    Fraction(f64),
    /// A boolean.
    Flag(bool),
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Value<'_> {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<u64> for Value<'_> {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<f64> for Value<'_> {
    fn from(number: f64) -> Self {
        Self::Fraction(number)
    }
}

impl From<bool> for Value<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl Value<'_> {
    fn owned(&self) -> opentelemetry::Value {
        match self {
            Self::Text(text) => (*text).to_owned().into(),
            Self::Number(number) => (*number).into(),
            Self::Fraction(number) => (*number).into(),
            Self::Flag(flag) => (*flag).into(),
        }
    }
}

fn key_value((name, value): &Attribute<'_>) -> KeyValue {
    KeyValue::new(*name, value.owned())
}

/// The kind of a span in OpenTelemetry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Work inside the process.
    #[default]
    Internal,
    /// A call to another service.
    Client,
    /// The handling of a call from another service.
    Server,
}

/// The properties of a span when it starts.
#[derive(Clone, Copy, Debug)]
pub struct SpanStart<'a> {
    /// Its name, one of [`names`].
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its own ids.
    pub context: TraceContext,
    /// Its parent. A parent in another trace becomes a link.
    pub parent: Option<TraceContext>,
    /// Linked spans.
    pub links: &'a [TraceContext],
    /// Its attributes.
    pub attributes: &'a [Attribute<'a>],
}

/// Starts spans. Cheap to clone; the default starts spans that are not recorded, without allocations.
#[derive(Clone, Default)]
pub struct Tracer(Option<SdkTracer>);

impl Tracer {
    /// A tracer whose spans are not recorded.
    #[must_use]
    pub fn disabled() -> Self {
        Self::default()
    }

    /// A tracer that uses `provider`, which must have been built with [`DecidedIds`]: with another id
    /// generator the exported ids differ from those in the journal.
    #[must_use]
    pub fn new(provider: &SdkTracerProvider) -> Self {
        Self(Some(provider.tracer("sandglass")))
    }

    /// Whether its spans can be recorded.
    #[must_use]
    pub const fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Starts a span now. It is not recorded if its trace is not sampled.
    pub fn start(&self, start: &SpanStart<'_>) -> Span {
        let Some(tracer) = &self.0 else { return Span(None) };
        if start.parent.is_none() && !start.context.sampled {
            // Without a parent, the sampler cannot know that the trace is not sampled.
            return Span(None);
        }
        let own_trace = start.context.trace_id;
        let (parent, linked) = match start.parent {
            Some(parent) if parent.trace_id != own_trace => (None, Some(parent)),
            parent => (parent, None),
        };
        let links = start.links.iter().copied().chain(linked);
        let builder = SpanBuilder::from_name(start.name)
            .with_kind(span_kind(start.kind))
            .with_links(links.map(|link| Link::with_context(remote(link))).collect())
            .with_attributes(start.attributes.iter().map(key_value));
        let context = parent.map_or_else(Context::new, |parent| {
            Context::new().with_remote_span_context(remote(parent))
        });
        let span = ids::deciding(start.context, || tracer.build_with_context(builder, &context));
        Span(Some(Box::new(Live::new(tracer, span))))
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Tracer(enabled)" } else { "Tracer(disabled)" })
    }
}

const fn span_kind(kind: Kind) -> SpanKind {
    match kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Client => SpanKind::Client,
        Kind::Server => SpanKind::Server,
    }
}

/// The context of a span that another process may have started, or this one before a restart.
fn remote(context: TraceContext) -> SpanContext {
    SpanContext::new(
        ids::trace_id(&context),
        ids::span_id(&context),
        TraceFlags::default().with_sampled(context.sampled),
        true,
        TraceState::default(),
    )
}

struct Live {
    tracer: SdkTracer,
    span: Mutex<SdkSpan>,
    /// Whether its trace is sampled. If not, its children are not recorded either.
    is_recorded: bool,
}

impl Live {
    fn new(tracer: &SdkTracer, span: SdkSpan) -> Self {
        let is_recorded = span.is_recording();
        Self { tracer: tracer.clone(), span: Mutex::new(span), is_recorded }
    }

    fn with<T>(&self, use_span: impl FnOnce(&mut SdkSpan) -> T) -> T {
        use_span(&mut self.span.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A span that has started. It ends when it is dropped.
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<Box<Live>>);

impl Span {
    /// A span that is not recorded.
    pub const fn disabled() -> Self {
        Self(None)
    }

    /// Whether it is recorded. If not, its attributes need not be computed.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(|live| live.is_recorded)
    }

    /// Starts a child of this span, with a random id, now.
    pub fn child(&self, name: &'static str, kind: Kind, attributes: &[Attribute<'_>]) -> Self {
        self.start_child(name.into(), kind, None, attributes.iter().map(key_value))
    }

    /// As [`Span::child`], for something that began `ago`, when it was not known yet to need a span.
    pub fn child_since(
        &self,
        ago: Duration,
        name: &'static str,
        kind: Kind,
        attributes: &[Attribute<'_>],
    ) -> Self {
        self.start_child(name.into(), kind, Some(ago), attributes.iter().map(key_value))
    }

    fn start_child(
        &self,
        name: Cow<'static, str>,
        kind: Kind,
        ago: Option<Duration>,
        attributes: impl Iterator<Item = KeyValue>,
    ) -> Self {
        let Some(live) = &self.0 else { return Self(None) };
        let mut builder =
            SpanBuilder::from_name(name).with_kind(span_kind(kind)).with_attributes(attributes);
        #[allow(clippy::disallowed_methods, reason = "the SDK uses this clock for other spans")]
        let began = |ago| SystemTime::now().checked_sub(ago);
        builder.start_time = ago.and_then(began);
        let parent = live.with(|span| span.span_context().clone());
        let context = Context::new().with_remote_span_context(parent);
        let span = live.tracer.build_with_context(builder, &context);
        Self(Some(Box::new(Live::new(&live.tracer, span))))
    }

    /// The ids of this span; `None` if it is disabled.
    #[must_use]
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref()?.with(|span| {
            let context = span.span_context();
            context.is_valid().then(|| TraceContext {
                trace_id: TraceId::from_bytes(context.trace_id().to_bytes()),
                span_id: SpanId::from_bytes(context.span_id().to_bytes()),
                sampled: context.is_sampled(),
            })
        })
    }

    /// Adds attributes.
    pub fn set(&self, attributes: &[Attribute<'_>]) {
        let Some(live) = &self.0 else { return };
        live.with(|span| span.set_attributes(attributes.iter().map(key_value)));
    }

    /// Adds an event that happens now.
    pub fn event(&self, name: &'static str, attributes: &[Attribute<'_>]) {
        let Some(live) = &self.0 else { return };
        live.with(|span| span.add_event(name, attributes.iter().map(key_value).collect()));
    }

    /// Marks the span as failed.
    pub fn error(&self, error_type: &str, message: &str) {
        let Some(live) = &self.0 else { return };
        live.with(|span| {
            span.set_attribute(KeyValue::new(names::ERROR_TYPE, error_type.to_owned()));
            span.set_status(Status::error(message.to_owned()));
        });
    }

    /// Ends it now.
    pub fn end(self) {
        drop(self);
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.context() {
            Some(context) => write!(f, "Span({context})"),
            None => f.write_str("Span(disabled)"),
        }
    }
}
