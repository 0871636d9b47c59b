//! Exports spans over OTLP, if the standard environment variables request it.
//!
//! Spans wait in a bounded queue for a separate thread. If the collector is slow or dead, they are dropped,
//! so that no handler waits.

mod client;
mod delivery;
mod environment;
mod pairs;
mod sampler;
mod settings;
mod truncate;
mod unsupported;

use std::time::Duration;

use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanLimits};

use crate::Metrics;
use crate::trace::{DecidedIds, Tracer};
use client::{Client, LastFailure};
use delivery::{Losses, Queue};
pub use environment::InvalidSetting;
use settings::{Requested, Settings};

/// An exporter of spans.
#[derive(Debug)]
pub struct Otlp {
    provider: SdkTracerProvider,
    losses: Losses,
    failure: LastFailure,
}

/// The result of stopping an exporter.
#[derive(Debug)]
#[must_use = "it states whether spans were lost"]
pub struct ShutdownReport {
    /// How many spans were not exported since the exporter was set up: the queue was full, the collector
    /// did not accept them, or they still waited, in the queue or for its response.
    pub lost: u64,
    /// Why the collector did not accept spans, when that last happened, with its address; `None` if it
    /// accepted everything.
    pub refusal: Option<String>,
    /// Why waiting spans could not be exported in time, if so.
    pub error: Option<Error>,
}

/// Why spans cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The value of an environment variable is invalid.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The exporter could not be set up.
    #[error("failed to set up the export of spans: {0}")]
    SetUp(String),
    /// The waiting spans could not be exported in time, and are lost.
    #[error("failed to export the last spans: {0}")]
    Shutdown(String),
}

/// The exporter that the environment configures; `None` if it names neither an endpoint nor an exporter.
/// Lost spans are counted in `metrics`. Variables without effect are logged.
///
/// # Errors
/// Errors if the value of a variable is invalid, even if nothing is to be exported.
pub fn from_env(metrics: &Metrics) -> Result<Option<Otlp>, Error> {
    let variable =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    from_variables(variable, metrics)
}

/// As [`from_env`], with a given environment.
///
/// # Errors
/// As [`from_env`].
pub fn from_variables(
    variable: impl Fn(&str) -> Option<String>,
    metrics: &Metrics,
) -> Result<Option<Otlp>, Error> {
    let Requested { settings, ignored } = Requested::read(&variable)?;
    settings::log_ignored(&ignored);
    settings.map(|settings| Otlp::new(&settings, metrics)).transpose()
}

impl Otlp {
    fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, Error> {
        // The HTTP client needs a TLS provider even for plain HTTP. This fails if one is already
        // installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if settings.sends_headers_in_clear_text() {
            tracing::warn!(
                "the headers of OTEL_EXPORTER_OTLP_HEADERS are sent to the collector in clear \
                 text; use an https:// address if one of them is a key"
            );
        }
        let failure = LastFailure::of(&settings.endpoint);
        let client = Client::new(settings.timeout, failure.clone()).map_err(Error::SetUp)?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&settings.endpoint)
            .with_timeout(settings.timeout)
            .with_headers(settings.headers.clone().into_iter().collect())
            .build()
            .map_err(|error| Error::SetUp(error.to_string()))?;
        let losses = Losses::new(metrics);
        let queue = Queue::new(
            exporter,
            &settings.batch,
            &settings.limits,
            losses.clone(),
            failure.clone(),
        );
        let provider = SdkTracerProvider::builder()
            .with_sampler(settings.sampler.clone())
            .with_span_processor(queue)
            .with_span_limits(SpanLimits {
                max_attributes_per_span: settings.limits.attributes,
                max_events_per_span: settings.limits.events,
                max_links_per_span: settings.limits.links,
                max_attributes_per_event: settings.limits.attributes_of_an_event,
                max_attributes_per_link: settings.limits.attributes_of_a_link,
            })
            .with_id_generator(DecidedIds::default())
            .with_resource(resource(settings))
            .build();
        Ok(Self { provider, losses, failure })
    }

    /// A tracer whose spans are exported.
    #[must_use]
    pub fn tracer(&self) -> Tracer {
        Tracer::new(&self.provider)
    }

    /// Exports the waiting spans and stops. Blocks the thread for at most `timeout`.
    pub fn shutdown(self, timeout: Duration) -> ShutdownReport {
        let stopped = self.provider.shutdown_with_timeout(timeout);
        let error = stopped.err().map(|error| {
            // The provider does not distinguish a timeout from other errors.
            Error::Shutdown(if self.losses.unanswered() > 0 {
                let collector = &self.failure.collector;
                format!("the collector at {collector} had not accepted them after {timeout:?}")
            } else {
                self.failure.or(&error)
            })
        });
        ShutdownReport { lost: self.losses.total(), refusal: self.losses.refusal(), error }
    }
}

fn resource(settings: &Settings) -> Resource {
    let attributes = settings
        .resource
        .iter()
        .map(|(name, value)| opentelemetry::KeyValue::new(name.clone(), value.clone()));
    Resource::builder_empty()
        .with_detector(Box::new(opentelemetry_sdk::resource::TelemetryResourceDetector))
        .with_attributes(attributes)
        .build()
}
