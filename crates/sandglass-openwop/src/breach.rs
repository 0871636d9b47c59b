//! Spans of breaches of the limits of runs. A breach of a node is part of the span of its dispatch.

use sandglass_model::{EntityRef, Event, LimitBreached, Record, TraceContext};
use sandglass_telemetry::trace::{Kind, SpanStart, Tracer, names};
use sandglass_workflow::event::CapKind;
use sha2::{Digest as _, Sha256};

/// Exports breaches as spans, from records in their order.
#[derive(Debug)]
pub(crate) struct Breaches {
    tracer: Tracer,
    /// The last transition, and whose: a breach follows from one in the same batch.
    last: Option<(EntityRef, TraceContext)>,
}

impl Breaches {
    pub(crate) const fn new(tracer: Tracer) -> Self {
        Self { tracer, last: None }
    }

    /// Exports the breach that a record of a run contains, if it does.
    pub(crate) fn observe(&mut self, run: &EntityRef, record: &Record) {
        match &record.event {
            Event::Transition { trace, .. } => self.last = Some((run.clone(), *trace)),
            Event::LimitBreached(breach) if self.tracer.is_enabled() => self.export(run, breach),
            _ => {}
        }
    }

    fn export(&self, run: &EntityRef, breach: &LimitBreached) {
        let Some(kind) = CapKind::of_run(breach.limit).map(CapKind::as_str) else { return };
        let parent = self.last.as_ref().filter(|(of, _)| of == run).map(|(_, trace)| *trace);
        let digest = Sha256::new()
            .chain_update(run.to_string())
            .chain_update(breach.run_seq.unwrap_or_default().to_be_bytes())
            .chain_update(kind)
            .finalize();
        let mut bytes = [0; 24];
        bytes.copy_from_slice(&digest[..24]);
        let own = TraceContext::root(bytes);
        // A child of the transition that it follows from, if that is known.
        let context = parent.map_or(own, |parent| TraceContext { span_id: own.span_id, ..parent });
        let span = self.tracer.start(&SpanStart {
            name: names::CAP_BREACHED,
            kind: Kind::Internal,
            context,
            parent,
            links: &[],
            attributes: &[
                (names::ENTITY_TYPE, run.entity_type().into()),
                (names::ENTITY_ID, run.id().into()),
                (names::CAP_KIND, kind.into()),
                (names::CAP_LIMIT, breach.threshold.into()),
                (names::CAP_OBSERVED, breach.observed.into()),
            ],
        });
        span.error(kind, "a bound of the run was breached");
        span.end();
    }
}
