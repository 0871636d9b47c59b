//! The spans of a run's host calls. A guest may make millions of calls, so the first ones have
//! a span, and of the others those that somebody would look for: calls that failed or took
//! long, up to a bound, and the one that the run ended in, always.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::TraceContext;
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::DroppedTelemetry;
use sandglass_telemetry::trace::{Kind, names};

use crate::capability::speaker::Speaker;
use crate::functions::{FunctionId, Functions};
use crate::measured;
use crate::measured::Measured;

/// Calls of one run that have a span because they are its first: enough for all calls of a
/// handler that does what it says, and some hundred bytes each until they are exported.
const FIRST_MAX: u32 = 128;

/// Later calls of one run that have a span because they failed or took long.
const LATER_MAX: u32 = 128;

/// How long a later call takes that is worth a span: what somebody would notice who looks at
/// where the seconds of a run went.
const LONG: Duration = Duration::from_millis(100);

/// What becomes of the calls of one run in its trace.
#[derive(Debug)]
pub struct CallSpans {
    dispatch: Arc<Span>,
    /// Of the call that is under way; nobody's where that has none, or none is under way.
    present: Span,
    /// The call that is under way, where it has no span.
    spanless: Option<Spanless>,
    first: u32,
    later: u32,
    unrecorded: u64,
    speaker: Option<Arc<Speaker>>,
}

measured!(CallSpans: dispatch, present, spanless, first, later, unrecorded, speaker);

/// A call that may get its span when it is over.
#[derive(Debug)]
struct Spanless {
    function: FunctionId,
    /// The type and the id of the entity that it asks, and for what.
    asks: Option<[String; 3]>,
}

impl Measured for Spanless {
    fn uncharged_bytes(&self) -> u64 {
        let Self { function: _, asks } = self;
        asks.iter().flatten().map(String::uncharged_bytes).sum()
    }
}

impl CallSpans {
    /// Of a store in which nothing runs.
    pub fn idle() -> Self {
        Self::new(Arc::new(Span::disabled()), None)
    }

    /// Below `dispatch`; what has no span is counted as the `speaker`'s, if there is one.
    pub fn new(dispatch: Arc<Span>, speaker: Option<Arc<Speaker>>) -> Self {
        Self {
            dispatch,
            present: Span::disabled(),
            spanless: None,
            first: 0,
            later: 0,
            unrecorded: 0,
            speaker,
        }
    }

    /// A call of `function` begins.
    #[inline]
    pub fn begin(&mut self, function: FunctionId, functions: &Functions) {
        if self.dispatch.is_recorded() {
            self.begin_seen(function, functions);
        }
    }

    fn begin_seen(&mut self, function: FunctionId, functions: &Functions) {
        if self.first < FIRST_MAX {
            self.first += 1;
            let attributes = [(names::FUNCTION, functions.name(function).into())];
            self.present = self.dispatch.child(names::HOST_CALL, Kind::Internal, &attributes);
        } else {
            self.spanless = Some(Spanless { function, asks: None });
        }
    }

    /// The present call asks this entity for this action.
    pub fn asks(&mut self, entity_type: &str, id: &str, action: &str) {
        match &mut self.spanless {
            Some(spanless) => {
                spanless.asks = Some([entity_type, id, action].map(str::to_owned));
            }
            None => set_asked(&self.present, entity_type, id, action),
        }
    }

    /// Whether the call that is under way has no span yet.
    pub const fn is_waiting(&self) -> bool {
        self.spanless.is_some()
    }

    /// The ids of the present call's span, where it has one.
    pub fn context(&self) -> Option<TraceContext> {
        self.present.context()
    }

    /// The present call is over, which has taken `took`.
    #[inline]
    pub fn end(&mut self, took: Duration, has_failed: bool, functions: &Functions) {
        if self.spanless.is_some() {
            self.end_spanless(took, has_failed, functions);
        } else if self.present.is_recorded() {
            self.present = Span::disabled();
        }
    }

    fn end_spanless(&mut self, took: Duration, has_failed: bool, functions: &Functions) {
        if (has_failed || took >= LONG) && self.later < LATER_MAX {
            self.later += 1;
            self.open(took, functions);
            self.present = Span::disabled();
        } else {
            self.spanless = None;
            self.unrecorded += 1;
        }
    }

    /// Says that the present call was ended, which has taken `took` until now.
    pub fn error(&mut self, took: Duration, error_type: &str, why: &str, functions: &Functions) {
        if self.spanless.is_some() && self.later < LATER_MAX {
            self.later += 1;
            self.open(took, functions);
        }
        self.present.error(error_type, why);
    }

    /// The run ends in the present call, which has taken `took`: it has a span in any case.
    pub fn cut(&mut self, took: Duration, functions: &Functions) {
        self.open(took, functions);
    }

