//! The files of a server's certificate: their flags, and reading and checking them.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use sandglass_host::file;
use sandglass_http::{TlsError, TlsSettings, is_loopback_address};

use crate::terminal::report_progress;

/// Largest file of certificates or keys, in bytes: the roots of a whole system fit.
pub(crate) const PEM_MAX_BYTES: u64 = 1 << 20;
/// The bits of a mode that give all users of the machine access.
const ALL_USERS: u32 = 0o007;

/// The flags of a server that serves HTTPS.
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

/// The files of a server that serves HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

impl Arguments {
    /// The files that are named, if any.
    pub(crate) fn files(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_certificate.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key, client_ca: self.tls_client_ca.clone() })
    }
}

impl TlsFiles {
    /// Reads and checks them. A key that every user of the machine can read is usable, with a
    /// warning.
    ///
    /// # Errors
    /// Errors if one cannot be used; which one, and why.
    pub(crate) fn read(&self) -> anyhow::Result<TlsSettings> {
        let Self { certificate, key, client_ca } = self;
        let chain = file::read(certificate, PEM_MAX_BYTES).context("the TLS certificate")?;
        let private = file::read(key, PEM_MAX_BYTES).context("the TLS key")?;
        let roots = client_ca.as_deref().map(|path| file::read(path, PEM_MAX_BYTES)).transpose();
        let roots = roots.context("the CA of TLS clients")?;
        let settings = TlsSettings::from_pem(&chain, &private, roots.as_deref());
        let settings = settings.map_err(|error| {
            let (what, path) = match &error {
                TlsError::Key(_) => ("the TLS key", key.as_path()),
                TlsError::ClientCa(_) => {
                    ("the CA of TLS clients", client_ca.as_deref().unwrap_or(Path::new("")))
                }
                _ => ("the TLS certificate", certificate.as_path()),
            };
            anyhow!("{what} in `{}` cannot be used: {error}", path.display())
        })?;
        let mode = std::fs::metadata(key).map_or(0, |metadata| metadata.mode());
        if mode & ALL_USERS != 0 {
            let path = key.display();
            report_progress(&format!(
                "warning: every user of this machine can read the TLS key in `{path}`; `chmod 600` \
                 it"
            ));
        }
        Ok(settings)
    }
}

/// Warns that clients send their keys in clear text, if other machines can reach `listen`.
pub(crate) fn warn_of_plain_http(listen: SocketAddr) {
    if let Some(warning) = plain_http_warning(listen) {
        report_progress(&warning);
    }
}

fn plain_http_warning(listen: SocketAddr) -> Option<String> {
    (!is_loopback_address(listen.ip())).then(|| {
        format!(
            "warning: {listen} is not a loopback address, and without TLS clients send their keys \
             in clear text; serve HTTPS with --tls-certificate and --tls-key (or `[tls]` in the \
             configuration), or put a proxy in front"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_warned_of_unless_it_stays_on_this_machine() {
        let warns = |listen: &str| plain_http_warning(listen.parse().expect("an address"));
        for listen in ["127.0.0.1:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(warns(listen), None, "{listen}");
        }
        for listen in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1"] {
            let warning = warns(listen).expect("others can reach it");
            assert!(warning.contains(listen) && warning.contains("--tls-key"), "{warning}");
        }
    }
}
