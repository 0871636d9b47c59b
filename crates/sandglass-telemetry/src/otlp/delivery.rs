//! How spans reach the collector, or don't: they wait in a bounded queue, nobody waits
//! for them, and each that goes nowhere is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Span, SpanData, SpanProcessor,
};

use super::settings::Batch;
use crate::Metrics;
use crate::metrics::SpansDropped;

/// Hands spans to a thread that exports them. It refuses those that the queue has no room
/// for itself, since the queue says of them only that there are some.
#[derive(Debug)]
pub(super) struct Queue {
    batches: BatchSpanProcessor,
    waiting: Arc<AtomicUsize>,
    most: usize,
    metrics: Metrics,
}

impl Queue {
    pub(super) fn new(exporter: SpanExporter, batch: &Batch, metrics: &Metrics) -> Self {
        let waiting = Arc::new(AtomicUsize::new(0));
        let exporter = Watched {
            exporter,
            failing: AtomicBool::new(false),
            waiting: Arc::clone(&waiting),
            metrics: metrics.clone(),
        };
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(batch.queue)
            .with_max_export_batch_size(batch.size)
            .with_scheduled_delay(batch.delay)
            .build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        Self { batches, waiting, most: batch.queue, metrics: metrics.clone() }
    }
}

impl SpanProcessor for Queue {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) < self.most {
            self.batches.on_end(span);
        } else {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            self.metrics.spans_dropped(SpansDropped::QueueFull, 1);
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
    failing: AtomicBool,
    waiting: Arc<AtomicUsize>,
    metrics: Metrics,
}

impl opentelemetry_sdk::trace::SpanExporter for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        // They have left the queue, whatever becomes of them.
        self.waiting.fetch_sub(spans, Ordering::Relaxed);
        let result = self.exporter.export(batch).await;
        let failed_before = self.failing.swap(result.is_err(), Ordering::Relaxed);
        match &result {
            Err(error) => {
                self.metrics.spans_dropped(SpansDropped::NotTaken, spans as u64);
                if !failed_before {
                    tracing::warn!(%error, spans, "failed to export spans; they are dropped until the collector answers");
                }
            }
            Ok(()) if failed_before => tracing::info!("spans are exported again"),
            Ok(()) => {}
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
