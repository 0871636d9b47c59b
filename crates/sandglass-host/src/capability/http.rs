//! HTTP to the outside: only to the hosts that the integration may reach, for no
//! longer than its deadline leaves, and no larger than its bound, checked while
//! the body is read.

use std::collections::BTreeSet;
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode, Url};
use tokio::sync::OnceCell;

use crate::abi::guest_memory::Unreadable;
use crate::race::CallEnded;
use crate::secret::Answer;

/// The header that tells a server how long its client will still wait, in
/// milliseconds, so that it need not work for nobody.
pub const DEADLINE_HEADER: &str = "sandglass-deadline-remaining-ms";

/// Most redirects that one call follows: as many as browsers' early limit, and
/// more than an API needs.
const MAX_REDIRECTS: usize = 5;

/// Longest URL, in bytes; servers refuse ones of a fraction of this.
const URL_MAX_BYTES: usize = 64 << 10;

/// Most headers of one request; servers refuse more.
const MAX_HEADERS: usize = 100;

/// Headers that belong to the connection or to the host, not to the guest.
const RESERVED: [&str; 14] = [
    "host",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "proxy-authorization",
    "proxy-authenticate",
    "expect",
    "upgrade",
    "te",
    "trailer",
    "http2-settings",
    "traceparent",
    DEADLINE_HEADER,
];

/// Headers that don't follow a redirect to another origin.
const SENSITIVE: [&str; 3] = ["authorization", "cookie", "www-authenticate"];

/// A request that a guest made, valid as far as one can see without sending it.
#[derive(Debug)]
pub struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Body,
}

/// What a request sends.
enum Body {
    Whole(Bytes),
    /// Sent once, so a redirect can't be followed; then nothing.
    Pieces(Option<Pieces>),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Pieces(_) => f.write_str("a stream"),
        }
    }
}

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

/// Why a call failed. The guest reads it and goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The request can't be sent as it is.
    #[error("{0}")]
    InvalidRequest(String),
    /// The integration may not reach this host.
    #[error("the host `{0}` is not allowed for this integration")]
    NotAllowed(String),
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

impl From<CallEnded> for HttpError {
    fn from(ended: CallEnded) -> Self {
        match ended {
            CallEnded::TimedOut(limit) => Self::TimedOut(limit),
            CallEnded::SoftDeadline => Self::CutShort(ended.to_string()),
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

/// The hosts that an integration may reach: none, unless they are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations(BTreeSet<Destination>);

/// One host that may be reached: `NAME`, with all its ports, or `NAME:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Destination {
    host: String,
    port: Option<u16>,
}

/// A text that names no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names no host: write NAME or NAME:PORT ([::1] for an IPv6 address), without a scheme or path"
)]
pub struct InvalidDestination(String);

impl FromStr for Destination {
    type Err = InvalidDestination;

    fn from_str(text: &str) -> Result<Self, InvalidDestination> {
        let invalid = || InvalidDestination(text.chars().filter(|c| !c.is_control()).collect());
        // A `*` would match nothing, and whoever writes it means something else.
        if text.contains(['/', '@', '?', '#', '\\', '*']) {
            return Err(invalid());
        }
        // The parser that reads guests' URLs also reads this, so that both spell
        // a host alike.
        let url = Url::parse(&format!("sandglass://{text}")).map_err(|_| invalid())?;
        let http = Url::parse(&format!("http://{text}")).map_err(|_| invalid())?;
        match http.host_str() {
            Some(host) if !host.is_empty() => Ok(Self { host: host.to_owned(), port: url.port() }),
            _ => Err(invalid()),
        }
    }
}

impl FromIterator<Destination> for Destinations {
    fn from_iter<I: IntoIterator<Item = Destination>>(destinations: I) -> Self {
        Self(destinations.into_iter().collect())
    }
}

impl Destinations {
    /// These and `others`.
    pub(crate) fn and(mut self, others: impl IntoIterator<Item = Destination>) -> Self {
        self.0.extend(others);
        self
    }

    fn check(&self, url: &Url) -> Result<(), HttpError> {
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default();
        let allowed = self.0.iter().any(|allowed| {
            allowed.host == host && (allowed.port.is_none() || allowed.port == port)
        });
        if allowed {
            return Ok(());
        }
        Err(HttpError::NotAllowed(match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }))
    }
}

