//! TLS between the hosts of a cluster: each presents a certificate of the cluster's CA, as a server and as a
//! client. A host names a protocol of its own (ALPN) when it connects. So a listener uses these certificates
//! for hosts alone. To clients, it presents its ordinary certificate, and requests none of them.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, ClientConfig, RootCertStore, ServerConfig};

use crate::tls::{
    H2, TlsError, key_or_certificate_error, parse_certificates, parse_private_key, parse_root_store,
};

/// The protocol name (ALPN) of a connection between hosts, over which they speak HTTP/2.
pub(crate) const PEER: &[u8] = b"sandglass-peer";

/// Checked TLS settings for connections between the hosts of a cluster, in both directions.
#[derive(Clone, Debug)]
pub struct PeerTls {
    pub(crate) server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl PeerTls {
    /// Settings for the host whose certificate chain is `certificate`, its own certificate first, with the
    /// private key `key`. It trusts hosts with certificates that one of those in `ca` has signed, as servers
    /// for the name that they advertise, and as clients with any name. All are PEM. `host` is the name or IP
    /// address by which other hosts reach this one.
    ///
    /// # Errors
    /// Errors if one of them is invalid, if the key does not belong to the certificate, or if other hosts
    /// with the same `ca` would refuse the certificate. No error contains a part of the key.
    pub fn from_pem(
        ca: &[u8],
        certificate: &[u8],
        key: &[u8],
        host: &str,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let roots = Arc::new(parse_root_store(ca).map_err(TlsError::ClientCa)?);
        let chain = parse_certificates(certificate).map_err(TlsError::Certificate)?;
        let key = parse_private_key(key).map_err(TlsError::Key)?;
        let bad_ca = |error: &dyn std::fmt::Display| TlsError::ClientCa(error.to_string());
        let client_verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider));
        let client_verifier = client_verifier.build().map_err(|error| bad_ca(&error))?;
        check_chain(&chain, host, &roots, &*client_verifier, &provider)?;

        let invalid = |error: rustls::Error| TlsError::Certificate(error.to_string());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_client_cert_verifier(client_verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(key_or_certificate_error)?;
        server.alpn_protocols = vec![PEER.to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(key_or_certificate_error)?;
        // The second one is for a host without a CA of the cluster: it is refused because of its certificate.
        client.alpn_protocols = vec![PEER.to_vec(), H2.to_vec()];
        Ok(Self { server: Arc::new(server), client: Arc::new(client) })
    }

    /// The settings for connecting to other hosts. The connections use HTTP/2.
    #[must_use]
    pub fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }
}

/// Checks that another host with the CA `roots` would accept `chain` as that of a client, and as that of the
/// server `host`.
fn check_chain(
    chain: &[CertificateDer<'_>],
    host: &str,
    roots: &Arc<RootCertStore>,
    client_verifier: &dyn ClientCertVerifier,
    provider: &Arc<CryptoProvider>,
) -> Result<(), TlsError> {
    let Some((own, intermediates)) = chain.split_first() else { return Ok(()) };
    let now = UnixTime::now();
    let refused = |error: rustls::Error| TlsError::Certificate(describe(&error, host));
    client_verifier.verify_client_cert(own, intermediates, now).map_err(refused)?;
    let server_verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let server_verifier =
        server_verifier.build().map_err(|error| TlsError::ClientCa(error.to_string()))?;
    let name = ServerName::try_from(host)
        .map_err(|_| TlsError::Certificate(format!("no certificate can be for `{host}`")))?;
    server_verifier.verify_server_cert(own, intermediates, &name, &[], now).map_err(refused)?;
    Ok(())
}

/// Why hosts refuse a certificate, and what to do.
fn describe(error: &rustls::Error, host: &str) -> String {
    let rustls::Error::InvalidCertificate(why) = error else { return error.to_string() };
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired; replace it".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; check the clock of this machine".to_owned()
        }
        CertificateError::UnknownIssuer => "no certificate of the cluster's CA has signed it; name its CA, \
             and append intermediate certificates to it"
            .to_owned(),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "hosts use it as servers and as clients, which it does not permit; issue it with the extended \
             key usages serverAuth and clientAuth"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "it is not for `{host}`, the address that this host advertises; issue it for that name, or \
                 advertise one of its names"
            )
        }
        other => format!("other hosts would refuse it: {other}"),
    }
}
