//! Spans have the ids that were decided before they started.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

use std::sync::Arc;

use sandglass_model::{DispatchId, TraceContext};
use sandglass_telemetry::trace::{Kind, names};
use sandglass_telemetry::{Span, SpanStart, Telemetry, Tracer};

pub(crate) fn start(name: &'static str, context: TraceContext) -> SpanStart<'static> {
    SpanStart { name, kind: Kind::Internal, context, parent: None, links: &[], attributes: &[] }
}

#[test]
fn a_span_has_the_ids_that_the_journal_names() {
    let (tracer, captured) = Tracer::capturing();
    let root = TraceContext::root([7; 24]);
    let run = root.of_dispatch(DispatchId::from_bytes([9; 16]), 1);
    let span = tracer.start(&SpanStart {
        parent: Some(root),
        attributes: &[(names::ENTITY_TYPE, "Session".into()), (names::ATTEMPT, 1_u32.into())],
        ..start(names::DISPATCH, run)
    });
    assert_eq!(span.context(), Some(run));
    span.set(&[(names::OUTCOME, "completed".into())]);
    span.end();
    tracer.start(&start(names::TRANSITION, root)).end();
    let spans = captured.spans();
    assert_eq!((spans[0].trace_id, spans[0].span_id), (run.trace_id, run.span_id));
    assert_eq!(spans[0].parent, Some(root.span_id));
    assert_eq!(spans[0].attributes[names::ENTITY_TYPE], "Session");
    assert_eq!(spans[0].attributes[names::ATTEMPT], "1");
    assert_eq!(spans[0].attributes[names::OUTCOME], "completed");
    assert_eq!((spans[1].span_id, spans[1].parent), (root.span_id, None));
}

#[test]
fn a_child_has_an_id_of_its_own_under_its_parent() {
    let (tracer, captured) = Tracer::capturing();
    let run = TraceContext::root([1; 24]);
    let span = tracer.start(&start(names::DISPATCH, run));
    let calls: Vec<Span> = (0..2)
        .map(|_| span.child(names::HOST_CALL, Kind::Client, &[(names::FUNCTION, "f".into())]))
        .collect();
    let ids: Vec<_> = calls.iter().filter_map(Span::context).map(|call| call.span_id).collect();
    assert_ne!(ids[0], ids[1]);
    drop(calls);
    drop(span);
    let spans = captured.spans();
    assert_eq!(spans.len(), 3);
    for (call, id) in spans.iter().zip(ids) {
        assert_eq!((call.trace_id, call.parent), (run.trace_id, Some(run.span_id)));
        assert_eq!(call.span_id, id);
    }
}

#[test]
fn a_parent_of_another_trace_becomes_a_link() {
    let (tracer, captured) = Tracer::capturing();
    let (own, stranger) = (TraceContext::root([1; 24]), TraceContext::root([2; 24]));
    tracer.start(&SpanStart { parent: Some(stranger), ..start(names::DISPATCH, own) }).end();
    let span = &captured.spans()[0];
    assert_eq!((span.trace_id, span.parent), (own.trace_id, None));
    assert_eq!(span.links, [stranger.span_id]);
}

#[test]
fn an_unsampled_parent_keeps_its_children_out() {
    let (tracer, captured) = Tracer::capturing();
    let parent = TraceContext { sampled: false, ..TraceContext::root([1; 24]) };
    let own = parent.of_dispatch(DispatchId::from_bytes([5; 16]), 1);
    let span = tracer.start(&SpanStart { parent: Some(parent), ..start(names::DISPATCH, own) });
    assert_eq!(span.context(), Some(own), "its ids are still those that were decided");
    span.child(names::HOST_CALL, Kind::Client, &[]).end();
    span.end();
    assert_eq!(captured.spans(), []);
}

#[test]
fn a_trace_that_begins_unsampled_is_not_exported() {
    let (tracer, captured) = Tracer::capturing();
    let root = TraceContext { sampled: false, ..TraceContext::root([1; 24]) };
    let span = tracer.start(&start(names::TRANSITION, root));
    span.child(names::HOST_CALL, Kind::Client, &[]).end();
    span.end();
    assert_eq!(captured.spans(), []);
}

#[test]
fn spans_started_on_many_threads_keep_their_own_ids() {
    let (tracer, captured) = Tracer::capturing();
    std::thread::scope(|scope| {
        for nth in 1..=8 {
            let tracer = &tracer;
            scope.spawn(move || {
                for attempt in 1..=100 {
                    let own = TraceContext::root([nth; 24])
                        .of_dispatch(DispatchId::from_bytes([nth; 16]), attempt);
                    let span = tracer.start(&start(names::DISPATCH, own));
                    assert_eq!(span.context(), Some(own));
                }
            });
        }
    });
    assert_eq!(captured.spans().len(), 800);
}

#[test]
fn a_span_can_be_shared_and_ends_with_its_last_holder() {
    let (tracer, captured) = Tracer::capturing();
    let span = Arc::new(tracer.start(&start(names::DISPATCH, TraceContext::root([1; 24]))));
    let other = Arc::clone(&span);
    std::thread::spawn(move || other.error(names::HANDLER_DEADLINE_EXCEEDED, "too late"))
        .join()
        .expect("no panic");
    assert_eq!(captured.spans(), []);
    drop(span);
    let spans = captured.spans();
    assert_eq!(spans[0].error.as_deref(), Some("too late"));
    assert_eq!(spans[0].attributes[names::ERROR_TYPE], "handler_deadline_exceeded");
}

#[test]
fn disabled_spans_do_nothing() {
    let telemetry = Telemetry::disabled();
    let span = telemetry.tracer.start(&start(names::DISPATCH, TraceContext::root([1; 24])));
    assert_eq!(span.context(), None);
    let call = span.child(names::HOST_CALL, Kind::Client, &[]);
    call.error("x", "y");
    assert_eq!(call.context(), None);
    assert_eq!(Span::disabled().context(), None);
}

#[test]
fn a_guest_names_spans_events_and_attributes_itself() {
    let (tracer, captured) = Tracer::capturing();
    let run = TraceContext::root([1; 24]);
    let span = tracer.start(&start(names::DISPATCH, run));
    let own = span.guest_child("tool.call", Kind::Client, &[("tool.name", "grep".into())]);
    own.set_guest_attributes(&[("cost", 0.5.into()), ("cached", true.into())]);
    own.guest_event("first.byte", &[("n", 7_i64.into())]);
    own.end();
    span.event(names::SOFT_DEADLINE_PASSED, &[]);
    span.end();
    let spans = captured.spans();
    assert_eq!((&*spans[0].name, spans[0].parent), ("tool.call", Some(run.span_id)));
    assert_eq!(spans[0].attributes["cost"], "0.5");
    assert_eq!(spans[0].events[0].name, "first.byte");
    assert_eq!(spans[0].events[0].attributes["n"], "7");
    assert_eq!(spans[1].events[0].name, names::SOFT_DEADLINE_PASSED);
}
