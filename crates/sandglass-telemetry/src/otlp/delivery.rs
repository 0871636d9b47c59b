//! The delivery of spans: a bounded queue that never blocks, and a count of the lost spans.

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
use super::settings::{Batch, Limits};
use super::truncate;
use crate::Metrics;
use crate::metrics::SpansDropped;
use crate::trace::names;

/// Passes spans to a thread that exports them. It checks the bounds itself, because the SDK's queue does
/// not count the spans that it drops.
#[derive(Debug)]
pub(super) struct Queue {
    batches: BatchSpanProcessor,
    capacity: Capacity,
    losses: Losses,
}

/// How many spans of each kind may wait. The frequent ones leave some capacity to those that show the
/// outcome of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capacity {
    /// For spans inside a handler: host calls, and spans of the guest.
    inside: usize,
    /// For such spans that failed.
    failed: usize,
    /// For handlers, transitions and requests.
    all: usize,
}

impl Capacity {
    const fn of(queue: usize) -> Self {
        Self { inside: queue - queue.div_ceil(4), failed: queue - queue.div_ceil(8), all: queue }
    }

    fn limit(self, span: &SpanData) -> usize {
        match &*span.name {
            names::DISPATCH | names::TRANSITION | names::REQUEST => self.all,
            _ if matches!(span.status, Status::Error { .. }) => self.failed,
            _ => self.inside,
        }
    }
}

/// Counts lost and waiting spans.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    waiting: Arc<AtomicUsize>,
    /// Spans that were sent, and to which the collector has not responded yet.
    sent: Arc<AtomicUsize>,
    lost: Arc<AtomicU64>,
    refusal: Arc<Mutex<Option<String>>>,
    metrics: Metrics,
}

impl Losses {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self { metrics: metrics.clone(), ..Self::default() }
    }

    /// All lost spans after the exporter has stopped, including those that still wait.
    pub(super) fn total(&self) -> u64 {
        self.lost.load(Ordering::Relaxed) + self.unanswered()
    }

    /// Spans that wait in the queue or for a response.
    pub(super) fn unanswered(&self) -> u64 {
        let sent = self.sent.load(Ordering::Relaxed);
        (self.waiting.load(Ordering::Relaxed) + sent) as u64
    }

    /// Why spans were not accepted, when that last happened.
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
        let exporter = LoggingExporter {
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
        Self { batches, capacity: Capacity::of(batch.queue), losses }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let waiting = &self.losses.waiting;
        if waiting.fetch_add(1, Ordering::Relaxed) < self.capacity.limit(&span) {
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

/// Logs when the collector stops accepting spans, and when it accepts them again; the exporter itself logs
/// nothing.
#[derive(Debug)]
struct LoggingExporter {
    exporter: SpanExporter,
    failure: LastFailure,
    failing: AtomicBool,
    value_chars: Option<usize>,
    losses: Losses,
}

impl opentelemetry_sdk::trace::SpanExporter for LoggingExporter {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        if let Some(most) = self.value_chars {
            batch.iter_mut().for_each(|span| truncate::truncate_values(span, most));
        }
        // They have left the queue, whether or not they are accepted.
        self.losses.sent.fetch_add(spans, Ordering::Relaxed);
        self.losses.waiting.fetch_sub(spans, Ordering::Relaxed);
        let result = self.exporter.export(batch).await;
        let failed_before = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) => {
                let error = self.failure.or(error);
                self.losses.add(SpansDropped::NotTaken, spans as u64);
                if !failed_before {
                    tracing::warn!(%error, spans, "failed to export spans; spans are dropped until the collector responds");
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
    fn every_queue_has_capacity_that_only_handlers_can_use() {
        for queue in [1, 2, 3, 10, 2048] {
            let capacity = Capacity::of(queue);
            assert!(capacity.inside <= capacity.failed, "{capacity:?}");
            assert!(capacity.failed < capacity.all, "{capacity:?}");
            assert_eq!(capacity.all, queue);
        }
        assert_eq!(Capacity::of(2048), Capacity { inside: 1536, failed: 1792, all: 2048 });
    }
}