impl Request {
    /// Reads a request as the core ABI gives it: headers are a JSON array of
    /// pairs, or nothing.
    pub(crate) fn read(
        method: Result<String, Unreadable>,
        url: Result<String, Unreadable>,
        headers: Result<String, Unreadable>,
        body: Result<Vec<u8>, Unreadable>,
    ) -> Result<Self, String> {
        let readable = |unreadable: Unreadable| unreadable.to_string();
        let method = method.map_err(readable)?;
        let url = url.map_err(readable)?;
        let headers = pairs(&headers.map_err(readable)?)?;
        Self::new(&method, &url, headers, body.map_err(readable)?)
    }

    /// A request with its whole body.
    ///
    /// # Errors
    /// It can't be sent as it is; the text says what is wrong.
    pub(crate) fn new(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        body: impl Into<Bytes>,
    ) -> Result<Self, String> {
        Self::of(method, url, headers, Body::Whole(body.into()))
    }

    /// A request whose body comes piece by piece. Redirects are not followed.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub(crate) fn streamed(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        body: Pieces,
    ) -> Result<Self, String> {
        Self::of(method, url, headers, Body::Pieces(Some(body)))
    }

    fn of(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        body: Body,
    ) -> Result<Self, String> {
        let method = Method::from_bytes(method.to_ascii_uppercase().as_bytes())
            .map_err(|_| "the method is no HTTP method".to_owned())?;
        if method == Method::CONNECT {
            return Err("the method CONNECT opens a tunnel, and only requests are sent".to_owned());
        }
        if url.len() > URL_MAX_BYTES {
            return Err(format!(
                "the URL has {} bytes, and {URL_MAX_BYTES} are allowed",
                url.len()
            ));
        }
        let url = Url::parse(url).map_err(|error| format!("the URL is not valid: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "the URL's scheme is `{}`, and only http and https are served",
                url.scheme()
            ));
        }
        Ok(Self { method, url, headers: header_map(headers, &body)?, body })
    }

    /// The request that a redirect to `location` asks for (RFC 9110, 15.4).
    fn redirected(mut self, status: StatusCode, location: &str) -> Result<Self, HttpError> {
        let url = self.url.join(location).map_err(|error| {
            HttpError::Transport(format!("redirected to what is no URL: {error}"))
        })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(HttpError::Transport("redirected to another scheme than http".to_owned()));
        }
        if url.origin() != self.url.origin() {
            for name in SENSITIVE {
                self.headers.remove(name);
            }
        }
        let becomes_get = status == StatusCode::SEE_OTHER && self.method != Method::HEAD
            || matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND)
                && self.method == Method::POST;
        if becomes_get {
            self.method = Method::GET;
            self.body = Body::Whole(Bytes::new());
            self.headers.remove("content-type");
        }
        self.url = url;
        Ok(self)
    }
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    crate::json::read(text)
        .map_err(|error| format!("the headers are no JSON array of pairs: {error}"))
}

/// Whether the header `name` is never the guest's to set.
pub(crate) fn is_reserved(name: &HeaderName) -> bool {
    RESERVED.contains(&name.as_str())
}

