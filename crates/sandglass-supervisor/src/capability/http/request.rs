//! The requests of guests: whether they are valid, and how a redirect changes them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, StatusCode};
use sandglass_source::json;
use url::Url;

use super::destination::host_and_port;
use super::{DEADLINE_HEADER, HttpError, Pieces, Sender};
use crate::capability::outside::RequestCharge;
use crate::capability::requests::Journey;

/// Longest URL, in bytes; servers reject much shorter ones.
const URL_MAX_BYTES: usize = 64 << 10;

/// Longest method, in bytes; registered ones have at most 17.
const METHOD_MAX_BYTES: usize = 64;

/// Most bytes of the names and values of all headers of one request; servers reject much smaller ones.
const HEADERS_MAX_BYTES: usize = 256 << 10;

/// Most headers of one request; servers reject more.
const MAX_HEADERS: usize = 100;

/// Headers that the host writes itself, and whose value the guest cannot mean otherwise. What a guest
/// gives for them is dropped, because guests of other hosts set them.
const DROPPED: [&str; 2] = ["host", "traceparent"];

/// Begins the names of headers by which guests of Temper annotate the span of a request, also with
/// prompts. They are for the host alone, and no server may receive them.
const SPAN_HINT: &str = "x-temper-span-";

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

/// Whether a header of the guest is kept by a redirect to another origin.
fn is_kept_across_origins(name: &HeaderName) -> bool {
    name == USER_AGENT || name.as_str().starts_with("accept")
}

/// A request of a guest, checked as far as possible without sending it.
#[derive(Debug)]
pub struct Request {
    /// The whole address as the guest wrote it: secrets are searched in it.
    pub(in crate::capability) raw: String,
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Body,
    /// The owner of the connections that it uses.
    pub(in crate::capability) sender: Sender,
    /// Receives the progress of the request, if it is noted.
    pub(in crate::capability) journey: Option<Arc<Journey>>,
    /// The charge while it is sent and its response is read; `None` outside of a run.
    pub(in crate::capability) charge: Option<RequestCharge>,
}

/// The body of a request.
pub(super) enum Body {
    Whole(Bytes),
    /// A stream, which is sent once, so redirects are not followed; `None` afterwards, or if there is no
    /// body. `length` is what the guest has declared, in bytes.
    Pieces {
        pieces: Option<Pieces>,
        length: Option<u64>,
    },
}

impl Body {
    /// Whether there is something to send.
    pub(super) fn is_some(&self) -> bool {
        match self {
            Self::Whole(bytes) => !bytes.is_empty(),
            Self::Pieces { pieces, .. } => pieces.is_some(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Pieces { .. } => f.write_str("a stream"),
        }
    }
}

impl Request {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        self.method.as_str()
    }

