//! Serves the metrics over HTTP: `GET /metrics`, and nothing else. It uses hyper directly, because
//! `sandglass-http` is above this crate, and the server of the Prometheus crate has no bounds.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::Exporter;

/// Concurrent connections: a pair of Prometheus servers and some people.
const CONNECTIONS_MAX: usize = 16;
/// Largest request head, in bytes: the least that hyper accepts.
const HEAD_MAX_BYTES: usize = 8192;
/// How long a client may take for a request head, and be idle between two.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection may last: otherwise a client that reads slowly could hold it forever. Scrapers
/// reconnect.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(600);
/// How often observations are aggregated: often enough that a busy host holds at most a few megabytes of
/// them.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// The running server. Dropping it stops the server.
#[derive(Debug)]
pub struct Serving {
    local_addr: SocketAddr,
    /// They end when this is dropped.
    tasks: JoinSet<()>,
}

impl Exporter {
    /// Serves the metrics at `addr` on the current tokio runtime; port 0 chooses a free port.
    ///
    /// # Errors
    /// Errors if the address cannot be bound.
    pub async fn serve(&self, addr: SocketAddr) -> io::Result<Serving> {
        let listener = TcpListener::bind(addr).await?;
        let local_addr = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, self.clone()));
        tasks.spawn(keep_up(self.clone()));
        Ok(Serving { local_addr, tasks })
    }
}

impl Serving {
    /// The address that is served.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Stops serving, and waits until the port is free.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "bounds real memory, which no test observes in virtual time"
)]
async fn keep_up(exporter: Exporter) {
    let mut ticks = tokio::time::interval(UPKEEP_EVERY);
    loop {
        ticks.tick().await;
        exporter.upkeep();
    }
}

async fn accept(listener: TcpListener, exporter: Exporter) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(serve_connection(stream, exporter.clone(), permit));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a metrics connection");
                // Most likely there are no file descriptors left: wait until some are freed.
                pause().await;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "waits for real descriptors")]
async fn pause() {
    tokio::time::sleep(Duration::from_millis(100)).await;
}

#[allow(clippy::disallowed_methods, reason = "bounds a real socket")]
async fn serve_connection(stream: TcpStream, exporter: Exporter, _permit: OwnedSemaphorePermit) {
    let service = service_fn(move |request| {
        let exporter = exporter.clone();
        async move { Ok::<_, Infallible>(respond(&request, &exporter).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        tracing::debug!(%error, "metrics connection ended early");
    }
}

async fn respond(request: &Request<Incoming>, exporter: &Exporter) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return text(StatusCode::NOT_FOUND, "not found: the metrics are at /metrics\n");
    }
    if request.method() != Method::GET {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refused;
    }
    text(StatusCode::OK, exporter.scrape().await)
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let content_type = if status == StatusCode::OK {
        "text/plain; version=0.0.4; charset=utf-8"
    } else {
        "text/plain; charset=utf-8"
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
