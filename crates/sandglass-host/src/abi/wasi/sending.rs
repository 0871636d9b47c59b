//! Sends requests of `wasi:http` with this host's client, to destinations that the guest may reach, and
//! within its time. The guest follows redirects itself.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::{BodyDataStream, BodyExt, StreamBody};
use wasmtime_wasi_http::{
    DEFAULT_FORBIDDEN_HEADERS, Error, ForbiddenHeaderFilter, RequestOptions, WasiBody,
    WasiHttpHooks,
};

use crate::measured::Measured;
use sandglass_supervisor::capability::http::{self, HttpError, Opened, Pieces, Request};
use sandglass_supervisor::capability::outside::Outside;
use sandglass_supervisor::host_memory::HostMemory;

/// Largest piece of a body that a guest may write before the previous piece is sent, in bytes.
pub(super) const BODY_PIECE_BYTES: usize = 64 << 10;

/// Largest headers or trailers of a guest, in bytes as Wasmtime counts them, with an overhead for each
/// name and value. Few servers accept a quarter of this.
pub(super) const HEADERS_MAX_BYTES: usize = 64 << 10;

/// What the body of a request takes until it is sent: a piece in the queue, a piece that is being
/// written, and trailers. A map of many short headers takes four times what Wasmtime counts.
pub(super) const BODY_BYTES: u64 = (2 * BODY_PIECE_BYTES + 4 * HEADERS_MAX_BYTES) as u64;

type Sent = Result<(::http::Response<WasiBody>, Finishing), Error>;
type Finishing = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Sends the requests of one handler run.
pub(crate) struct Sending(pub(crate) Outside);

impl Measured for Sending {
    fn uncharged_bytes(&self) -> u64 {
        let Self(outside) = self;
        outside.uncharged_bytes()
    }
}

impl WasiHttpHooks for Sending {
    fn forbidden_header_filter(&mut self) -> ForbiddenHeaderFilter {
        Arc::new(|name| DEFAULT_FORBIDDEN_HEADERS.contains(name) || http::is_reserved(name))
    }

    /// Unsent pieces of a body, two at most, are in memory.
    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        BODY_PIECE_BYTES
    }

    fn set_host_header(&mut self) -> bool {
        // The client sets it from the URL that was checked.
        false
    }

    fn send_request(
        &mut self,
        request: ::http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _finished: Finishing,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let options = options.unwrap_or_default();
        // A poll of WASI has no time limit of its own, so the request has that of a call.
        let longest = self.0.timeout();
        // Charged here and not when it is polled, because the guest could make others before that.
        let opening = from_wasi_request(request, &self.0.memory)
            .and_then(|request| self.0.clone().open(request).map_err(wasi_error));
        Box::new(async move {
            let timeout = options.first_byte_timeout.unwrap_or(longest).min(longest);
            let patience = options.between_bytes_timeout.unwrap_or(longest).min(longest);
            let opened = http::within(timeout, opening?).await;
            let response = to_wasi_response(opened.map_err(wasi_error)?, patience)?;
            Ok((response, Box::new(async { Ok(()) }) as Finishing))
        })
    }
}

/// The request as this host sends it. A body is charged to `memory` until it is sent.
fn from_wasi_request(
    request: ::http::Request<WasiBody>,
    memory: &HostMemory,
) -> Result<Request, Error> {
    let (head, body) = request.into_parts();
    let headers: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| {
            (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let (method, url) = (head.method.as_str(), head.uri.to_string());
    let request = if http_body::Body::is_end_stream(&body) {
        Request::new(method, &url, headers, Bytes::new())
    } else {
        let unsent = |error: Error| HttpError::Transport(error.to_string());
        let charge = memory.charge(BODY_BYTES).map_err(|error| wasi_error(error.into()))?;
        let pieces = BodyDataStream::new(body).map_err(unsent);
        let pieces: Pieces = Box::pin(pieces.inspect(move |_| {
            let _until_it_is_sent = &charge;
        }));
        Request::streamed(method, &url, headers, pieces)
    };
    request.map_err(|why| Error::InternalError(Some(why)))
}

/// The response as the guest reads it. Each piece must arrive within `patience`.
fn to_wasi_response(
    opened: Opened,
    patience: Duration,
) -> Result<::http::Response<WasiBody>, Error> {
    let Opened { status, headers, body } = opened;
    let frames = futures_util::stream::unfold(body, move |mut body| async move {
        let piece = match http::within(patience, async { Ok(body.next().await) }).await {
            Ok(piece) => piece?,
            Err(late) => Err(late),
        };
        Some((piece.map(http_body::Frame::data).map_err(wasi_error), body))
    });
    let mut response = ::http::Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response
        .body(StreamBody::new(frames).boxed_unsync())
        .map_err(|error| Error::InternalError(Some(error.to_string())))
}

fn wasi_error(error: HttpError) -> Error {
    match error {
        HttpError::NotAllowed(_) | HttpError::NotThisWay(_) => Error::HttpRequestDenied,
        HttpError::NotPublic(_) => Error::DestinationIpProhibited,
        HttpError::TooManyRequests(_) => Error::ConnectionLimitReached,
        HttpError::TimedOut(_) | HttpError::CutShort(_) => Error::HttpResponseTimeout,
        HttpError::TooLarge(bytes) => Error::HttpResponseBodySize(Some(bytes)),
        HttpError::TooManyRedirects => Error::LoopDetected,
        HttpError::InvalidRequest(why)
        | HttpError::OutOfMemory(why)
        | HttpError::Transport(why) => Error::InternalError(Some(why)),
    }
}