fn header_map(
    pairs: impl IntoIterator<Item = (String, String)>,
    body: &Body,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        if headers.len() == MAX_HEADERS {
            return Err(format!("more than the {MAX_HEADERS} headers that are allowed"));
        }
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| "a header has a name that is not valid".to_owned())?;
        // Only of a streamed body does nobody else know the length.
        let counted = name == CONTENT_LENGTH && matches!(body, Body::Whole(_));
        if is_reserved(&name) || counted {
            return Err(format!("the header `{name}` is set by the host"));
        }
        let value = HeaderValue::from_str(&value)
            .map_err(|_| format!("the header `{name}` has a value that is not valid"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

impl Response {
    /// `<status>\n<body>`, as the core ABI wants it.
    pub(crate) fn as_status_line_and_body(&self) -> Vec<u8> {
        let mut answer = format!("{}\n", self.status).into_bytes();
        answer.extend_from_slice(&self.body);
        answer
    }
}

/// The real client: connections are pooled and shared by all dispatches. It is
/// made when the first request is, and reads the system's certificates then.
#[derive(Debug, Default)]
pub(crate) struct NetworkClient(OnceCell<reqwest::Client>);

impl NetworkClient {
    async fn client(&self) -> Result<&reqwest::Client, HttpError> {
        let made = self.0.get_or_try_init(|| async {
            // Reading certificates is file I/O: no guest's thread may wait in it.
            let made = tokio::task::spawn_blocking(|| {
                client(reqwest::Client::builder()).or_else(|_| {
                    // A machine without certificates can still reach plain HTTP.
                    client(reqwest::Client::builder().tls_certs_only([]))
                })
            });
            made.await.unwrap_or_else(|_| Err("its making failed".to_owned()))
        });
        made.await.map_err(|why| HttpError::Transport(format!("there is no HTTP client: {why}")))
    }

    async fn once(
        &self,
        request: &mut Request,
        remaining: Duration,
        traceparent: &str,
    ) -> Result<reqwest::Response, HttpError> {
        let body = match &mut request.body {
            Body::Whole(bytes) => reqwest::Body::from(bytes.clone()),
            Body::Pieces(pieces) => match pieces.take() {
                Some(pieces) => reqwest::Body::wrap_stream(pieces),
                None => reqwest::Body::default(),
            },
        };
        self.client()
            .await?
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone())
            .header(DEADLINE_HEADER, remaining.as_millis().to_string())
            .header("traceparent", traceparent)
            .body(body)
            .send()
            .await
            .map_err(|error| transport(&error.without_url()))
    }

    async fn follow(
        &self,
        mut request: Request,
        destinations: &Destinations,
        limits: Limits,
        traceparent: &str,
    ) -> Result<reqwest::Response, HttpError> {
        #[allow(clippy::disallowed_methods, reason = "the network answers in real time")]
        let began = tokio::time::Instant::now();
        for _ in 0..=MAX_REDIRECTS {
            destinations.check(&request.url)?;
            let remaining = limits.remaining.saturating_sub(began.elapsed());
            let response = self.once(&mut request, remaining, traceparent).await?;
            let status = response.status();
            let follows = redirects(status) && matches!(request.body, Body::Whole(_));
            let location = response.headers().get("location").filter(|_| follows);
            let Some(location) = location else { return Ok(response) };
            let location = location
                .to_str()
                .map_err(|_| HttpError::Transport("redirected to what is no URL".to_owned()))?;
            request = request.redirected(status, location)?;
        }
        Err(HttpError::TooManyRedirects)
    }
}

impl HttpClient for NetworkClient {
    fn send<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        traceparent: &'a str,
    ) -> Answer<'a, Result<Response, HttpError>> {
        Box::pin(within(limits.timeout, async move {
            let response = self.follow(request, destinations, limits, traceparent).await?;
            read(response, limits).await
        }))
    }

    fn open<'a>(
        &'a self,
        request: Request,
        destinations: &'a Destinations,
        limits: Limits,
        traceparent: &'a str,
    ) -> Answer<'a, Result<Opened, HttpError>> {
        Box::pin(within(limits.timeout, async move {
            let response = self.follow(request, destinations, limits, traceparent).await?;
            let status = response.status().as_u16();
            let headers = headers(&response);
            let body = response
                .bytes_stream()
                .map(|piece| piece.map_err(|error| transport(&error.without_url())));
            Ok(Opened { status, headers, body: Box::pin(body) })
        }))
    }
}

/// What `call` answers, or that it took longer than `timeout`.
pub(crate) async fn within<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, HttpError>>,
) -> Result<T, HttpError> {
    #[allow(clippy::disallowed_methods, reason = "the network answers in real time")]
    match tokio::time::timeout(timeout, call).await {
        Ok(answer) => answer,
        Err(_) => Err(HttpError::TimedOut(timeout)),
    }
}

