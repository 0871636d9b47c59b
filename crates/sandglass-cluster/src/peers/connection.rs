//! One connection to another host: HTTP/2, with TLS if its address has it.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri, Version};
use http_body_util::Full;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{PeerError, REQUESTS_MAX};

/// How often a connection that carries requests is checked, and how long the other host may take.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_LIMIT: Duration = Duration::from_secs(3);
/// How much of a response is received before it is read, in bytes, and how much of all responses of a
/// connection: clients that read nothing must not use up what the others need.
const WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = REQUESTS_MAX * WINDOW_BYTES;

/// Where a host is: a URL without a path.
pub(super) struct Place {
    scheme: Scheme,
    authority: Authority,
}

impl Place {
    pub(super) fn parse(url: &str) -> Option<Self> {
        let parts = url.parse::<Uri>().ok()?.into_parts();
        Some(Self { scheme: parts.scheme?, authority: parts.authority? })
    }

    fn is_tls(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    /// The request, to this place.
    pub(super) fn addressed(&self, request: Request<Bytes>) -> Request<Full<Bytes>> {
        let (mut head, body) = request.into_parts();
        head.uri = self.uri(head.uri.path_and_query());
        head.version = Version::HTTP_2;
        Request::from_parts(head, Full::new(body))
    }

    fn uri(&self, path: Option<&PathAndQuery>) -> Uri {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query =
            Some(path.cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        // All three parts are there.
        Uri::from_parts(parts).unwrap_or_default()
    }
}

/// Connects to the host at `place`.
pub(super) async fn connect(
    place: &Place,
    tls: &TlsConnector,
) -> Result<SendRequest<Full<Bytes>>, PeerError> {
    let host = place.authority.host();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let port = place.authority.port_u16().unwrap_or(if place.is_tls() { 443 } else { 80 });
    let stream = TcpStream::connect((bare, port)).await.map_err(|error| match error.kind() {
        io::ErrorKind::ConnectionRefused => PeerError::Refused,
        _ => PeerError::Unreachable,
    })?;
    // Requests are small, and a client waits for each.
    let _ = stream.set_nodelay(true);
    if place.is_tls() {
        let name = ServerName::try_from(bare.to_owned()).map_err(|_| PeerError::Unreachable)?;
        let untrusted = |error: io::Error| {
            tracing::debug!(host, %error, "the TLS handshake with another host failed");
            let is_of_tls = error.get_ref().is_some_and(|error| error.is::<rustls::Error>());
            if is_of_tls { PeerError::Untrusted } else { PeerError::Unreachable }
        };
        let stream = tls.connect(name, stream).await.map_err(untrusted)?;
        // Not negotiated as hosts with certificates do: what serves HTTP/2 there, such as a proxy, may wait for
        // this host to begin.
        let is_plain_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let mut stream = BufReader::new(stream);
        // With TLS 1.3, a host verifies the certificate of this one after the handshake has ended here. It
        // begins HTTP/2 only if it accepts it, and so nothing is sent before that is known.
        if !is_plain_http2 && stream.fill_buf().await.map_err(untrusted)?.is_empty() {
            return Err(PeerError::Unreachable);
        }
        handshake(TokioIo::new(stream)).await
    } else {
        handshake(TokioIo::new(stream)).await
    }
}

async fn handshake<T>(io: T) -> Result<SendRequest<Full<Bytes>>, PeerError>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_LIMIT);
    let (sender, connection) = builder.handshake(io).await.map_err(|_| PeerError::Unreachable)?;
    tokio::spawn(async move {
        // Requests have the error.
        let _ = connection.await;
    });
    Ok(sender)
}
