//! Exports spans over OTLP, where the standard environment variables ask for it.
//!
//! Spans wait in a bounded queue for a thread of their own; where the collector
//! is slow or dead they are dropped, and nobody waits.

mod client;
mod cutting;
mod delivery;
mod environment;
mod pairs;
mod sampler;
mod settings;
mod unserved;

use std::time::Duration;

use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanLimits};

use crate::Metrics;
use crate::trace::{DecidedIds, Tracer};
use client::{Client, LastFailure};
use delivery::{Losses, Queue};
pub use environment::InvalidSetting;
use settings::{Asked, Sampling, Settings};

/// An exporter of spans.
#[derive(Debug)]
pub struct Otlp {
    provider: SdkTracerProvider,
    losses: Losses,
    failure: LastFailure,
}

/// What became of the spans of an exporter that has stopped.
#[derive(Debug)]
#[must_use = "it says whether spans were lost"]
pub struct ShutdownReport {
    /// Spans that were not exported since the exporter was set up: the queue was full, the
    /// collector didn't take them, or they still waited, in the queue or for its answer.
    pub lost: u64,
    /// Why the collector didn't take the last of those that it didn't take, with its address;
    /// none where it took all that it was sent.
    pub refusal: Option<String>,
    /// Why not all that waited could be exported in time, if so.
    pub error: Option<Error>,
}

/// Why spans can't be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An environment variable holds what can't be used: correct it.
    #[error(transparent)]
    Setting(#[from] InvalidSetting),
    /// The exporter could not be set up.
    #[error("failed to set up the export of spans: {0}")]
    SetUp(String),
    /// What was still waiting could not be exported in time: it is lost.
    #[error("failed to export the last spans: {0}")]
    Shutdown(String),
}

/// The exporter that the environment asks for; none where it names neither an
/// endpoint nor an exporter. Spans that it loses are counted in `metrics`. A variable that
/// asks for something in vain is noted in the log.
///
/// # Errors
/// A variable holds what can't be used, whether anything is to be exported or not.
pub fn from_env(metrics: &Metrics) -> Result<Option<Otlp>, Error> {
    let variable =
        |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    from_variables(variable, metrics)
}

/// The same as [`from_env`], with the environment given.
///
/// # Errors
/// As [`from_env`].
pub fn from_variables(
    variable: impl Fn(&str) -> Option<String>,
    metrics: &Metrics,
) -> Result<Option<Otlp>, Error> {
    let Asked { settings, ignored } = Asked::read(&variable)?;
    settings::tell(&ignored);
    settings.map(|settings| Otlp::new(&settings, metrics)).transpose()
}

impl Otlp {
    fn new(settings: &Settings, metrics: &Metrics) -> Result<Self, Error> {
        // The HTTP client wants a TLS provider even for plain HTTP. That there is
        // one already is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if settings.sends_headers_in_clear_text() {
            tracing::warn!(
                "the headers of OTEL_EXPORTER_OTLP_HEADERS are sent to the collector in clear \
                 text; name its address with https:// if one of them is a key"
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
        let sampled = match settings.sampler.clone() {
            Sampling::ParentBased(sampler) => SdkTracerProvider::builder().with_sampler(sampler),
            Sampling::Own(sampler) => SdkTracerProvider::builder().with_sampler(sampler),
        };
        let provider = sampled
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

    /// Exports what is left and stops; answers what was lost. Blocks the thread for at most
    /// `timeout`.
    pub fn shutdown(self, timeout: Duration) -> ShutdownReport {
        let stopped = self.provider.shutdown_with_timeout(timeout);
        let error = stopped.err().map(|error| {
            // The provider gives all errors the same kind.
            Error::Shutdown(if self.losses.unanswered() > 0 {
                let collector = self.failure.collector();
                format!("the collector at {collector} had not taken them after {timeout:?}")
            } else {
                self.failure.or(&error)
            })
        });
        ShutdownReport { lost: self.losses.at_the_end(), refusal: self.losses.refusal(), error }
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