fn headers(response: &reqwest::Response) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, String> {
    // Where the process has a provider already, that one serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    builder
        .redirect(reqwest::redirect::Policy::none())
        // The allow-list names who is reached; the environment sends nobody elsewhere.
        .no_proxy()
        .hickory_dns(true)
        .user_agent(concat!("sandglass/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| chain(&error))
}

fn redirects(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

async fn read(mut response: reqwest::Response, limits: Limits) -> Result<Response, HttpError> {
    let status = response.status().as_u16();
    let headers = headers(&response);
    let too_large = HttpError::TooLarge(limits.response_bytes);
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| transport(&error.without_url()))?
    {
        if (body.len() + chunk.len()) as u64 > limits.response_bytes {
            return Err(too_large);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Response { status, headers, body })
}

/// `error` comes without its URL, whose query may hold a secret.
fn transport(error: &reqwest::Error) -> HttpError {
    HttpError::Transport(chain(error))
}

/// An error with all that lies behind it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, url: &str, headers: &str) -> Result<Request, String> {
        Request::read(
            Ok(method.to_owned()),
            Ok(url.to_owned()),
            Ok(headers.to_owned()),
            Ok(vec![1]),
        )
    }

    fn allows(destinations: &str, url: &str) -> bool {
        let destinations: Destinations = destinations
            .split_whitespace()
            .map(|text| text.parse().expect("a destination"))
            .collect();
        destinations.check(&Url::parse(url).expect("a URL")).is_ok()
    }

    #[test]
    fn a_host_is_allowed_with_all_its_ports_unless_one_is_named() {
        assert!(allows("api.example", "https://API.example:8443/x"));
        assert!(allows("api.example:443", "https://api.example/"));
        assert!(allows("api.example:80", "http://api.example/"));
        assert!(allows("[::1]:8080", "http://[::1]:8080/"));
        assert!(allows("127.0.0.1", "http://127.1/"));
        assert!(!allows("api.example:443", "http://api.example/"));
        assert!(!allows("api.example", "http://api.example.evil/"));
        assert!(!allows("", "http://api.example/"));
        assert!(!allows("api.example", "http://api.example@evil/"));
    }

    #[test]
    fn a_destination_is_a_host_and_perhaps_a_port() {
        for bad in ["", "http://x", "x/y", "a@b", "x:99999", "a b", "?", "*", "*.x"] {
            assert!(bad.parse::<Destination>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn bad_requests_are_told_what_is_wrong() {
        assert!(request("GET", "http://x/", "[[\"a\",\"b\"]]").is_ok());
        assert!(request("GET", "http://x/", "").is_ok());
        for (method, url, headers, why) in [
            ("G T", "http://x/", "", "method"),
            ("connect", "http://x/", "", "CONNECT"),
            ("GET", "http://x/", "[[\"Keep-Alive\",\"5\"]]", "set by the host"),
            ("GET", "http://x/", "[[\"proxy-authorization\",\"y\"]]", "set by the host"),
            ("GET", "http://x/", "[[\"expect\",\"100-continue\"]]", "set by the host"),
            ("GET", "x", "", "URL"),
            ("GET", "file:///etc/passwd", "", "scheme"),
            ("GET", "http://x/", "{}", "pairs"),
            ("GET", "http://x/", "[[\"host\",\"y\"]]", "set by the host"),
            ("GET", "http://x/", "[[\"a\\n\",\"y\"]]", "name"),
            ("GET", "http://x/", "[[\"a\",\"y\\n\"]]", "value"),
        ] {
            let error = request(method, url, headers).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn redirects_drop_credentials_and_bodies_as_the_standard_says() {
        let headers = "[[\"authorization\",\"x\"],[\"accept\",\"y\"]]";
        let post = || request("POST", "http://a/", headers).expect("valid");
        let length = |request: &Request| match &request.body {
            Body::Whole(bytes) => bytes.len(),
            Body::Pieces(_) => panic!("it was whole"),
        };
        let same = post().redirected(StatusCode::TEMPORARY_REDIRECT, "/b").expect("valid");
        assert_eq!((&same.method, length(&same), same.headers.len()), (&Method::POST, 1, 2));
        let other = post().redirected(StatusCode::SEE_OTHER, "http://b/").expect("valid");
        assert_eq!((&other.method, length(&other), other.headers.len()), (&Method::GET, 0, 1));
        assert!(post().redirected(StatusCode::FOUND, "file:///x").is_err());
    }
}
