//! Outgoing HTTP: only to granted hosts, for no longer than the deadline allows, and with responses
//! within their bound, which is checked while the body is read.

mod destination;
#[cfg(feature = "network")]
mod network;
mod request;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sandglass_model::timeout::timeout_text;

use crate::host_memory::OutOfHostMemory;
use crate::opaque::opaque;
use crate::origin::CallOrigin;
use crate::race::{CallEnded, millis};
use crate::secret::Answer;

pub use destination::{Destination, Destinations, InvalidDestination, Scheme};
#[cfg(feature = "network")]
pub use network::NetworkClient;
pub use request::Request;
pub use request::is_reserved;

/// The header that states how long the client will wait, in milliseconds, so that the server need not
/// do work whose result arrives too late.
pub const DEADLINE_HEADER: &str = "sandglass-deadline-remaining-ms";

/// Most redirects of one request: more than an API needs.
const MAX_REDIRECTS: usize = 5;

/// The sender of requests, to whom connections belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sender {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The integration.
    pub integration: Arc<str>,
}

/// A body, piece by piece. It ends with its last piece or its first error.
pub type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, HttpError>> + Send>>;

/// A response whose body has not been read yet.
pub struct Opened {
    /// The status code.
    pub status: u16,
    /// Names and values of the headers, in their order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Pieces,
}

impl Opened {
    /// Keeps `held` until the body has ended or is dropped.
    pub fn holding(self, held: impl Send + 'static) -> Self {
        let body = futures_util::stream::unfold((self.body, held), |(mut body, held)| async move {
            let piece = body.next().await?;
            Some((piece, (body, held)))
        });
        Self { body: Box::pin(body), ..self }
    }
}

opaque!(Opened as "Opened" { status });

/// A whole response.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names and values of the headers, in their order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The bounds of one request.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most time that it may take, redirects included.
    pub timeout: Duration,
    /// Time until the run's deadline, which the server learns.
    pub remaining: Duration,
    /// Largest response body, in bytes.
    pub response_bytes: u64,
}

impl Limits {
    /// Bounds the time of `call`. If its limit is not shorter than the run's deadline, it has none of
    /// its own, because the end of the run ends it.
    ///
    /// # Errors
    /// Those of `call`, and [`HttpError::TimedOut`].
    pub async fn bound<T>(
        &self,
        call: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        if self.timeout >= self.remaining {
            return call.await;
        }
        within(self.timeout, call).await
    }
}

/// Why a request failed. The guest gets it as an error of the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request is invalid.
    #[error("{0}")]
    InvalidRequest(String),
    /// The integration may not reach this host.
    #[error(
        "the host `{0}` is not allowed for this integration; grant it by `hosts` in `[grants]`"
    )]
    NotAllowed(String),
    /// The integration may reach this host, but not by this scheme or path.
    #[error(
        "the host `{0}` is allowed for this integration, but not this scheme or path; see its \
             `[[grants.host]]`"
    )]
    NotThisWay(String),
    /// The name resolves to addresses that are not public, and is not granted as private.
    #[error("{0}")]
    NotPublic(String),
    /// Too many requests are open.
    #[error("{0}")]
    TooManyRequests(String),
    /// The host memory of the run is exhausted.
    #[error("{0}")]
    OutOfMemory(String),
    /// There was no complete response in time.
    #[error("{}", timeout_text(millis(*.0)))]
    TimedOut(Duration),
    /// It was cut short so that the handler can save its work.
    #[error("{0}")]
    CutShort(String),
    /// The response body is too large.
    #[error("the response is larger than the {0} bytes allowed")]
    TooLarge(u64),
    /// There were too many redirects.
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    /// The connection failed.
    #[error("the request failed: {0}")]
    Transport(String),
}

impl HttpError {
    /// Whether the request was refused because it is not granted.
    pub(super) const fn is_denial(&self) -> bool {
        matches!(self, Self::NotAllowed(_) | Self::NotThisWay(_) | Self::NotPublic(_))
    }
}

impl From<OutOfHostMemory> for HttpError {
    fn from(error: OutOfHostMemory) -> Self {
        Self::OutOfMemory(error.to_string())
    }
}

impl From<CallEnded> for HttpError {
    fn from(ended: CallEnded) -> Self {
        match ended {
            CallEnded::TimedOut(limit) => Self::TimedOut(limit),
            CallEnded::SoftDeadline | CallEnded::StopRequested => Self::CutShort(ended.to_string()),
        }
    }
}

/// A request that a client sends, and what applies to it.
#[derive(Debug)]
pub struct HttpCall<'a> {
    /// The request.
    pub request: Request,
    /// The hosts that it may reach.
    pub destinations: &'a Destinations,
    /// Its bounds.
    pub limits: Limits,
    /// The value of its header `traceparent`.
    pub traceparent: &'a str,
    /// The handler that sends it.
    pub origin: CallOrigin<'a>,
}

/// A client that sends requests: the host's own one, or that of an embedder or a test.
pub trait HttpClient: Send + Sync + fmt::Debug {
    /// Sends the request, and follows redirects, as far as its `destinations` allow.
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>>;

    /// Sends the request and waits for the head of the response. The time limits apply until then, and
    /// `response_bytes` does not apply. By default, the whole response is read first.
    fn open<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Opened, HttpError>> {
        Box::pin(async move {
            let Response { status, headers, body } = self.send(call).await?;
            let body = futures_util::stream::once(std::future::ready(Ok(Bytes::from(body))));
            Ok(Opened { status, headers, body: Box::pin(body) })
        })
    }
}

/// The client of a host that has none: every request fails.
#[derive(Debug)]
pub struct NoClient;

impl HttpClient for NoClient {
    fn send<'a>(&'a self, _: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        let why = "this host was built without an HTTP client (the feature `network`), and its \
                   embedder has given it none";
        Box::pin(std::future::ready(Err(HttpError::Transport(why.to_owned()))))
    }
}

impl Response {
    /// Formats the response as `<status>\n<body>` for the core ABI.
    pub fn as_status_line_and_body(&self) -> Vec<u8> {
        let mut answer = format!("{}\n", self.status).into_bytes();
        answer.extend_from_slice(&self.body);
        answer
    }
}

/// Bounds the time of `call` by `timeout`.
pub async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    #[allow(clippy::disallowed_methods, reason = "the network answers in real time")]
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer,
        Err(_) => Err(HttpError::TimedOut(timeout)),
    }
}
