//! The spans that a guest starts, below the span of its dispatch: bounded for each run, and ended
//! with it. Guests name them by handles, which are valid in their run only.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::SpanId;
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::DroppedTelemetry;
use sandglass_telemetry::trace::{GuestAttribute, Kind, Value, names};
use serde_json::Value as Json;

use super::Grants;
use super::log::cut;
use super::run_telemetry::RunTelemetry;
use crate::measured::Measured;

/// Most spans of one run, as many as users' handlers have today. Further ones are not exported, but
/// counted.
const SPANS_MAX: u32 = 256;

/// Most handles of one run, including those of dropped spans. Each occupies a few bytes while its
/// span is open.
const HANDLES_MAX: i64 = 1 << 16;

/// Most bytes of the names and values of all spans, events and attributes of one run: they stay in
/// memory until the spans are exported.
const SPAN_BYTES: usize = 1 << 20;

/// What a span, event or attribute counts besides its text, in bytes, so that empty ones are bounded
/// as well.
const OVERHEAD_BYTES: usize = 64;

/// Longest name, in bytes: enough for the name of an operation, without its subject.
const NAME_MAX_BYTES: u32 = 128;

/// Longest value, in bytes; longer ones belong in the log.
const VALUE_MAX_BYTES: u32 = 4096;

/// The names and values of attributes, as the guest passes them.
pub type Attributes = Vec<(String, Json)>;

/// How a guest's span ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpanEnd {
    /// Without an error.
    Done,
    /// With an error.
    Failed {
        /// The type of the error.
        kind: Option<String>,
        /// What failed.
        message: String,
    },
}

/// The handle is not one of an open span of this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no open span of this run")]
pub struct NoSuchSpan(i64);

/// A span of the resource API: its handle.
#[allow(unreachable_pub, reason = "generated code re-exports it")]
#[derive(Debug)]
pub struct Handle(pub i64);

impl Measured for Handle {
    fn uncharged_bytes(&self) -> u64 {
        let Self(_number) = self;
        0
    }
}

/// The spans of one run.
#[derive(Debug)]
pub struct Spans {
    telemetry: Arc<RunTelemetry>,
    dispatch: Arc<Span>,
    /// The base of the run's handles, which is random, so that handles of other runs are invalid.
    base: i64,
    handles: i64,
    started: u32,
    open: BTreeMap<i64, Span>,
    /// The names that the manifest declares, and the open spans that have one.
    grants: Arc<Grants>,
    declared: BTreeMap<i64, usize>,
    left_bytes: usize,
}

impl Measured for Spans {
    /// The texts of spans and events, and the table of open spans.
    fn uncharged_bytes(&self) -> u64 {
        let Self { telemetry: _, dispatch: _, base: _, handles: _, started: _, grants: _, .. } =
            self;
        let Self { open, declared, left_bytes, .. } = self;
        // A node of the tree is at least half full.
        let open = 2 * open.len() * size_of::<(i64, Span)>();
        let open = open + 2 * declared.len() * size_of::<(i64, usize)>();
        (SPAN_BYTES - left_bytes + open) as u64
    }
}

impl Spans {
    /// The spans below `dispatch`, whose id is `id`.
    pub(super) fn new(
        telemetry: Arc<RunTelemetry>,
        dispatch: Arc<Span>,
        id: SpanId,
        grants: Arc<Grants>,
    ) -> Self {
        let random = i64::from_be_bytes(*id.as_bytes());
        Self {
            telemetry,
            dispatch,
            // Positive, because other values are errors in the ABI.
            base: (random & i64::MAX) / HANDLES_MAX * HANDLES_MAX,
            handles: 0,
            started: 0,
            open: BTreeMap::new(),
            grants,
            declared: BTreeMap::new(),
            left_bytes: SPAN_BYTES,
        }
    }

    /// Starts a span below `parent`, or else below the innermost open span. Returns its handle, which
    /// is above zero. A span beyond the bounds is not exported.
    ///
    /// # Errors
    /// `parent` is not an open span.
    pub fn start(
        &mut self,
        parent: Option<i64>,
        name: &str,
        kind: Kind,
        attributes: Attributes,
    ) -> Result<i64, NoSuchSpan> {
        if let Some(parent) = parent {
            self.find(parent)?;
        }
        let last = self.handles + 1 >= HANDLES_MAX;
        // All spans beyond the last handle share it.
        self.handles += i64::from(!last);
        let handle = self.base + self.handles;
        let name = self.name(name);
        let span = if !last && self.started < SPANS_MAX && self.take(name.len()) {
            self.started += 1;
            let attributes = self.attributes(attributes);
            // Without an explicit parent, the innermost open span is the parent.
            let parent = parent.and_then(|parent| self.open.get(&parent));
            let parent = parent.or_else(|| self.open.values().next_back());
            parent.unwrap_or(&self.dispatch).guest_child(
                &name,
                kind,
                &to_guest_attributes(&attributes),
            )
        } else {
            self.telemetry.drop_one(DroppedTelemetry::Span);
            Span::disabled()
        };
        self.open.insert(handle, span);
        match self.grants.spans.iter().position(|declared| *declared == name) {
            Some(declared) => self.declared.insert(handle, declared),
            None => self.declared.remove(&handle),
        };
        Ok(handle)
    }

