//! Serves the requests of one connection until it ends, is shed, or has been quiet for too long.

use std::convert::Infallible;
use std::future::pending;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Version, header};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{mpsc, watch};
use tokio::task::yield_now;
use tower::Service as _;

use crate::connection::Connection;
use crate::event_stream;
use crate::http2::Http2;
use crate::settings::{HEAD_MIN_BYTES, Settings};
use crate::slots::ConnectionSlot;
use crate::timer::pause;
use crate::tls::{Io, Tls, is_peer, speaks_http2};

/// Serves the connections of one interface.
#[derive(Clone)]
pub(crate) struct Requests {
    router: Router,
    http1: http1::Builder,
    http2: Http2,
    tls: Option<Tls>,
    stopped: watch::Receiver<bool>,
}

/// Why a connection was closed before its client closed it.
#[derive(Debug, thiserror::Error)]
enum Closed {
    #[error("closed, because another connection needed its slot")]
    Shed,
    #[error("closed, because it was idle for too long")]
    Quiet,
}

impl Requests {
    pub(crate) fn new(
        router: Router,
        settings: &Settings,
        tls: Option<Tls>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            // The time for a head depends on whether the client is authenticated, see `wait_for_quiet`.
            .header_read_timeout(None)
            .max_buf_size(settings.head_max_bytes.max(HEAD_MIN_BYTES))
            .max_headers(settings.headers_max)
            // A client that has closed its side still gets the response.
            .half_close(true);
        Self { router, http1, http2: Http2::new(settings), tls, stopped }
    }

    /// Serves `connection` to its end.
    pub(crate) async fn serve(self, connection: Connection, slot: ConnectionSlot) {
        // Boxed, so that its memory is freed before a stream of events is written.
        let requests = Box::pin(self.until_quiet(connection, slot.clone()));
        let ended = match requests.await {
            Ok(None) => Ok(()),
            Ok(Some((connection, events))) => {
                tokio::select! {
                    written = event_stream::write(connection, events) => {
                        written.map_err(Into::into)
                    }
                    () = slot.shed() => Err(Closed::Shed.into()),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection ended early");
        }
    }

    async fn until_quiet(
        self,
        connection: Connection,
        slot: ConnectionSlot,
    ) -> Result<Option<(Io, Response)>, axum::BoxError> {
        let (shed, is_quiet) = (slot.clone(), slot.clone());
        tokio::select! {
            ended = self.requests(connection, slot) => ended,
            () = shed.shed() => Err(Closed::Shed.into()),
            () = wait_for_quiet(&is_quiet) => Err(Closed::Quiet.into()),
        }
    }

    /// Serves requests after the TLS handshake, if there has to be one. A client that does not
    /// complete it is one that does not complete its head.
    async fn requests(
        self,
        mut connection: Connection,
        slot: ConnectionSlot,
    ) -> Result<Option<(Io, Response)>, axum::BoxError> {
        let mut stopped = self.stopped.clone();
        let Some(tls) = &self.tls else {
            let is_http2 = tokio::select! {
                is_http2 = connection.begins_with_http2() => is_http2?,
                // No request has arrived over it.
                () = wait_for_stop(&mut stopped) => return Ok(None),
            };
            return self.speak(is_http2, Io::Left(connection), slot).await;
        };
        let stream = tokio::select! {
            stream = tls.accept(connection) => stream?,
            // No request has arrived over it.
            () = wait_for_stop(&mut stopped) => return Ok(None),
        };
        let Some(stream) = stream else { return Ok(None) };
        if is_peer(&stream) {
            slot.authenticate_peer();
        }
        let is_http2 = speaks_http2(&stream);
        self.speak(is_http2, Io::Right(Box::new(stream)), slot).await
    }

    async fn speak(
        self,
        is_http2: bool,
        connection: Io,
        slot: ConnectionSlot,
    ) -> Result<Option<(Io, Response)>, axum::BoxError> {
        if is_http2 {
            let Self { router, http2, stopped, .. } = self;
            http2.serve(connection, slot, router, stopped).await.map(|()| None)
        } else {
            self.http1(connection, slot).await
        }
    }

    /// Serves requests until the connection ends, or only has to carry events.
    async fn http1(
        self,
        connection: Io,
        slot: ConnectionSlot,
    ) -> Result<Option<(Io, Response)>, axum::BoxError> {
        let Self { router, http1, mut stopped, .. } = self;
        let (hand_over, mut handed_over) = mpsc::channel(1);
        // Only for the first request is it known that no earlier response is still being written.
        let is_first = AtomicBool::new(true);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let is_first = is_first.swap(false, Ordering::Relaxed);
            let can_be_alone = is_first && event_stream::may_follow(&request);
            let hand_over = can_be_alone.then(|| hand_over.clone());
            let response = respond(router.clone(), request, slot.clone());
            async move {
                if !is_first {
                    // Requests that were pipelined are ready one after the other, without a pause
                    // in which other connections would be served.
                    yield_now().await;
                }
                let response = response.await;
                if let Some(hand_over) =
                    hand_over.filter(|_| event_stream::is_event_stream(&response))
                {
                    // The receiver takes it and drops this future as soon as this waits.
                    let _ = hand_over.try_send(response);
                    return pending().await;
                }
                Ok::<_, Infallible>(response)
            }
        });
        let mut connection = http1.serve_connection(TokioIo::new(connection), service);
        let mut stopping = pin!(wait_for_stop(&mut stopped));
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
}

/// Answers a request. Its connection is busy until the response was handed over completely.
pub(crate) async fn respond(
    mut router: Router,
    request: hyper::Request<Incoming>,
    slot: ConnectionSlot,
) -> Response {
    let busy = slot.busy();
    let is_http1 = request.version() <= Version::HTTP_11;
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(slot.clone());
    // A router is always ready.
    let response = router.call(request).await.unwrap_or_else(|never| match never {});
    let mut response = response.map(|body| {
        // The closure only owns `busy`, which is so dropped together with the body.
        Body::new(body.map_err(move |error| {
            let _owned = &busy;
            error
        }))
    });
    if is_http1 && slot.is_in_reserve() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns when the interface accepts no more.
pub(crate) async fn wait_for_stop(stopped: &mut watch::Receiver<bool>) {
    // If the sender was dropped, the interface is being dropped.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        pending::<()>().await;
    }
}

/// Returns when the connection has been quiet for longer than it may be.
async fn wait_for_quiet(slot: &ConnectionSlot) {
    loop {
        match slot.quiet_left() {
            Some(left) if left.is_zero() => return,
            // It may be authenticated meanwhile, which can leave it less time.
            Some(left) => pause(left.min(slot.quiet_min())).await,
            None => pause(slot.quiet_min()).await,
        }
    }
}
