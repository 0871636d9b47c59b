//! HTTP to the outside: only to the hosts that the integration may reach, for no
//! longer than its deadline leaves, and no larger than its bound, checked while
//! the body is read.

mod address;
mod declared;
mod destination;
mod network;
mod pools;
mod request;
mod resolver;

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};

use crate::host_memory::OutOfHostMemory;
use crate::race::CallEnded;
use crate::secret::Answer;

pub use destination::{Destination, Destinations, InvalidDestination, Scheme};
pub use network::NetworkClient;
pub use pools::Sender;
pub use request::Request;
pub use request::is_reserved;

/// The header that tells a server how long its client will still wait, in
/// milliseconds, so that it need not work for nobody.
pub const DEADLINE_HEADER: &str = "sandglass-deadline-remaining-ms";

/// Most redirects that one call follows: as many as browsers' early limit, and
/// more than an API needs.
const MAX_REDIRECTS: usize = 5;

/// A body, piece by piece. It ends with its last piece or its first error.
pub type Pieces = Pin<Box<dyn Stream<Item = Result<Bytes, HttpError>> + Send>>;

/// A response whose body has yet to come.
pub struct Opened {
    /// The status code.
    pub status: u16,
    /// Names and values of the headers, in their order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Pieces,
}

impl Opened {
    /// The same; `held` is dropped when the body has ended, or nobody reads it any more.
    pub fn holding(self, held: impl Send + 'static) -> Self {
        let body = futures_util::stream::unfold((self.body, held), |(mut body, held)| async move {
            let piece = body.next().await?;
            Some((piece, (body, held)))
        });
        Self { body: Box::pin(body), ..self }
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("status", &self.status).finish_non_exhaustive()
    }
}

/// What came back.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names and values of the headers, in their order.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
}

/// The bounds of one call.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most time that it may take, redirects included.
    pub timeout: Duration,
    /// What is left of the run's deadline, told to the server.
    pub remaining: Duration,
    /// Largest body.
    pub response_bytes: u64,
}

impl Limits {
    /// What `call` answers, or that it took longer than it may. A call that may take as long
    /// as its run is ended with that.
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

/// Why a call failed. The guest reads it and goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request can't be sent as it is.
    #[error("{0}")]
    InvalidRequest(String),
    /// The integration may not reach this host.
    #[error(
        "the host `{0}` is not allowed for this integration; grant it by `hosts` in `[grants]`"
    )]
    NotAllowed(String),
    /// The integration may reach this host, but not by this scheme or path. It holds the host.
    #[error(
        "the host `{0}` is allowed for this integration, but not this scheme or path; see its \
             `[[grants.host]]`"
    )]
    NotThisWay(String),
    /// Its name leads to addresses that are not public, and is not granted as private.
    #[error("{0}")]
    NotPublic(String),
    /// Too many requests are open.
    #[error("{0}")]
    TooManyRequests(String),
    /// The host may hold no more memory for the run.
    #[error("{0}")]
    OutOfMemory(String),
    /// It took too long.
    #[error("no complete response within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// It was cut so that the handler can save its work.
    #[error("{0}")]
    CutShort(String),
    /// The body is too large.
    #[error("the response is larger than the {0} bytes allowed")]
    TooLarge(u64),
    /// It was redirected too often.
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    /// It failed on the way.
    #[error("the request failed: {0}")]
    Transport(String),
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

/// Sends requests. The host has one that is real; tests may have others.
pub trait HttpClient: Send + Sync + fmt::Debug {
    /// Sends `request`, redirects included, where `destinations` allow it.
    fn send<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        traceparent: &'a str,
    ) -> Answer<'a, Result<Response, HttpError>>;

    /// Sends `request` and waits for the response's head only; `limits` hold until
    /// then, and `response_bytes` doesn't. A client that can't do that reads the
    /// whole response first.
    fn open<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        traceparent: &'a str,
    ) -> Answer<'a, Result<Opened, HttpError>> {
        Box::pin(async move {
            let Response { status, headers, body } =
                self.send(request, destinations, limits, traceparent).await?;
            let body = futures_util::stream::once(std::future::ready(Ok(Bytes::from(body))));
            Ok(Opened { status, headers, body: Box::pin(body) })
        })
    }
}

impl Response {
    /// `<status>\n<body>`, as the core ABI wants it.
    pub fn as_status_line_and_body(&self) -> Vec<u8> {
        let mut answer = format!("{}\n", self.status).into_bytes();
        answer.extend_from_slice(&self.body);
        answer
    }
}

/// What `call` answers, or that it took longer than `timeout`.
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
