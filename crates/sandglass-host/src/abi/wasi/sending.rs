//! How requests of `wasi:http` are sent: by this host's client, where the guest
//! may go, for as long as it has. Redirects are the guest's to follow.

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

/// Largest piece of a body that a guest may write before the one in front of it is sent, in bytes.
pub(super) const BODY_PIECE_BYTES: usize = 64 << 10;

/// Largest headers or trailers that a guest makes, in bytes as Wasmtime counts them: with some for
/// each name and value. Few servers accept a quarter of it.
pub(super) const HEADERS_MAX_BYTES: usize = 64 << 10;

/// What the body of a request takes until it is sent: a piece in the queue, a piece that is being
/// written, and trailers. A map of many short headers takes four times what Wasmtime counts.
pub(super) const BODY_BYTES: u64 = (2 * BODY_PIECE_BYTES + 4 * HEADERS_MAX_BYTES) as u64;

type Sent = Result<(::http::Response<WasiBody>, Finishing), Error>;
type Finishing = Box<dyn Future<Output = Result<(), Error>> + Send>;

/// Sends what the guest of one run has put together.
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

    /// A body that nobody sends yet is in memory: two pieces at most.
    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        BODY_PIECE_BYTES
    }

    fn set_host_header(&mut self) -> bool {
        // The client writes it, from the URL that was checked.
        false
    }

    fn send_request(
        &mut self,
        request: ::http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _finished: Finishing,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        let options = options.unwrap_or_default();
        // A poll of WASI has no bound of its own, so the request has that of a call.
        let most = self.0.timeout();
        // The request is charged before the guest can make the next one, not when it is polled.
        let opening = read(request, &self.0.memory)
            .and_then(|request| self.0.clone().open(request).map_err(wasi_error));
        Box::new(async move {
            let timeout = options.first_byte_timeout.unwrap_or(most).min(most);
            let patience = options.between_bytes_timeout.unwrap_or(most).min(most);
            let opened = http::within(timeout, opening?).await;
            let response = answer(opened.map_err(wasi_error)?, patience)?;
            Ok((response, Box::new(async { Ok(()) }) as Finishing))
        })
    }
}

/// The request as this host sends it. A body is charged to `memory` until it is sent.
fn read(request: ::http::Request<WasiBody>, memory: &HostMemory) -> Result<Request, Error> {
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

/// The response, whose pieces come within `patience` each.
fn answer(opened: Opened, patience: Duration) -> Result<::http::Response<WasiBody>, Error> {
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
