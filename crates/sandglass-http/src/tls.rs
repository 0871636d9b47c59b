//! TLS of a served interface: a certificate that can be replaced while connections are open, and
//! the handshake.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{Acceptor, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::connection::Connection;
use crate::peer_tls::{PEER, PeerTls};

/// The protocol name of HTTP/2 (RFC 9113, 3.1).
pub(crate) const H2: &[u8] = b"h2";
const HTTP_11: &[u8] = b"http/1.1";
/// The first byte of a TLS connection: a handshake record (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// The message about a file that is cut or damaged.
const NOT_PEM: &str = "it is not PEM, or not all of it";
/// Most certificates in a file.
const CERTIFICATES_MAX: usize = 1_000;
/// How much of the request of a client without TLS is read, in bytes, so that it receives the response
/// before the connection is reset.
const PLAIN_MAX_BYTES: u64 = 64 << 10;
/// The response to a client without TLS.
const PLAIN_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 55\r\nconnection: close\r\n\r\n\
    this address serves TLS only: use https:// to reach it\n";

/// A connection of a client, with TLS or without.
pub(crate) type Io = Either<Connection, Box<TlsStream<Connection>>>;

/// Certificate, key and rules for the TLS of an interface. Clones share them.
#[derive(Clone, Debug)]
pub struct Tls(Arc<RwLock<TlsSettings>>);

/// Checked settings of TLS, see [`TlsSettings::from_pem`].
#[derive(Clone, Debug)]
pub struct TlsSettings {
    clients: Arc<ServerConfig>,
    /// For connections of other hosts.
    peers: Option<Arc<ServerConfig>>,
}

/// Which part of the TLS settings is wrong, and why.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate chain.
    #[error("{0}")]
    Certificate(String),
    /// The private key.
    #[error("{0}")]
    Key(String),
    /// The certificates by which those of clients, or of other hosts, are verified.
    #[error("{0}")]
    ClientCa(String),
}

impl TlsSettings {
    /// Settings for TLS 1.2 and 1.3 with the certificate chain `certificate`, the server's own
    /// certificate first, and its private key `key`. With `client_ca`, clients must present a
    /// certificate that one of those certificates has signed. All are PEM.
    ///
    /// # Errors
    /// Errors if one of them is invalid, or the key does not belong to the certificate.
    /// No error contains a part of the key.
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let chain = parse_certificates(certificate).map_err(TlsError::Certificate)?;
        let key = parse_private_key(key).map_err(TlsError::Key)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Certificate(error.to_string()))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                let roots = parse_root_store(roots).map_err(TlsError::ClientCa)?;
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier
                    .build()
                    .map_err(|error: VerifierBuilderError| TlsError::ClientCa(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(key_or_certificate_error)?;
        config.alpn_protocols = vec![H2.to_vec(), HTTP_11.to_vec()];
        Ok(Self { clients: Arc::new(config), peers: None })
    }

    /// Also serves other hosts of a cluster, by `peers`. Other connections are served as before.
    #[must_use]
    pub fn with_peers(self, peers: &PeerTls) -> Self {
        Self { peers: Some(Arc::clone(&peers.server)), ..self }
    }
}

/// What is wrong with a certificate chain and a key that cannot be used together.
pub(crate) fn key_or_certificate_error(error: rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Key(
            "it does not match the server's certificate, which must be the first one in the chain"
                .to_owned(),
        ),
        rustls::Error::InvalidCertificate(why) => {
            TlsError::Certificate(format!("failed to read a certificate: {why}"))
        }
        _ => TlsError::Key(error.to_string()),
    }
}

/// The private key in a PEM text.
///
/// # Errors
/// Errors if the text contains no private key, or an encrypted one. The error never contains a part
/// of the key.
pub fn parse_private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| {
        let text = String::from_utf8_lossy(text);
        if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") {
            "the private key is encrypted; decrypt it, for example with `openssl pkey`".to_owned()
        } else if matches!(error, pem::Error::NoItemsFound) {
            "no private key (PEM) found".to_owned()
        } else {
            NOT_PEM.to_owned()
        }
    })
}

/// The certificates in a PEM text: at least one.
///
/// # Errors
/// Errors if the text contains no certificate, or is not valid PEM.
pub fn parse_certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let read: Result<Vec<_>, _> =
        CertificateDer::pem_slice_iter(text).take(CERTIFICATES_MAX + 1).collect();
    let read = read.map_err(|_| NOT_PEM.to_owned())?;
    match read.len() {
        0 => Err("no certificate (PEM) found".to_owned()),
        many if many > CERTIFICATES_MAX => {
            Err(format!("it has more than {CERTIFICATES_MAX} certificates"))
        }
        _ => Ok(read),
    }
}

/// Roots of trust from a PEM text with at least one certificate.
///
/// # Errors
/// Errors if the text contains no certificate, or one that is not valid.
pub fn parse_root_store(text: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in parse_certificates(text)? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

impl Tls {
    /// TLS with these settings.
    #[must_use]
    pub fn new(settings: TlsSettings) -> Self {
        Self(Arc::new(RwLock::new(settings)))
    }

    /// Uses these settings for each handshake from now on. Connections that are open stay as they
    /// are.
    pub fn replace(&self, settings: TlsSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// Completes the handshake. `None` if the client does not speak TLS; it got an error then.
    ///
    /// # Errors
    /// Errors if the handshake fails, for example because a required client certificate is missing.
    pub(crate) async fn accept(
        &self,
        connection: Connection,
    ) -> io::Result<Option<TlsStream<Connection>>> {
        match connection.peek().await? {
            None => return Ok(None),
            Some(HANDSHAKE) => {}
            Some(_) => return refuse_plain(connection).await.map(|()| None),
        }
        let hello = LazyConfigAcceptor::new(Acceptor::default(), connection).await?;
        let is_peer = hello
            .client_hello()
            .alpn()
            .is_some_and(|mut protocols| protocols.any(|protocol| protocol == PEER));
        let TlsSettings { clients, peers } =
            self.0.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = peers.filter(|_| is_peer).unwrap_or(clients);
        hello.into_stream(config).await.map(Some)
    }
}

async fn refuse_plain(mut connection: Connection) -> io::Result<()> {
    connection.write_all(PLAIN_RESPONSE).await?;
    connection.shutdown().await?;
    // The slot bounds the time.
    tokio::io::copy(&mut connection.take(PLAIN_MAX_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

/// Whether HTTP/2 was negotiated.
pub(crate) fn speaks_http2(stream: &TlsStream<Connection>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(H2) || is_peer(stream)
}

/// Whether the other side is a host of the cluster, which has proved that by its certificate. Only the
/// settings for hosts, which require one, have this protocol.
pub(crate) fn is_peer(stream: &TlsStream<Connection>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(PEER)
}
