//! The spans of a run's host calls. A guest may make millions of calls, so only these have a span: the
//! first ones; up to a bound, later ones that failed or took long; and always the one in which the
//! run ended.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::TraceContext;
use sandglass_telemetry::Span;
use sandglass_telemetry::metrics::DroppedTelemetry;
use sandglass_telemetry::trace::{Kind, names};

use crate::capability::run_telemetry::RunTelemetry;
use crate::functions::{FunctionId, Functions};
use crate::measured;
use crate::measured::Measured;

/// How many first calls of a run have a span: enough for all calls of a well-behaved handler. Each
/// span occupies a few hundred bytes until it is exported.
const FIRST_MAX: u32 = 128;

/// How many later calls of a run have a span because they failed or took long.
const LATER_MAX: u32 = 128;

/// From which duration a later call has a span: enough to matter to a reader who looks for the
/// seconds of a run.
const LONG: Duration = Duration::from_millis(100);

/// The spans of one run's calls.
#[derive(Debug)]
pub struct CallSpans {
    dispatch: Arc<Span>,
    /// The span of the present call; disabled if there is none.
    present: Span,
    /// The present call, if it has no span.
    spanless: Option<SpanlessCall>,
    first: u32,
    later: u32,
    unrecorded: u64,
    telemetry: Option<Arc<RunTelemetry>>,
}

measured!(CallSpans: dispatch, present, spanless, first, later, unrecorded, telemetry);

/// The span of a call whose guest goes on while it is in flight.
#[derive(Debug)]
pub(crate) struct SuspendedSpan {
    present: Span,
    spanless: Option<SpanlessCall>,
}

/// A call that may get its span when it ends.
#[derive(Debug)]
struct SpanlessCall {
    function: FunctionId,
    /// The type and the id of the entity that the call is for, and the action or signal.
    target: Option<[String; 3]>,
}

impl Measured for SpanlessCall {
    fn uncharged_bytes(&self) -> u64 {
        let Self { function: _, target } = self;
        target.iter().flatten().map(String::uncharged_bytes).sum()
    }
}

impl CallSpans {
    /// The spans of a store in which nothing runs.
    pub fn idle() -> Self {
        Self::new(Arc::new(Span::disabled()), None)
    }

    /// Creates spans below `dispatch`. The `telemetry` counts calls without one.
    pub fn new(dispatch: Arc<Span>, telemetry: Option<Arc<RunTelemetry>>) -> Self {
        Self {
            dispatch,
            present: Span::disabled(),
            spanless: None,
            first: 0,
            later: 0,
            unrecorded: 0,
            telemetry,
        }
    }

    /// A call of `function` begins.
    #[inline]
    pub fn begin(&mut self, function: FunctionId, functions: &Functions) {
        if self.dispatch.is_recorded() {
            self.begin_recorded(function, functions);
        }
    }

    fn begin_recorded(&mut self, function: FunctionId, functions: &Functions) {
        if self.first < FIRST_MAX {
            self.first += 1;
            let attributes = [(names::FUNCTION, functions.name(function).into())];
            self.present = self.dispatch.child(names::HOST_CALL, Kind::Internal, &attributes);
        } else {
            self.spanless = Some(SpanlessCall { function, target: None });
        }
    }

    /// Notes which entity the present call is for, and the action or signal.
    pub fn targets(&mut self, entity_type: &str, id: &str, name: &str) {
        match &mut self.spanless {
            Some(spanless) => {
                spanless.target = Some([entity_type, id, name].map(str::to_owned));
            }
            None => set_target(&self.present, entity_type, id, name),
        }
    }

    /// Takes the span of the present call, whose guest goes on.
    pub(crate) fn suspend(&mut self) -> SuspendedSpan {
        let present = mem::replace(&mut self.present, Span::disabled());
        SuspendedSpan { present, spanless: self.spanless.take() }
    }

    /// Makes a span that of the present call again.
    pub(crate) fn resume(&mut self, span: SuspendedSpan) {
        let SuspendedSpan { present, spanless } = span;
        (self.present, self.spanless) = (present, spanless);
    }

    /// Whether the present call has no span yet.
    pub const fn is_waiting(&self) -> bool {
        self.spanless.is_some()
    }

    /// The ids of the present call's span, if it has one.
    pub fn context(&self) -> Option<TraceContext> {
        self.present.context()
    }

    /// Ends the present call, which has taken `took`.
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

    /// Notes that the present call was ended, after `took`, and why.
    pub fn error(&mut self, took: Duration, error_type: &str, why: &str, functions: &Functions) {
        if self.spanless.is_some() && self.later < LATER_MAX {
            self.later += 1;
            self.open(took, functions);
        }
        self.present.error(error_type, why);
    }

    /// Gives the present call, which has taken `took`, a span that begins when the call did, if it has
    /// none. The call in which a run ends has one in any case.
    pub fn open(&mut self, took: Duration, functions: &Functions) {
        let Some(SpanlessCall { function, target }) = self.spanless.take() else { return };
        let attributes = [(names::FUNCTION, functions.name(function).into())];
        let span = self.dispatch.child_since(took, names::HOST_CALL, Kind::Internal, &attributes);
        if let Some([entity_type, id, name]) = target {
            set_target(&span, &entity_type, &id, &name);
        }
        self.present = span;
    }
}

fn set_target(span: &Span, entity_type: &str, id: &str, name: &str) {
    span.set(&[
        (names::ENTITY_TYPE, entity_type.into()),
        (names::ENTITY_ID, id.into()),
        (names::ACTION, name.into()),
    ]);
}

/// Adds to the dispatch's span how many calls have none.
impl Drop for CallSpans {
    fn drop(&mut self) {
        if self.unrecorded > 0 {
            self.dispatch.set(&[(names::UNRECORDED, self.unrecorded.into())]);
            if let Some(telemetry) = &self.telemetry {
                let RunTelemetry { metrics, integration, .. } = &**telemetry;
                let what = DroppedTelemetry::HostCallSpan;
                metrics.telemetry_dropped_many(integration, what, self.unrecorded);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Redactor;
    use crate::testing::{dispatch_span, functions};
    use sandglass_telemetry::Metrics;
    use sandglass_telemetry::trace::{CapturedSpan, CapturedSpans};

    const SHORT: Duration = Duration::from_micros(1);

    fn spans() -> (CallSpans, CapturedSpans, Functions, FunctionId) {
        let (dispatch, captured) = dispatch_span(TraceContext::root([9; 24]));
        let metrics = Metrics::disabled();
        let telemetry = Arc::new(RunTelemetry::of_tests(Redactor::default(), metrics));
        let (functions, [function]) = functions(["host_ask"]);
        (CallSpans::new(Arc::new(dispatch), Some(telemetry)), captured, functions, function)
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
        spans.targets("Ledger", "l-1", "Reserve");
        spans.open(SHORT, &functions);
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
    fn calls_of_a_run_without_a_trace_are_not_counted() {
        let mut spans = CallSpans::idle();
        let (functions, [function]) = functions(["host_log"]);
        for _ in 0..FIRST_MAX * 2 {
            spans.begin(function, &functions);
            spans.end(LONG, true, &functions);
        }
        assert_eq!((spans.first, spans.unrecorded), (0, 0));
        assert!(spans.context().is_none());
    }
}