    /// The name of the innermost open span, if the manifest declares it.
    pub fn innermost_declared(&self) -> Option<&str> {
        let (innermost, _) = self.open.last_key_value()?;
        let declared = self.declared.get(innermost)?;
        self.grants.spans.get(*declared).map(String::as_str)
    }

    /// Adds an event to a span.
    ///
    /// # Errors
    /// The span is not open; likewise below.
    pub fn add_event(
        &mut self,
        span: i64,
        name: &str,
        attributes: Attributes,
    ) -> Result<(), NoSuchSpan> {
        self.find(span)?;
        if let Some((name, attributes)) = self.event(name, attributes) {
            self.find(span)?.guest_event(&name, &to_guest_attributes(&attributes));
        }
        Ok(())
    }

    /// Adds an event to the span of the dispatch.
    pub(super) fn add_dispatch_event(&mut self, name: &str, attributes: Attributes) {
        if let Some((name, attributes)) = self.event(name, attributes) {
            self.dispatch.guest_event(&name, &to_guest_attributes(&attributes));
        }
    }

    /// Adds attributes to a span.
    pub fn set_attributes(&mut self, span: i64, attributes: Attributes) -> Result<(), NoSuchSpan> {
        self.find(span)?;
        let attributes = self.attributes(attributes);
        self.find(span)?.set_guest_attributes(&to_guest_attributes(&attributes));
        Ok(())
    }

    /// Adds attributes to a span, and ends it.
    pub fn end(
        &mut self,
        span: i64,
        attributes: Attributes,
        end: SpanEnd,
    ) -> Result<(), NoSuchSpan> {
        self.set_attributes(span, attributes)?;
        let ended = self.open.remove(&span).ok_or(NoSuchSpan(span))?;
        self.declared.remove(&span);
        if let SpanEnd::Failed { kind, message } = end {
            let kind = kind.map(|kind| self.name(&kind)).filter(|kind| !kind.is_empty());
            let mut message = self.text(message, VALUE_MAX_BYTES);
            if !self.take(message.len()) {
                self.telemetry.drop_one(DroppedTelemetry::Attribute);
                message.clear();
            }
            ended.error(kind.as_deref().unwrap_or(names::GUEST_ERROR), &message);
        }
        Ok(())
    }

    fn find(&self, span: i64) -> Result<&Span, NoSuchSpan> {
        self.open.get(&span).ok_or(NoSuchSpan(span))
    }

    fn event(
        &mut self,
        name: &str,
        given: Attributes,
    ) -> Option<(String, Vec<(String, AttributeValue)>)> {
        let name = self.name(name);
        if !self.take(name.len()) {
            self.telemetry.drop_one(DroppedTelemetry::SpanEvent);
            return None;
        }
        Some((name, self.attributes(given)))
    }

    /// Returns those of `given` that fit the bounds.
    fn attributes(&mut self, given: Attributes) -> Vec<(String, AttributeValue)> {
        let mut kept = Vec::new();
        for (name, value) in given {
            if self.left_bytes < OVERHEAD_BYTES {
                self.telemetry.drop_one(DroppedTelemetry::Attribute);
                continue;
            }
            let name = self.name(&name);
            let value = self.value(value);
            let usable = !name.is_empty() && !name.starts_with(names::HOST_PREFIX);
            if usable && self.take(name.len() + value.len()) {
                kept.push((name, value));
            } else {
                self.telemetry.drop_one(DroppedTelemetry::Attribute);
            }
        }
        kept
    }

