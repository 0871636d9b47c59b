//! What both servers are built on: their address, TLS, telemetry, the host and the journal.

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{CompileHelper, Host, Lease};
use sandglass_http::Tls;
use sandglass_model::{Clock, SystemClock};
use sandglass_postgres::Database;
use sandglass_runtime::SpecDecisions;
use sandglass_telemetry::Telemetry;
use sandglass_telemetry::otlp::{self, Otlp, ShutdownReport};
use sandglass_telemetry::prometheus::Exporter;
use tokio::net::TcpListener;
use tokio::time::{Interval, MissedTickBehavior};

use crate::error::{Error, Result};
use crate::journal;

/// How often the observations of metrics are taken in if no client scrapes them.
const METRICS_UPKEEP: Duration = Duration::from_secs(1);
/// How long the export of the last spans may take.
const EXPORT_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Base {
    pub(crate) tls: Option<Tls>,
    pub(crate) exporter: Exporter,
    otlp: Option<Otlp>,
    pub(crate) telemetry: Telemetry,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) host: Host,
}

impl Base {
    /// Starts telemetry and a host, whose effects outside depend on `lease`.
    pub(crate) fn start(
        tls: Option<Tls>,
        exporter: Exporter,
        settings: sandglass_host::Settings,
        compile_helper: CompileHelper,
        lease: Lease,
    ) -> Result<Self> {
        let metrics = exporter.metrics();
        let otlp = otlp::from_env(&metrics)?;
        let tracer = otlp.as_ref().map(Otlp::tracer).unwrap_or_default();
        let telemetry = Telemetry { metrics, tracer };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let host = Host::builder()
            .settings(settings)
            .clock(Arc::clone(&clock))
            .telemetry(telemetry.clone())
            .spec_evaluator(Arc::new(SpecDecisions))
            .compile_in(compile_helper)
            .lease(lease)
            .build()?;
        Ok(Self { tls, exporter, otlp, telemetry, clock, host })
    }

    pub(crate) fn url(&self, address: SocketAddr) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// Does the regular work of every server, until it cannot continue.
    pub(crate) async fn upkeep(&self, database: Option<&Database>, is_member: bool) -> Error {
        let keep = async {
            match database {
                Some(database) => journal::keep(database, is_member, &self.telemetry.metrics).await,
                None => pending().await,
            }
        };
        tokio::select! {
            why = keep => why,
            never = self.upkeep_metrics() => match never {},
        }
    }

    /// Takes in the observations of metrics, forever.
    async fn upkeep_metrics(&self) -> Infallible {
        let mut ticks = every(METRICS_UPKEEP);
        loop {
            ticks.tick().await;
            self.exporter.upkeep();
        }
    }

    /// Exports the last spans, or logs how many are lost.
    pub(crate) async fn export_spans(self) {
        let Some(otlp) = self.otlp else { return };
        let exported = tokio::task::spawn_blocking(move || otlp.shutdown(EXPORT_MAX)).await;
        if let Ok(ShutdownReport { lost, error: Some(error), .. }) = exported {
            tracing::warn!(%error, lost, "the last spans are lost");
        }
    }
}

/// Binds the address. This happens before the journal is opened, so that an address in use leaves no
/// trace in the journal.
pub(crate) fn listen(address: SocketAddr) -> Result<TcpListener> {
    sandglass_http::listen(address).map_err(Error::system(format!("cannot listen on {address}")))
}

/// Ticks, the first time at once. A late tick delays those after it.
pub(crate) fn every(time: Duration) -> Interval {
    #[expect(clippy::disallowed_methods, reason = "upkeep is not part of any decision")]
    let mut ticks = tokio::time::interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
