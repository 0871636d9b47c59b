//! Accepts connections and serves requests on them, up to a bound, until it is told to
//! accept no more; then lets what is in flight be answered.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tower::Service as _;

use crate::connection::Connection;
use crate::event_stream;
use crate::patience::{TooLong, pause, within};
use crate::settings::{HEAD_MIN_BYTES, Settings};

/// How long to wait before accepting again when the system has no more file
/// descriptors: others end in the meantime.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// An interface that is being served. Dropped, it ends at once, with all its connections.
#[derive(Debug)]
pub struct Serving {
    local_addr: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<JoinSet<()>>,
}

/// Serves `router` over HTTP/1.1 on `listener`, on the current tokio runtime.
///
/// # Errors
/// The listener doesn't know its address.
///
/// # Panics
/// There is no tokio runtime.
pub fn serve(listener: TcpListener, router: Router, settings: Settings) -> io::Result<Serving> {
    let local_addr = listener.local_addr()?;
    let (stop, stopped) = watch::channel(false);
    let accepting = tokio::spawn(accept(listener, router, settings, stopped));
    Ok(Serving { local_addr, stop, accepting })
}

impl Serving {
    /// The address that is served.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Accepts no connection from now on, and no further request on those that are open;
    /// requests that have come are answered. The address is free soon.
    pub fn stop_accepting(&self) {
        self.stop.send_replace(true);
    }

    /// Accepts no more and waits until all that has come is answered, and every stream of
    /// events has ended, for at most `time`. What is left then is cut off.
    ///
    /// # Errors
    /// Something was left.
    pub async fn drain(mut self, time: Duration) -> Result<(), TooLong> {
        self.stop_accepting();
        let answered = async {
            if let Ok(mut connections) = (&mut self.accepting).await {
                while connections.join_next().await.is_some() {}
            }
        };
        within(time, answered).await
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
    router: Router,
    settings: Settings,
    mut stopped: watch::Receiver<bool>,
) -> JoinSet<()> {
    let places = Arc::new(Semaphore::new(settings.max_connections.max(1)));
    let protocol = protocol(&settings);
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
                // Answers are small, and each is one somebody waits for.
                let _ = stream.set_nodelay(true);
                let connection = Connection::new(stream, settings.write_timeout);
                let serving = serve_connection(
                    connection,
                    router.clone(),
                    protocol.clone(),
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

fn protocol(settings: &Settings) -> http1::Builder {
    let mut protocol = http1::Builder::new();
    protocol
        .timer(TokioTimer::new())
        .header_read_timeout(settings.head_timeout)
        .max_buf_size(settings.head_max_bytes.max(HEAD_MIN_BYTES))
        .max_headers(settings.headers_max)
        // One who has said all and listens still gets the answer.
        .half_close(true);
    protocol
}

async fn serve_connection(
    connection: Connection,
    router: Router,
    protocol: http1::Builder,
    mut stopped: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    // Boxed, so that a stream of events that is written after it doesn't hold its memory.
    let requests = Box::pin(serve_requests(connection, router, protocol, &mut stopped));
    let ended = match requests.await {
        Ok(None) => Ok(()),
        Ok(Some((connection, events))) => {
            event_stream::write(connection, events).await.map_err(Into::into)
        }
        Err(error) => Err(error),
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Serves requests until the connection ends, or has nothing to do but to carry events.
async fn serve_requests(
    connection: Connection,
    router: Router,
    protocol: http1::Builder,
    stopped: &mut watch::Receiver<bool>,
) -> Result<Option<(Connection, Response)>, axum::BoxError> {
    let (hand_over, mut handed_over) = mpsc::channel(1);
    // Of a later one it isn't known here whether all answers before it are written.
    let is_first = AtomicBool::new(true);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let can_be_alone =
            is_first.swap(false, Ordering::Relaxed) && event_stream::may_follow(&request);
        let hand_over = can_be_alone.then(|| hand_over.clone());
        // A router is always ready.
        let answer = router.clone().call(request.map(Body::new));
        async move {
            let answer = answer.await.unwrap_or_else(|never| match never {});
            if let Some(hand_over) = hand_over.filter(|_| event_stream::is(&answer)) {
                // It is taken, and this dropped, as soon as this waits.
                let _ = hand_over.try_send(answer);
                return pending().await;
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = protocol.serve_connection(TokioIo::new(connection), service);
    let mut stopping = pin!(async {
        // Where nobody can tell it to stop any more, it is being dropped.
        if stopped.wait_for(|stopped| *stopped).await.is_err() {
            pending::<()>().await;
        }
    });
    let mut is_stopping = false;
    loop {
        is_stopping = tokio::select! {
            ended = &mut connection => return Ok(ended.map(|()| None)?),
            // The service has the other end as long as the connection lives.
            Some(events) = handed_over.recv() => {
                return Ok(Some((connection.into_parts().io.into_inner(), events)));
            }
            () = &mut stopping, if !is_stopping => true,
        };
        Pin::new(&mut connection).graceful_shutdown();
    }
}
