//! The flags of a server that serves HTTPS.

use std::path::PathBuf;

use sandglass_server::TlsFiles;

#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// Serve HTTPS with the certificate chain in this file (PEM); SIGHUP reads it again
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Serve only clients with a certificate that a CA in this file (PEM) has signed
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_client_ca: Option<PathBuf>,
}

impl Arguments {
    /// The files that are named, if any.
    pub(crate) fn files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_certificate.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key, client_ca: self.tls_client_ca.clone() })
    }
}
