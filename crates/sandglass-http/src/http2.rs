//! Serves requests over HTTP/2. There, a client can stop reading a response without blocking any write
//! on the connection, so the write timeout is enforced here: each response is handed over in pieces.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::requests::{respond, wait_for_stop};
use crate::settings::{HEAD_MIN_BYTES, Settings};
use crate::slots::ConnectionSlot;
use crate::timer::{now, pause};
use crate::tls::Io;

/// Concurrent requests of a connection: enough for a page and its live views. Each may have a body in
/// memory.
const STREAMS_MAX: u32 = 16;
/// How much a client may send ahead of what is read, in bytes: of one request, and of all.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// How much of a response is buffered until the client reads it, in bytes.
const PIECE_MAX_BYTES: usize = 64 << 10;

/// The client has read nothing of a response for too long.
#[derive(Debug, thiserror::Error)]
#[error("the client read nothing of a response within the write timeout")]
struct Stalled;

/// Serves connections over HTTP/2.
#[derive(Clone)]
pub(crate) struct Http2 {
    builder: http2::Builder<TokioExecutor>,
    headers_max: usize,
    write_timeout: Duration,
}

impl Http2 {
    pub(crate) fn new(settings: &Settings) -> Self {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let head_max = settings.head_max_bytes.max(HEAD_MIN_BYTES);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(PIECE_MAX_BYTES)
            .max_header_list_size(u32::try_from(head_max).unwrap_or(u32::MAX));
        let Settings { headers_max, write_timeout, .. } = *settings;
        Self { builder, headers_max, write_timeout }
    }

    /// Serves `connection` to its end, or until the client reads nothing of a response for too long.
    pub(crate) async fn serve(
        self,
        connection: Io,
        slot: ConnectionSlot,
        router: Router,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), axum::BoxError> {
        let Self { builder, headers_max, write_timeout } = self;
        let responses = Responses::default();
        let in_reserve = Arc::new(Notify::new());
        let (stalled, ends) = (responses.wait_for_stall(write_timeout), Arc::clone(&in_reserve));
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (router, slot) = (router.clone(), slot.clone());
            let (responses, in_reserve) = (responses.clone(), Arc::clone(&in_reserve));
            async move {
                let request = with_host(request);
                let response = if request.headers().len() > headers_max {
                    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response()
                } else {
                    respond(router, request, slot.clone()).await
                };
                if slot.is_in_reserve() {
                    in_reserve.notify_one();
                }
                Ok::<Response, Infallible>(response.map(|body| responses.track(body)))
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(connection), service));
        let (mut stalled, mut stopping) = (pin!(stalled), pin!(wait_for_stop(&mut stopped)));
        let mut is_stopping = false;
        loop {
            tokio::select! {
                ended = &mut connection => return Ok(ended?),
                () = &mut stalled => return Err(Stalled.into()),
                () = &mut stopping, if !is_stopping => is_stopping = true,
                // A connection of the reserve carries one request, as over HTTP/1.1.
                () = ends.notified() => {}
            }
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// The request with the `Host` that HTTP/1.1 would have (RFC 9113, 8.3.1).
fn with_host(mut request: hyper::Request<Incoming>) -> hyper::Request<Incoming> {
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = authority.and_then(|authority| HeaderValue::from_str(authority).ok());
    if let Some(host) = host.filter(|_| !request.headers().contains_key(header::HOST)) {
        request.headers_mut().insert(header::HOST, host);
    }
    request
}

/// The responses of a connection that wait for the client to read, with when each began to wait.
#[derive(Clone, Debug, Default)]
struct Responses(Arc<Mutex<Waiting>>);

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    since: BTreeMap<u64, Instant>,
}

impl Responses {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn track(&self, body: Body) -> Body {
        let mut waiting = self.waiting();
        let id = waiting.next;
        waiting.next += 1;
        waiting.since.insert(id, now());
        Body::new(Tracked { body, rest: Bytes::new(), id, responses: self.clone() })
    }

    /// Returns when one of them has waited for longer than `time`.
    fn wait_for_stall(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        let responses = self.clone();
        async move {
            loop {
                let oldest = responses.waiting().since.values().min().copied();
                let left = oldest.map_or(time, |since| time.saturating_sub(now() - since));
                if left.is_zero() {
                    return;
                }
                pause(left).await;
            }
        }
    }
}

/// A body that is handed over in pieces, each when the client has read the previous one.
#[derive(Debug)]
struct Tracked {
    body: Body,
    rest: Bytes,
    id: u64,
    responses: Responses,
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Pending => {
                    // It waits for this process, not for the client.
                    this.responses.waiting().since.remove(&this.id);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                ended => return ended,
            }
        }
        this.responses.waiting().since.insert(this.id, now());
        let length = this.rest.len().min(PIECE_MAX_BYTES);
        Poll::Ready(Some(Ok(Frame::data(this.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(of_body.lower().saturating_add(rest));
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        self.responses.waiting().since.remove(&self.id);
    }
}
