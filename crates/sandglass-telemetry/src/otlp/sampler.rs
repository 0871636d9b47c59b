//! The sampler: it exports a trace completely or not at all.
//!
//! The flag in a [`sandglass_model::TraceContext`] is set when a trace begins, before any sampler decides,
//! and is stored in the journal. So, unlike in OpenTelemetry's parent-based sampler, a sampled parent is
//! not sufficient: the root sampler decides by the trace id each time, always with the same result.

use opentelemetry::trace::{Link, SpanKind, TraceContextExt as _, TraceId};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{Sampler, SamplingDecision, SamplingResult, ShouldSample};

/// Exports the traces that `root` selects.
#[derive(Clone, Debug)]
pub(super) struct TraceSampler {
    pub(super) root: Sampler,
    /// Whether traces that their originator has excluded are not exported.
    pub(super) is_parent_based: bool,
}

impl ShouldSample for TraceSampler {
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
        let is_excluded = parent
            .filter(|parent| self.is_parent_based && parent.has_active_span())
            .is_some_and(|parent| !parent.span().span_context().is_sampled());
        if is_excluded {
            result.decision = SamplingDecision::Drop;
        }
        result
    }
}
