//! Which traces are exported: all of a trace, or nothing of it.
//!
//! The flag in a [`sandglass_model::TraceContext`] is set when a trace begins,
//! before any sampler is asked, and is then kept in the journal. So here a
//! sampled parent doesn't settle the matter, as OpenTelemetry's parent-based
//! sampler has it: the trace id is asked each time, and always answers the same.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt as _, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// Exports what `root` chooses, and nothing of a trace that its beginner doesn't
/// want to be exported.
#[derive(Clone, Debug)]
pub(super) struct WholeTraces {
    pub(super) root: Sampler,
}

impl ShouldSample for WholeTraces {
    fn should_sample(
        &self,
        parent: Option<&Context>,
        trace_id: TraceId,
        name: &str,
        kind: &SpanKind,
        attributes: &[KeyValue],
        links: &[Link],
    ) -> SamplingResult {
        let mut result = self.root.should_sample(parent, trace_id, name, kind, attributes, links);
        let unwanted = parent
            .filter(|parent| parent.has_active_span())
            .is_some_and(|parent| !parent.span().span_context().is_sampled());
        if unwanted {
            result.decision = SamplingDecision::Drop;
        }
        result
    }
}
