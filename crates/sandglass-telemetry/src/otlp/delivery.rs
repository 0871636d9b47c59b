//! How spans reach the collector, or don't: they wait in a bounded queue, nobody waits
//! for them, and each that goes nowhere is counted.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::trace::Status;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanProcessor,
};

use super::client::LastFailure;
use super::cutting;
use super::settings::{Batch, Limits};
use crate::Metrics;
use crate::metrics::SpansDropped;
use crate::trace::names;

/// Hands spans to a thread that exports them. It refuses those that the queue has no room
/// for itself, since the queue says of them only that there are some.
#[derive(Debug)]
pub(super) struct Queue {
    batches: BatchSpanProcessor,
    room: Room,
    losses: Losses,
}

/// How many spans may wait, of each kind that is told apart: those that come by the million
/// leave room to those that say what became of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    /// Of what happens inside a run: its host calls, and what its guest tells.
    inside: usize,
    /// Of those of them that failed.
    failed: usize,
    /// Of runs, transitions and requests.
    all: usize,
}

impl Room {
    const fn of(queue: usize) -> Self {
        Self { inside: queue - queue.div_ceil(4), failed: queue - queue.div_ceil(8), all: queue }
    }

    fn to(self, span: &SpanData) -> usize {
        match &*span.name {
            names::DISPATCH | names::TRANSITION | names::REQUEST => self.all,
            _ if matches!(span.status, Status::Error { .. }) => self.failed,
            _ => self.inside,
        }
    }
}

/// Counts spans that are exported nowhere, and those that wait.
#[derive(Clone, Debug)]
pub(super) struct Losses {
    waiting: Arc<AtomicUsize>,
    /// Spans that are on their way, and of which the collector has said nothing yet.
    sent: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    refusal: Arc<Mutex<Option<String>>>,
    metrics: Metrics,
}

impl Losses {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            waiting: Arc::default(),
            sent: Arc::default(),
            lost: Arc::default(),
            refusal: Arc::default(),
            metrics: metrics.clone(),
        }
    }

    /// Spans that were not exported; once the exporter has stopped, those are among them that
    /// still wait, in the queue or for an answer.
    pub(super) fn at_the_end(&self) -> u64 {
        self.lost.load(Ordering::Relaxed) + self.unanswered()
    }

    /// Spans that wait in the queue or for an answer.
    pub(super) fn unanswered(&self) -> u64 {
        let sent = self.sent.load(Ordering::Relaxed);
        (self.waiting.load(Ordering::Relaxed) + sent) as u64
    }

    /// Why spans were not taken when that last happened.
    pub(super) fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, reason: SpansDropped, spans: u64) {
        self.lost.fetch_add(spans, Ordering::Relaxed);
        self.metrics.spans_dropped(reason, spans);
    }
}

impl Queue {
    pub(super) fn new(
        exporter: SpanExporter,
        batch: &Batch,
        limits: &Limits,
        losses: Losses,
        failure: LastFailure,
    ) -> Self {
        let exporter = Watched {
            exporter,
            failure,
            failing: AtomicBool::new(false),
            value_chars: limits.value_chars,
            losses: losses.clone(),
        };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(batch.queue)
            .with_max_export_batch_size(batch.size)
            .with_scheduled_delay(batch.delay)
            .build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        Self { batches, room: Room::of(batch.queue), losses }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let waiting = &self.losses.waiting;
        if waiting.fetch_add(1, Ordering::Relaxed) < self.room.to(&span) {
            self.batches.on_end(span);
        } else {
            waiting.fetch_sub(1, Ordering::Relaxed);
            self.losses.add(SpansDropped::QueueFull, 1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}

/// Says in the log when the collector stops taking spans and when it does again;
/// the exporter itself is silent.
#[derive(Debug)]
struct Watched {
    exporter: SpanExporter,
    failure: LastFailure,
    failing: AtomicBool,
    value_chars: Option<usize>,
    losses: Losses,
}

impl opentelemetry_sdk::trace::SpanExporter for Watched {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        if let Some(most) = self.value_chars {
            batch.iter_mut().for_each(|span| cutting::cut_values(span, most));
        }
        // They have left the queue, whatever becomes of them.
        self.losses.sent.fetch_add(spans, Ordering::Relaxed);
        self.losses.waiting.fetch_sub(spans, Ordering::Relaxed);
        let result = self.exporter.export(batch).await;
        let failed_before = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) => {
                let error = self.failure.or(error);
                self.losses.add(SpansDropped::NotTaken, spans as u64);
                if !failed_before {
                    tracing::warn!(%error, spans, "failed to export spans; they are dropped until the collector answers");
                }
                *self.losses.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
            Ok(()) if failed_before => tracing::info!("spans are exported again"),
            Ok(()) => {}
        }
        self.losses.sent.fetch_sub(spans, Ordering::Relaxed);
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_room_for_runs_that_nothing_inside_them_takes() {
        for queue in [1, 2, 3, 10, 2048] {
            let room = Room::of(queue);
            assert!(room.inside <= room.failed && room.failed < room.all, "{room:?}");
            assert_eq!(room.all, queue);
        }
        assert_eq!(Room::of(2048), Room { inside: 1536, failed: 1792, all: 2048 });
    }
}
