//! The files for HTTPS: reading them, and checking that they can be used.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandglass_host::file;
use sandglass_http::{TlsError, TlsSettings, is_loopback_address};

use crate::Report;
use crate::error::{Error, Result};

/// Largest file of certificates or keys, in bytes. The root certificates of a whole system fit.
pub const PEM_MAX_BYTES: u64 = 1 << 20;
/// The bits of a file mode that grant access to all users of the machine.
const ALL_USERS: u32 = 0o007;

/// The files of a server that serves HTTPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, in PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate, in PEM.
    pub key: PathBuf,
    /// The CAs of clients, in PEM; if there are any, each client needs a certificate of one.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads and checks them. A key that every user of the machine can read is usable, with a
    /// warning.
    ///
    /// # Errors
    /// Errors if one cannot be used; which one, and why.
    pub(crate) fn read(&self, report: &Report) -> Result<TlsSettings> {
        let Self { certificate, key, client_ca } = self;
        let read = |path: &Path, what: &str| {
            file::read(path, PEM_MAX_BYTES)
                .map_err(|error| Error::Unusable(format!("{what}: {error}")))
        };
        let chain = read(certificate, "the TLS certificate")?;
        let private = read(key, "the TLS key")?;
        let client_ca = client_ca.as_deref();
        let roots = client_ca.map(|path| read(path, "the CA of TLS clients")).transpose()?;
        let settings = TlsSettings::from_pem(&chain, &private, roots.as_deref());
        let settings = settings.map_err(|error| {
            let (what, path) = match &error {
                TlsError::Key(_) => ("the TLS key", key.as_path()),
                TlsError::ClientCa(_) => {
                    ("the CA of TLS clients", client_ca.unwrap_or(Path::new("")))
                }
                _ => ("the TLS certificate", certificate.as_path()),
            };
            Error::Unusable(format!("{what} in `{}` cannot be used: {error}", path.display()))
        })?;
        let mode = std::fs::metadata(key).map_or(0, |metadata| metadata.mode());
        if mode & ALL_USERS != 0 {
            let path = key.display();
            report(&format!(
                "warning: every user of this machine can read the TLS key in `{path}`; `chmod 600` \
                 it"
            ));
        }
        Ok(settings)
    }
}

/// Warns that clients send their keys in clear text, if other machines can reach `listen`.
pub(crate) fn warn_of_plain_http(listen: SocketAddr, report: &Report) {
    if let Some(warning) = plain_http_warning(listen) {
        report(&warning);
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
    fn warns_of_keys_in_clear_text_unless_the_address_is_a_loopback_address() {
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
