//! Accepts connections and serves requests on them, up to a bound, until it is told to
//! end; then drains what is in flight.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use sandglass_model::{EntityRef, Monotonic};
use sandglass_runtime::RunView;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower::Service as _;

use crate::Daemon;
use crate::connection::Connection;
use crate::patience::{pause, within};

/// Largest request head, in bytes: two encoded names, a key and what proxies add.
const HEAD_MAX_BYTES: usize = 32 << 10;
/// Most headers of a request, which a client's library and some proxies stay far below.
const HEADERS_MAX: usize = 64;
/// How long to wait before accepting again when the system has no more file
/// descriptors: others end in the meantime.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How much of the grace is kept for ending handlers and recording how they ended.
const ENDING_PART: u32 = 4;
/// The most of it that is kept: a handler ends at once, and a disk writes within this.
const ENDING_MAX: Duration = Duration::from_secs(5);
/// How long the answers may take that were waiting for those records.
const ANSWERS_MAX: Duration = Duration::from_secs(2);
/// How often it is looked whether handlers are left.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// An interface that is being served. Dropped, it ends at once.
#[derive(Debug)]
pub struct Serving {
    daemon: Daemon,
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<JoinSet<()>>,
}

/// How the draining goes.
#[derive(Clone, Debug)]
pub enum Draining {
    /// No connection is accepted any more, and so many handlers are in flight.
    Waiting {
        /// How many.
        in_flight: usize,
    },
    /// These handlers have not ended in time and are asked to.
    Stopping {
        /// The handlers and their entities.
        handlers: Vec<(EntityRef, RunView)>,
    },
}

impl Daemon {
    /// Serves the interface on `listener`, on the current tokio runtime.
    ///
    /// # Errors
    /// The listener doesn't know its address.
    pub fn serve(&self, listener: TcpListener) -> io::Result<Serving> {
        let local_addr = listener.local_addr()?;
        let (stop, stopped) = watch::channel(false);
        let accepting = tokio::spawn(accept(listener, self.clone(), stopped));
        Ok(Serving { daemon: self.clone(), local_addr, stop, accepting })
    }
}

impl Serving {
    /// The address that is served.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Accepts no more, stops the sessions that have work in flight, which is recorded at once,
    /// lets handlers end for most of `grace`, asks the rest to, records
    /// how they did, and answers those who wait, at least with `shutting_down`. `tell`
    /// hears how it goes. It takes no longer than `grace`; the journal is closed
    /// afterwards. Answers the handlers whose end could not be recorded by then: the next
    /// start finds them as interrupted.
    pub async fn shutdown(
        mut self,
        grace: Duration,
        mut tell: impl FnMut(Draining),
    ) -> Vec<(EntityRef, RunView)> {
        let clock = Arc::clone(self.daemon.clock());
        let over = clock.now().after(grace);
        let left = |until: Monotonic| until.since(clock.now());
        self.daemon.close();
        self.stop.send_replace(true);
        let runtime = self.daemon.runtime();
        tell(Draining::Waiting { in_flight: self.daemon.in_flight().len() });
        let ending = (grace / ENDING_PART).min(ENDING_MAX);
        let settled = async {
            // Recorded at once: whoever sends a signal may send a harder one soon.
            runtime.stop_sessions_for_shutdown().await;
            while !self.daemon.in_flight().is_empty() {
                pause(LOOK_EVERY).await;
            }
        };
        if within(left(over).saturating_sub(ending), settled).await.is_err() {
            tell(Draining::Stopping { handlers: self.daemon.in_flight() });
        }
        let answers = (ending / 2).min(ANSWERS_MAX);
        runtime.shutdown(left(over).saturating_sub(answers)).await;
        let answered = async {
            if let Ok(mut connections) = (&mut self.accepting).await {
                while connections.join_next().await.is_some() {}
            }
        };
        // Whoever takes the answer more slowly finds it in the journal.
        let _ = within(left(over), answered).await;
        self.daemon.in_flight()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Answers the connections that were open when it was told to stop; the address is free
/// by then.
async fn accept(
    listener: TcpListener,
    daemon: Daemon,
    mut stopped: watch::Receiver<bool>,
) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(daemon.settings().max_connections.max(1)));
    let router = daemon.router();
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            // It is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else {
                return pending().await;
            };
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => return connections,
            next = next => next,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) => {
                let serving = serve_connection(
                    stream,
                    router.clone(),
                    daemon.clone(),
                    stopped.clone(),
                    place,
                );
                connections.spawn(serving);
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept a connection");
                pause(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    daemon: Daemon,
    mut stopped: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let settings = daemon.settings();
    // Answers are small, and each is one somebody waits for.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        // A router is always ready.
        let answer = router.clone().call(request.map(Body::new));
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head_timeout)
        .max_buf_size(HEAD_MAX_BYTES)
        .max_headers(HEADERS_MAX)
        // One who has said all and listens still gets the answer.
        .half_close(true)
        .serve_connection(TokioIo::new(Connection::new(stream, settings.write_timeout)), service);
    let mut connection = std::pin::pin!(connection);
    let stopping = async {
        // Where nobody can tell it to stop any more, it is being dropped.
        if stopped.wait_for(|stopped| *stopped).await.is_err() {
            pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}