    /// The address.
    #[must_use]
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// The tenant of the guest. Tenants must not share connections.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.sender.tenant
    }

    /// The integration of the guest.
    #[must_use]
    pub fn integration(&self) -> &str {
        &self.sender.integration
    }

    /// The length that the guest has declared for a streamed body, in bytes. A client must fail if the
    /// body has another length.
    #[must_use]
    pub fn declared_length(&self) -> Option<u64> {
        match self.body {
            Body::Whole(_) => None,
            Body::Pieces { length, .. } => length,
        }
    }

    /// The names and values of the guest's headers, in their order, without values that are not text.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)))
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// The guest aborts it, or it is larger than `most` bytes.
    pub async fn into_body(self, most: u64) -> Result<Bytes, HttpError> {
        let mut pieces = match self.body {
            Body::Whole(bytes) if bytes.len() as u64 > most => {
                return Err(HttpError::TooLarge(most));
            }
            Body::Whole(bytes) => return Ok(bytes),
            Body::Pieces { pieces: None, .. } => return Ok(Bytes::new()),
            Body::Pieces { pieces: Some(pieces), .. } => pieces,
        };
        let mut whole = Vec::new();
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            if (whole.len() as u64).saturating_add(piece.len() as u64) > most {
                return Err(HttpError::TooLarge(most));
            }
            whole.extend_from_slice(&piece);
        }
        Ok(whole.into())
    }

    /// Reads a request of the core ABI, whose headers are a JSON array of pairs. Any other text means
    /// no headers.
    pub fn read(
        method: &str,
        url: &str,
        headers: &str,
        body: impl Into<Bytes>,
    ) -> Result<Self, String> {
        Self::new(method, url, pairs(headers)?, body)
    }

    /// As [`Request::read`], with a streamed body. Redirects are not followed.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn read_streamed(
        method: &str,
        url: &str,
        headers: &str,
        body: Pieces,
    ) -> Result<Self, String> {
        Self::streamed(method, url, pairs(headers)?, body)
    }

    /// Creates a request with its whole body.
    ///
    /// # Errors
    /// It is invalid; the text states why.
    pub fn new(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        body: impl Into<Bytes>,
    ) -> Result<Self, String> {
        Self::of(method, url, headers, Body::Whole(body.into()))
    }

    /// Creates a request without a body, whose guest follows redirects itself.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn without_redirects(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, String> {
        Self::of(method, url, headers, Body::Pieces { pieces: None, length: None })
    }

    /// Creates a request with a streamed body. Redirects are not followed.
    ///
    /// # Errors
    /// As [`Request::new`].
    pub fn streamed(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        body: Pieces,
    ) -> Result<Self, String> {
        Self::of(method, url, headers, Body::Pieces { pieces: Some(body), length: None })
    }

    fn of(
        method: &str,
        url: &str,
        headers: impl IntoIterator<Item = (String, String)>,
        mut body: Body,
    ) -> Result<Self, String> {
        if method.len() > METHOD_MAX_BYTES {
            return Err(format!(
                "the method has {} bytes, and {METHOD_MAX_BYTES} are allowed",
                method.len()
            ));
        }
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
        let raw = url.to_owned();
        let url = Url::parse(url).map_err(|error| format!("the URL is not valid: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "the URL's scheme is `{}`, and only http and https are served",
                url.scheme()
            ));
        }
        let headers = header_map(headers, &mut body)?;
        let sender = Sender::default();
        Ok(Self { raw, method, url, headers, body, sender, journey: None, charge: None })
    }

    /// Sets a header that the guest has not set.
    pub(in crate::capability) fn set_default_header(
        &mut self,
        name: &'static str,
        value: &'static str,
    ) {
        self.headers.entry(name).or_insert(HeaderValue::from_static(value));
    }

    /// The host and port of its destination.
    pub(super) fn server(&self) -> String {
        let port = self.url.port_or_known_default().unwrap_or_default();
        format!("{}:{port}", self.url.host_str().unwrap_or_default())
    }

    /// An upper bound on the memory of its head, in bytes: its texts, an allocation for each, and the
    /// spare capacity of texts and maps that have grown.
    pub fn head_bytes(&self) -> u64 {
        const HEADER_BYTES: usize = 512;
        let texts = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        let headers = texts.sum::<usize>() + self.headers.len() * HEADER_BYTES;
        (self.raw.len() + 2 * self.url.as_str().len() + headers) as u64
    }

    /// Method, host (with its port unless that is the default) and path: what reports may show.
    pub fn destination(&self) -> (String, String, String) {
        let path = self.url.path().to_owned();
        (self.method.as_str().to_owned(), host_and_port(&self.url), path)
    }

    /// Changes the request as a redirect to `location` requires (RFC 9110, 15.4).
    pub(super) fn redirected(
        mut self,
        status: StatusCode,
        location: &str,
    ) -> Result<Self, HttpError> {
        let url = self.url.join(location).map_err(|error| {
            HttpError::Transport(format!("redirected to what is no URL: {error}"))
        })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(HttpError::Transport("redirected to another scheme than http".to_owned()));
        }
        if url.origin() != self.url.origin() {
            // Any header may contain a credential of the first origin.
            let kept = self.headers.iter().filter(|(name, _)| is_kept_across_origins(name));
            self.headers = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
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
        // The server chose the location, which may contain a secret that was sent to it.
        location.clone_into(&mut self.raw);
        Ok(self)
    }
}

fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    match json::read(text) {
        Err(error @ json::Error::TooManyValues(_)) => Err(format!("the headers: {error}")),
        // Guests of other hosts rely on it.
        read => Ok(read.unwrap_or_default()),
    }
}

/// Whether guests may not set the header `name`.
pub fn is_reserved(name: &HeaderName) -> bool {
    RESERVED.contains(&name.as_str())
}

fn header_map(
    pairs: impl IntoIterator<Item = (String, String)>,
    body: &mut Body,
) -> Result<HeaderMap, String> {
    let (mut headers, mut bytes) = (HeaderMap::new(), 0_usize);
    for (name, value) in pairs {
        bytes = bytes.saturating_add(name.len()).saturating_add(value.len());
        if bytes > HEADERS_MAX_BYTES {
            return Err(format!(
                "the headers have more than the {HEADERS_MAX_BYTES} bytes allowed"
            ));
        }
        if headers.len() == MAX_HEADERS {
            return Err(format!("more than the {MAX_HEADERS} headers that are allowed"));
        }
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| "a header has a name that is not valid".to_owned())?;
        if name == CONTENT_LENGTH {
            declare_length(body, &value)?;
            continue;
        }
        if DROPPED.contains(&name.as_str()) || name.as_str().starts_with(SPAN_HINT) {
            continue;
        }
        if is_reserved(&name) {
            return Err(format!("the header `{name}` is set by the host"));
        }
        let value = HeaderValue::from_str(&value)
            .map_err(|_| format!("the header `{name}` has a value that is not valid"))?;
        headers.append(name, value);
    }
    Ok(headers)
}

