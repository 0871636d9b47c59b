//! Serves requests over HTTP/2. There, a client can stop reading a response without blocking any write
//! on the connection, so the write timeout is enforced here: each response is handed over in pieces, and
//! its stream is reset if the client takes none for too long. The other streams of the connection
//! continue, because another host sends the requests of many clients over it.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::requests::{respond, wait_for_stop};
use crate::settings::{HEAD_MIN_BYTES, Settings};
use crate::slots::ConnectionSlot;
use crate::timer::{now, pause};
use crate::tls::Io;

/// Concurrent requests of a connection: at least 100 (RFC 9113, 6.5.2), because another host sends the
/// requests of all its clients over a few connections.
const STREAMS_MAX: u32 = 128;
/// How much a client may send ahead of what is read, in bytes: of one request, and of all.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;
/// What the names of headers between hosts begin with, and how many one request has.
const HOST_HEADER_PREFIX: &str = "sandglass-";
const HOST_HEADERS_MAX: usize = 3;
/// How much of a response is buffered until the client reads it, in bytes.
const PIECE_MAX_BYTES: usize = 64 << 10;

tokio::task_local! {
    /// Since when the response of this task waits for the client to read; `None` while it does not.
    static WAITS_SINCE: Cell<Option<Instant>>;
}

/// Serves connections over HTTP/2.
#[derive(Clone)]
pub(crate) struct Http2 {
    builder: http2::Builder<Streams>,
    headers_max: usize,
}

impl Http2 {
    pub(crate) fn new(settings: &Settings) -> Self {
        let Settings { headers_max, write_timeout, .. } = *settings;
        let mut builder = http2::Builder::new(Streams { write_timeout });
        let head_max = settings.head_max_bytes.max(HEAD_MIN_BYTES);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(PIECE_MAX_BYTES)
            .max_header_list_size(u32::try_from(head_max).unwrap_or(u32::MAX));
        Self { builder, headers_max }
    }

    /// Serves `connection` to its end.
    pub(crate) async fn serve(
        self,
        connection: Io,
        slot: ConnectionSlot,
        router: Router,
        mut stopped: watch::Receiver<bool>,
    ) -> Result<(), axum::BoxError> {
        let Self { builder, headers_max } = self;
        let in_reserve = Arc::new(Notify::new());
        let ends = Arc::clone(&in_reserve);
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (router, slot, in_reserve) =
                (router.clone(), slot.clone(), Arc::clone(&in_reserve));
            async move {
                let request = with_host(request);
                let host_headers = count_host_headers(request.headers());
                let response = if request.headers().len() - host_headers > headers_max {
                    StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.into_response()
                } else {
                    respond(router, request, slot.clone()).await
                };
                if slot.is_in_reserve() {
                    in_reserve.notify_one();
                }
                Ok::<Response, Infallible>(response.map(Tracked::body))
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(connection), service));
        let mut stopping = pin!(wait_for_stop(&mut stopped));
        let mut is_stopping = false;
        loop {
            tokio::select! {
                ended = &mut connection => return Ok(ended?),
                () = &mut stopping, if !is_stopping => is_stopping = true,
                // A connection of the reserve carries one request, as over HTTP/1.1.
                () = ends.notified() => {}
            }
            connection.as_mut().graceful_shutdown();
        }
    }
}

/// Counts the headers that another host has added. They do not count against the bound, which the client's own
/// headers may already reach.
fn count_host_headers(headers: &HeaderMap) -> usize {
    let names = headers.keys().filter(|name| name.as_str().starts_with(HOST_HEADER_PREFIX));
    names.take(HOST_HEADERS_MAX).count()
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

/// Runs each stream of a connection as a task, in which its request is served and its response written.
#[derive(Clone, Copy, Debug)]
struct Streams {
    write_timeout: Duration,
}

impl<F> Executor<F> for Streams
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        let time = self.write_timeout;
        tokio::spawn(WAITS_SINCE.scope(Cell::new(None), async move {
            tokio::select! {
                biased;
                _ = stream => {}
                // The body cannot end the stream, because it is not polled while the client reads
                // nothing. The stream is dropped here, which resets it.
                () = wait_for_stall(time) => {
                    tracing::debug!("a response ended early: the client read nothing of it for too long");
                }
            }
        }));
    }
}

/// Returns when the response of this task has waited for longer than `time`.
async fn wait_for_stall(time: Duration) {
    loop {
        let since = WAITS_SINCE.try_with(Cell::get).ok().flatten();
        let left = since.map_or(time, |since| time.saturating_sub(now() - since));
        if left.is_zero() {
            return;
        }
        pause(left).await;
    }
}

fn set_waits_since(since: Option<Instant>) {
    // It is set, because hyper serves a request and reads its response in the task of its stream.
    let _ = WAITS_SINCE.try_with(|waits_since| waits_since.set(since));
}

/// A body that is handed over in pieces, each when the client has read the previous one.
#[derive(Debug)]
struct Tracked {
    body: Body,
    rest: Bytes,
}

impl Tracked {
    fn body(body: Body) -> Body {
        set_waits_since(Some(now()));
        Body::new(Self { body, rest: Bytes::new() })
    }
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
                    set_waits_since(None);
                    return Poll::Pending;
                }
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(frame) => return Poll::Ready(Some(Ok(frame))),
                },
                ended => return ended,
            }
        }
        set_waits_since(Some(now()));
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
