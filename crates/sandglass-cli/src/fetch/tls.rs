//! TLS of the HTTP client: which certificates it trusts and presents, and what its errors mean.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ConfigBuilder, Error, RootCertStore,
    WantsVerifier,
};
use rustls_platform_verifier::BuilderVerifierExt as _;
use sandglass_host::file;
use sandglass_http::parse_root_store;

use sandglass_server::PEM_MAX_BYTES;

/// Starts a configuration of rustls. reqwest could read the files itself, but its errors name neither
/// the file nor what is wrong with it, and it takes its cryptography from a global of the process.
fn builder() -> Result<ConfigBuilder<ClientConfig, WantsVerifier>, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()
}

/// TLS that trusts the certificates in the file `ca`, or else those of the system, and presents the
/// certificate in the file `identity`.
///
/// # Errors
/// Errors if one of the files cannot be used; which one, and why.
pub(super) fn tls(ca: Option<&Path>, identity: Option<&Path>) -> anyhow::Result<ClientConfig> {
    let builder = builder()?;
    let builder = match ca {
        Some(path) => {
            let roots = parse_root_store(&file::read(path, PEM_MAX_BYTES).context("--ca")?);
            let roots = roots.map_err(|why| anyhow!("--ca: `{}`: {why}", path.display()))?;
            builder.with_root_certificates(roots)
        }
        None => builder
            .with_platform_verifier()
            .context("failed to load the system's CA certificates; name a file with --ca")?,
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let unusable = || format!("--identity: `{}`", path.display());
            let pem = file::read(path, PEM_MAX_BYTES).context("--identity")?;
            let chain = sandglass_http::parse_certificates(&pem);
            let chain = chain.map_err(anyhow::Error::msg).with_context(unusable)?;
            let key = sandglass_http::parse_private_key(&pem);
            let key = key.map_err(anyhow::Error::msg).with_context(unusable)?;
            builder.with_client_auth_cert(chain, key).map_err(not_a_pair).with_context(unusable)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn not_a_pair(error: Error) -> anyhow::Error {
    match error {
        Error::InconsistentKeys(_) => {
            anyhow!("the private key does not match the first certificate")
        }
        _ => error.into(),
    }
}

/// TLS that is never used. A machine without certificates can still reach plain HTTP.
pub(super) fn no_tls() -> anyhow::Result<ClientConfig> {
    Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Finds the error of TLS in `error` or its sources.
pub(super) fn tls_error<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Error> {
    // `source` skips the error that an I/O error wraps.
    let wrapped = || error.downcast_ref::<io::Error>()?.get_ref();
    error.downcast_ref().or_else(|| tls_error(wrapped()?)).or_else(|| tls_error(error.source()?))
}

/// The advice for an error of TLS.
pub(super) fn tls_hint(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => "its certificate is not signed by a CA that is trusted here; name its CA with --ca",
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another name; use the name that the certificate has",
        Error::InvalidCertificate(_) => "its certificate is not valid",
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it requires a certificate from its clients; name one with --identity"
        }
        Error::InvalidMessage(_) => "it does not speak TLS; use http:// if that is intended",
        _ => return None,
    })
}