    /// Gives the present call a span, if it has none, as of when it began.
    fn open(&mut self, took: Duration, functions: &Functions) {
        let Some(Spanless { function, asks }) = self.spanless.take() else { return };
        let attributes = [(names::FUNCTION, functions.name(function).into())];
        let span = self.dispatch.child_since(took, names::HOST_CALL, Kind::Internal, &attributes);
        if let Some([entity_type, id, action]) = asks {
            set_asked(&span, &entity_type, &id, &action);
        }
        self.present = span;
    }
}

fn set_asked(span: &Span, entity_type: &str, id: &str, action: &str) {
    span.set(&[
        (names::ENTITY_TYPE, entity_type.into()),
        (names::ENTITY_ID, id.into()),
        (names::ACTION, action.into()),
    ]);
}

/// The run is over: how many of its calls have no span is told with it.
impl Drop for CallSpans {
    fn drop(&mut self) {
        if self.unrecorded > 0 {
            self.dispatch.set(&[(names::UNRECORDED, self.unrecorded.into())]);
            if let Some(speaker) = &self.speaker {
                speaker.drop_many(DroppedTelemetry::HostCallSpan, self.unrecorded);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Class;
    use crate::secret::Redactor;
    use sandglass_telemetry::trace::{CapturedSpan, CapturedSpans};
    use sandglass_telemetry::{Metrics, SpanStart, Tracer};

    const SHORT: Duration = Duration::from_micros(1);

    fn spans() -> (CallSpans, CapturedSpans, Functions, FunctionId) {
        let (tracer, captured) = Tracer::capturing();
        let dispatch = tracer.start(&SpanStart {
            name: names::DISPATCH,
            kind: Kind::Internal,
            context: TraceContext::root([9; 24]),
            parent: None,
            links: &[],
            attributes: &[],
        });
        let metrics = Metrics::disabled();
        let speaker = Arc::new(Speaker::of_tests(Redactor::default(), metrics));
        let mut functions = Functions::default();
        let function =
            functions.add_bare("env", "host_ask", Class::Async, crate::functions::Reads::Numbers);
        (CallSpans::new(Arc::new(dispatch), Some(speaker)), captured, functions, function)
    }

    fn calls(captured: &CapturedSpans) -> Vec<CapturedSpan> {
        captured.spans().into_iter().filter(|span| span.name == names::HOST_CALL).collect()
    }

    #[test]
    fn beyond_the_first_calls_only_those_that_failed_or_took_long_have_a_span() {
        let (mut spans, captured, functions, function) = spans();
        let mut call = |took, has_failed| {
            spans.begin(function, &functions);
            spans.end(took, has_failed, &functions);
            calls(&captured).len()
        };
        for nth in 1..=FIRST_MAX as usize {
            assert_eq!(call(SHORT, false), nth);
        }
        let first = FIRST_MAX as usize;
        assert_eq!(call(SHORT, false), first);
        assert_eq!(call(SHORT, true), first + 1);
        assert_eq!(call(LONG, false), first + 2);
        for _ in 0..LATER_MAX * 2 {
            call(LONG, true);
        }
        assert_eq!(call(LONG, true), first + LATER_MAX as usize);
        drop(spans);
        let spans = captured.spans();
        let dispatch = spans.iter().find(|span| span.name == names::DISPATCH).expect("ended");
        let unrecorded = 1 + LATER_MAX + 2 + 1;
        assert_eq!(dispatch.attributes[names::UNRECORDED], unrecorded.to_string());
    }

    #[test]
    fn the_call_that_the_run_ends_in_has_a_span_beyond_every_bound() {
        let (mut spans, captured, functions, function) = spans();
        for _ in 0..FIRST_MAX + LATER_MAX {
            spans.begin(function, &functions);
            spans.end(LONG, true, &functions);
        }
        spans.begin(function, &functions);
        spans.asks("Ledger", "l-1", "Reserve");
        spans.cut(SHORT, &functions);
        spans.error(SHORT, names::UNFINISHED, "the run ended", &functions);
        drop(spans);
        let calls = calls(&captured);
        assert_eq!(calls.len(), (FIRST_MAX + LATER_MAX) as usize + 1);
        let last = calls.last().expect("there are some");
        assert_eq!(last.attributes[names::ERROR_TYPE], names::UNFINISHED);
        assert_eq!(last.attributes[names::FUNCTION], "host_ask");
        assert_eq!(last.attributes[names::ENTITY_ID], "l-1");
        let dispatch = captured.spans().pop().expect("it ends last");
        assert!(!dispatch.attributes.contains_key(names::UNRECORDED), "{dispatch:?}");
    }

    #[test]
    fn calls_of_a_run_that_nobody_sees_are_not_counted() {
        let mut spans = CallSpans::idle();
        let mut functions = Functions::default();
        let function =
            functions.add_bare("env", "host_log", Class::Instant, crate::functions::Reads::Numbers);
        for _ in 0..FIRST_MAX * 2 {
            spans.begin(function, &functions);
            spans.end(LONG, true, &functions);
        }
        assert_eq!((spans.first, spans.unrecorded), (0, 0));
        assert!(spans.context().is_none());
    }
}