    fn value(&self, value: Json) -> AttributeValue {
        match self.telemetry.redactor.json(value) {
            Json::Bool(flag) => AttributeValue::Flag(flag),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => AttributeValue::Number(whole),
                (None, Some(fraction)) => AttributeValue::Fraction(fraction),
                (None, None) => AttributeValue::Text(number.to_string()),
            },
            Json::String(text) => AttributeValue::Text(cut(&text, VALUE_MAX_BYTES)),
            other => AttributeValue::Text(cut(&other.to_string(), VALUE_MAX_BYTES)),
        }
    }

    fn name(&self, name: &str) -> String {
        self.text(name.trim().to_owned(), NAME_MAX_BYTES)
    }

    fn text(&self, text: String, max: u32) -> String {
        cut(&self.telemetry.redactor.text(text), max)
    }

    fn take(&mut self, bytes: usize) -> bool {
        let cost = bytes + OVERHEAD_BYTES;
        let RunTelemetry { tenant, rates, .. } = &*self.telemetry;
        let fits = cost <= self.left_bytes && rates.spans.take(tenant, cost);
        if fits {
            self.left_bytes -= cost;
        }
        fits
    }
}

/// Ends the spans that are open when the run ends.
impl Drop for Spans {
    fn drop(&mut self) {
        // The innermost first, as a guest would end them.
        while let Some((_, span)) = self.open.pop_last() {
            span.error(names::UNFINISHED, "the run ended before this span did");
        }
    }
}

/// The value of a guest's attribute.
enum AttributeValue {
    Text(String),
    Number(i64),
    Fraction(f64),
    Flag(bool),
}

impl AttributeValue {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Number(_) | Self::Fraction(_) | Self::Flag(_) => 8,
        }
    }
}