/// Notes the declared length of a streamed body, which only the guest knows. The host writes the
/// header from it, and from a whole body itself.
fn declare_length(body: &mut Body, value: &str) -> Result<(), String> {
    let Body::Pieces { length, .. } = body else { return Ok(()) };
    // Digits alone (RFC 9110, 8.6): a parser of numbers takes a sign as well.
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let declared = value.parse().ok().filter(|_| is_number);
    let Some(declared) = declared else {
        return Err(format!("the header `{CONTENT_LENGTH}` is not a number of bytes"));
    };
    match length.replace(declared) {
        Some(other) if other != declared => {
            Err(format!("the header `{CONTENT_LENGTH}` states two lengths"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, url: &str, headers: &str) -> Result<Request, String> {
        Request::read(method, url, headers, vec![1])
    }

    #[test]
    fn invalid_requests_are_rejected_with_their_reason() {
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
            ("GET", "http://x/", "[[\"a\\n\",\"y\"]]", "name"),
            ("GET", "http://x/", "[[\"a\",\"y\\n\"]]", "value"),
        ] {
            let error = request(method, url, headers).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn redirects_drop_credentials_and_bodies_as_the_standard_says() {
        let headers =
            r#"[["x-api-key","x"],["accept","y"],["user-agent","z"],["accept-language","a"]]"#;
        let post = || request("POST", "http://a/", headers).expect("valid");
        let length = |request: &Request| match &request.body {
            Body::Whole(bytes) => bytes.len(),
            Body::Pieces { .. } => panic!("it was whole"),
        };
        let same = post().redirected(StatusCode::TEMPORARY_REDIRECT, "/b").expect("valid");
        assert_eq!((&same.method, length(&same), same.headers.len()), (&Method::POST, 1, 4));
        let other = post().redirected(StatusCode::SEE_OTHER, "http://b/").expect("valid");
        assert_eq!((&other.method, length(&other), other.headers.len()), (&Method::GET, 0, 3));
        assert!(!other.headers.contains_key("x-api-key"));
        assert!(post().redirected(StatusCode::FOUND, "file:///x").is_err());
    }

    #[test]
    fn only_a_streamed_body_declares_its_length_and_in_digits_alone() {
        let streamed = |lengths: &[&str]| {
            let headers =
                lengths.iter().map(|text| ("Content-Length".to_owned(), (*text).to_owned()));
            let pieces: Pieces = Box::pin(futures_util::stream::empty());
            Request::streamed("POST", "http://x/", headers.collect::<Vec<_>>(), pieces)
        };
        let declared = streamed(&["220", "220"]).expect("a number");
        assert_eq!((declared.declared_length(), declared.headers().count()), (Some(220), 0));
        assert_eq!(streamed(&[]).expect("none").declared_length(), None);
        for bad in [&["+220"][..], &["-1"], &[""], &["0x1"], &["1, 2"], &["1 "], &["1", "2"]] {
            assert!(streamed(bad).is_err(), "{bad:?}");
        }
        assert!(streamed(&["99999999999999999999"]).is_err());
    }

    #[test]
    fn headers_that_the_host_writes_are_dropped_and_what_is_no_list_of_pairs_is_none() {
        let headers = r#"[["Host","y"],["traceparent","00"],["Content-Length","7"],["a","b"],
            ["X-Temper-Span-Name","call"],["x-temper-span-attr-prompt","two\nlines"]]"#;
        let request = |headers: &str| request("POST", "http://x/", headers).expect("valid");
        assert_eq!(request(headers).headers().collect::<Vec<_>>(), [("a", "b")]);
        for none in ["", "{}", "[[\"a\"]]", "[[\"a\",1]]", "{\"a\":\"b\"}", "[[", "\u{1}"] {
            assert_eq!(request(none).headers().count(), 0, "{none}");
        }
    }

    #[test]
    fn headers_of_more_values_than_are_read_are_refused() {
        let many = format!("[{}[]]", "[],".repeat(70_000));
        assert!(request("GET", "http://x/", &many).expect_err("too many").contains("holds more"));
    }
}
