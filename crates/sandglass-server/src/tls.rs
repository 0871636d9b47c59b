//! The files for HTTPS: reading them, and checking that they can be used.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sandglass_host::file;
use sandglass_http::{PeerTls, TlsError, TlsSettings, is_loopback_address};

use crate::Report;
use crate::config::Config;
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
        warn_of_readable_key(key, report);
        Ok(settings)
    }
}

/// The files by which the hosts of a cluster prove to each other that they are hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerFiles {
    /// The CA of all hosts, in PEM.
    pub ca: PathBuf,
    /// The certificate chain of this host, in PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate, in PEM.
    pub key: PathBuf,
}

impl PeerFiles {
    /// Reads and checks them, for the host that others reach by the name or address `host`.
    ///
    /// # Errors
    /// Errors if one cannot be used, or if other hosts would refuse the certificate; which one, and why.
    pub(crate) fn read(&self, host: &str, report: &Report) -> Result<PeerTls> {
        let Self { ca, certificate, key } = self;
        const CA: &str = "the CA of the cluster";
        const CERTIFICATE: &str = "the certificate of this host";
        const KEY: &str = "the key of this host's certificate";
        let (roots, chain) = (read(ca, CA)?, read(certificate, CERTIFICATE)?);
        let private = read(key, KEY)?;
        let settings = PeerTls::from_pem(&roots, &chain, &private, host).map_err(|error| {
            let (what, path) = match &error {
                TlsError::Key(_) => (KEY, key),
                TlsError::ClientCa(_) => (CA, ca),
                _ => (CERTIFICATE, certificate),
            };
            Error::Unusable(format!("{what} in `{}` cannot be used: {error}", path.display()))
        })?;
        warn_of_readable_key(key, report);
        Ok(settings)
    }
}

/// The certificates of the configuration, as they are now.
pub(crate) struct Certificates {
    /// `None` for plain HTTP.
    pub(crate) server: Option<TlsSettings>,
    /// For connections between hosts; `None` without a CA of the cluster.
    pub(crate) peers: Option<PeerTls>,
}

impl Certificates {
    /// Reads the files that `config` names.
    ///
    /// # Errors
    /// Errors if one cannot be used; which one, and why.
    pub(crate) fn read(config: &Config, report: &Report) -> Result<Self> {
        let of_hosts =
            config.cluster.as_ref().and_then(|one| Some((one.certificates.as_ref()?, one.host())));
        let peers = of_hosts.map(|(files, host)| files.read(host, report)).transpose()?;
        let server = config.tls.as_ref().map(|files| files.read(report)).transpose()?;
        let server = server.map(|settings| match &peers {
            Some(peers) => settings.with_peers(peers),
            None => settings,
        });
        Ok(Self { server, peers })
    }
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>> {
    file::read(path, PEM_MAX_BYTES).map_err(|error| Error::Unusable(format!("{what}: {error}")))
}

fn warn_of_readable_key(key: &Path, report: &Report) {
    let mode = std::fs::metadata(key).map_or(0, |metadata| metadata.mode());
    if mode & ALL_USERS != 0 {
        let path = key.display();
        report(&format!(
            "warning: every user of this machine can read the TLS key in `{path}`; `chmod 600` it"
        ));
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