fn to_guest_attributes(attributes: &[(String, AttributeValue)]) -> Vec<GuestAttribute<'_>> {
    let value = |held| match held {
        &AttributeValue::Number(number) => Value::Number(number),
        &AttributeValue::Fraction(number) => Value::Fraction(number),
        &AttributeValue::Flag(flag) => Value::Flag(flag),
        AttributeValue::Text(text) => Value::Text(text),
    };
    attributes.iter().map(|(name, held)| (name.as_str(), value(held))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::{Redactor, Secret};
    use crate::testing::dispatch_span;
    use sandglass_model::TraceContext;
    use sandglass_telemetry::Metrics;
    use sandglass_telemetry::trace::{CapturedSpan, CapturedSpans};
    use serde_json::json;

    fn spans() -> (Spans, CapturedSpans) {
        spans_of(TraceContext::root([9; 24]))
    }

    fn spans_of(context: TraceContext) -> (Spans, CapturedSpans) {
        let (dispatch, captured) = dispatch_span(context);
        let redactor = Redactor::default();
        redactor.hide(&Secret::new("hunter22"));
        let telemetry = RunTelemetry::of_tests(redactor, Metrics::disabled());
        let grants = Grants { spans: vec!["web_search".to_owned()], ..Grants::none() };
        let (telemetry, dispatch) = (Arc::new(telemetry), Arc::new(dispatch));
        (Spans::new(telemetry, dispatch, context.span_id, Arc::new(grants)), captured)
    }

    fn start(spans: &mut Spans, name: &str) -> i64 {
        spans.start(None, name, Kind::Internal, Vec::new()).expect("no parent was named")
    }

    fn named(captured: &CapturedSpans, name: &str) -> CapturedSpan {
        captured.spans().into_iter().find(|span| span.name == name).expect("it has ended")
    }

    #[test]
    fn a_span_belongs_to_the_innermost_open_one_or_to_the_dispatch() {
        let (mut spans, captured) = spans();
        let outer = start(&mut spans, "outer");
        let inner = start(&mut spans, "inner");
        spans.end(inner, Vec::new(), SpanEnd::Done).expect("open");
        let chosen = spans.start(Some(outer), "chosen", Kind::Client, Vec::new()).expect("open");
        for span in [outer, chosen] {
            spans.end(span, Vec::new(), SpanEnd::Done).expect("open, in any order");
        }
        drop(spans);
        let outer = named(&captured, "outer");
        assert_eq!(outer.parent, Some(named(&captured, names::DISPATCH).span_id));
        assert_eq!(named(&captured, "inner").parent, Some(outer.span_id));
        assert_eq!(named(&captured, "chosen").parent, Some(outer.span_id));
    }

    #[test]
    fn handles_are_valid_only_while_their_span_is_open() {
        let (mut spans, _captured) = spans();
        let span = start(&mut spans, "a");
        assert!(span > 0);
        for wrong in [0, 1, -1, span + 1, i64::MIN, i64::MAX] {
            assert_eq!(spans.set_attributes(wrong, Vec::new()), Err(NoSuchSpan(wrong)));
            assert_eq!(spans.add_event(wrong, "e", Vec::new()), Err(NoSuchSpan(wrong)));
            assert_eq!(spans.end(wrong, Vec::new(), SpanEnd::Done), Err(NoSuchSpan(wrong)));
            assert!(spans.start(Some(wrong), "b", Kind::Internal, Vec::new()).is_err());
        }
        spans.end(span, Vec::new(), SpanEnd::Done).expect("open");
        assert!(spans.end(span, Vec::new(), SpanEnd::Done).is_err(), "it has ended");
    }

    #[test]
    fn the_handle_of_one_run_is_refused_in_another() {
        let (mut one, _captured) = spans_of(TraceContext::root([1; 24]));
        let (mut other, _captured) = spans_of(TraceContext::root([2; 24]));
        let span = start(&mut one, "a");
        start(&mut other, "a");
        assert_eq!(other.end(span, Vec::new(), SpanEnd::Done), Err(NoSuchSpan(span)));
    }

    #[test]
    fn a_flood_of_spans_is_bounded() {
        let (mut spans, captured) = spans();
        let long = "x".repeat(5000);
        for _ in 0..SPANS_MAX * 2 {
            let span = start(&mut spans, &long);
            let attributes = (0..4).map(|nth| (nth.to_string(), json!(long))).collect();
            assert!(spans.add_event(span, &long, attributes).is_ok());
        }
        for _ in 0..HANDLES_MAX {
            start(&mut spans, "x");
        }
        assert!(spans.open.len() < usize::try_from(HANDLES_MAX).expect("small"));
        drop(spans);
        let spans = captured.spans();
        let own: Vec<_> = spans.iter().filter(|span| span.name != names::DISPATCH).collect();
        assert!(own.len() <= SPANS_MAX as usize && !own.is_empty());
        let bytes: usize = own
            .iter()
            .flat_map(|span| &span.events)
            .map(|event| event.attributes.values().map(String::len).sum::<usize>())
            .sum();
        assert!(bytes <= SPAN_BYTES && bytes > SPAN_BYTES / 2, "{bytes}");
    }

    #[test]
    fn spans_that_are_open_when_the_run_ends_are_unfinished() {
        let (mut spans, captured) = spans();
        start(&mut spans, "a");
        drop(spans);
        let span = named(&captured, "a");
        assert_eq!(span.attributes[names::ERROR_TYPE], names::UNFINISHED);
    }

    #[test]
    fn secrets_and_names_of_host_attributes_are_removed() {
        let (mut spans, captured) = spans();
        let attributes = vec![
            ("key".to_owned(), json!({"token": "hunter22"})),
            (names::ENTITY_ID.to_owned(), json!("another")),
            ("ratio".to_owned(), json!(0.5)),
        ];
        let span = spans.start(None, "with hunter22", Kind::Internal, attributes).expect("started");
        let failed = SpanEnd::Failed { kind: None, message: "bad hunter22\u{1b}".to_owned() };
        spans.end(span, Vec::new(), failed).expect("open");
        let span = &captured.spans()[0];
        assert_eq!(span.name, "with [redacted]");
        assert_eq!(span.attributes["key"], r#"{"token":"[redacted]"}"#);
        assert_eq!(span.attributes["ratio"], "0.5");
        assert!(!span.attributes.contains_key(names::ENTITY_ID));
        assert_eq!(span.attributes[names::ERROR_TYPE], names::GUEST_ERROR);
        assert_eq!(span.error.as_deref(), Some("bad [redacted]\\u{1b}"));
    }

    #[test]
    fn a_tenant_above_its_rate_has_its_spans_dropped_and_counted() {
        let (mut spans, captured) = spans();
        let telemetry = Arc::clone(&spans.telemetry);
        while telemetry.rates.spans.take(&telemetry.tenant, 64) {}
        spans.start(None, "x", Kind::Internal, vec![]).expect("a handle");
        drop(spans);
        assert_eq!(telemetry.dropped().spans, 1);
        assert!(captured.spans().iter().all(|span| span.name == names::DISPATCH));
    }

    #[test]
    fn only_the_innermost_open_span_names_what_is_running_and_only_if_it_is_declared() {
        let (mut spans, _) = spans();
        let start = |spans: &mut Spans, name: &str| {
            spans.start(None, name, Kind::Internal, Vec::new()).expect("a span")
        };
        assert_eq!(spans.innermost_declared(), None);
        let search = start(&mut spans, " web_search ");
        assert_eq!(spans.innermost_declared(), Some("web_search"));
        let parse = start(&mut spans, "parse");
        assert_eq!(spans.innermost_declared(), None, "the guest is not waiting for the search");
        spans.end(parse, Vec::new(), SpanEnd::Done).expect("it is open");
        assert_eq!(spans.innermost_declared(), Some("web_search"));
        spans.end(search, Vec::new(), SpanEnd::Done).expect("it is open");
        assert_eq!(spans.innermost_declared(), None);
    }
}
