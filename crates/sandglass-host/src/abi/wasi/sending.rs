//! Sends requests of `wasi:http` with this host's client, to destinations that the guest may reach, and
//! within its time. The guest follows redirects itself.

use std::sync::Arc;
use std::time::Duration;

use ::http::header::{HeaderMap, HeaderName, HeaderValue};
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::{BodyDataStream, BodyExt, StreamBody};
use wasmtime_wasi_http::p3::bindings::http::types::ErrorCode;
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
    let headers = header_texts(&head.headers);
    let (method, url) = (head.method.as_str(), head.uri.to_string());
    let request = if http_body::Body::is_end_stream(&body) {
        Request::without_redirects(method, &url, headers)
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
    let mut response = ::http::Response::new(StreamBody::new(frames).boxed_unsync());
    let internal = |error: wasmtime::Error| Error::InternalError(Some(error.to_string()));
    *response.headers_mut() = header_map(&headers).map_err(internal)?;
    *response.status_mut() =
        ::http::StatusCode::from_u16(status).map_err(|error| internal(error.into()))?;
    Ok(response)
}

/// Headers as this host's client takes them.
pub(crate) fn header_texts(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

/// Headers as Wasmtime keeps them.
///
/// # Errors
/// One is not valid.
pub(crate) fn header_map(headers: &[(String, String)]) -> wasmtime::Result<HeaderMap> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
    }
    Ok(map)
}

/// The error of `wasi:http` that stands for one of this host's client, in each of the types that have
/// the same cases.
macro_rules! error_of {
    ($error:expr, $name:ident) => {
        match $error {
            HttpError::NotAllowed(_) | HttpError::NotThisWay(_) => $name::HttpRequestDenied,
            HttpError::NotPublic(_) => $name::DestinationIpProhibited,
            HttpError::TooManyRequests(_) => $name::ConnectionLimitReached,
            HttpError::TimedOut(_) | HttpError::CutShort(_) => $name::HttpResponseTimeout,
            HttpError::TooLarge(bytes) => $name::HttpResponseBodySize(Some(bytes)),
            HttpError::TooManyRedirects => $name::LoopDetected,
            HttpError::InvalidRequest(why)
            | HttpError::OutOfMemory(why)
            | HttpError::Transport(why) => $name::InternalError(Some(why)),
        }
    };
}

fn wasi_error(error: HttpError) -> Error {
    error_of!(error, Error)
}

/// As [`wasi_error`], of version 0.3.
pub(crate) fn code_of(error: HttpError) -> ErrorCode {
    error_of!(error, ErrorCode)
}
