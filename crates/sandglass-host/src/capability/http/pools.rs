//! Connections to upstream servers, in a pool for each tenant and integration: what one guest
//! does to a connection reaches no other tenant.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::sync::OnceCell;

use super::HttpError;
use super::resolver::{Resolver, SystemResolver};

/// Pools that are kept. The one that was used longest ago makes room, and requests under way in
/// it go on.
const POOLS_MAX: usize = 256;

/// Connections of a pool to one server that are kept for the next request: as many as a busy
/// handler's requests at once, and few enough that a burst leaves no crowd of sockets.
const IDLE_CONNECTIONS: usize = 32;

/// Whose connections they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sender {
    pub(crate) tenant: Arc<str>,
    pub(crate) integration: Arc<str>,
}

/// The pools of a host.
#[derive(Default)]
pub(super) struct Pools {
    system: SystemResolver,
    /// Made when the first request is sent, from the system's certificates.
    tls: OnceCell<ClientConfig>,
    /// The one that was used last is at the end.
    known: Mutex<Vec<Pool>>,
}

struct Pool {
    sender: Sender,
    private: Arc<BTreeSet<String>>,
    client: reqwest::Client,
}

impl Pools {
    /// The client of `sender`, for which the names in `private` may have any address.
    pub(super) async fn client(
        &self,
        sender: &Sender,
        private: &Arc<BTreeSet<String>>,
    ) -> Result<reqwest::Client, HttpError> {
        let tls = self.tls.get_or_init(tls).await;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |pool: &Pool| pool.sender == *sender && pool.private == *private;
        let pool = match known.iter().position(is_it) {
            Some(at) => known.remove(at),
            None => {
                let resolver =
                    Resolver { system: self.system.clone(), private: Arc::clone(private) };
                let client = client(tls.clone(), resolver).map_err(|error| {
                    HttpError::Transport(format!("there is no HTTP client: {error}"))
                })?;
                if known.len() >= POOLS_MAX {
                    known.remove(0);
                }
                Pool { sender: sender.clone(), private: Arc::clone(private), client }
            }
        };
        let client = pool.client.clone();
        known.push(pool);
        Ok(client)
    }
}

fn client(tls: ClientConfig, resolver: Resolver) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // The allow-list names who is reached; the environment sends nobody elsewhere.
        .no_proxy()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(resolver))
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .user_agent(concat!("sandglass/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// The settings of all connections with TLS. Reading certificates is file I/O: no guest's thread
/// may wait in it.
async fn tls() -> ClientConfig {
    let made = tokio::task::spawn_blocking(|| {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        versions.and_then(|builder| builder.with_platform_verifier())
    });
    let config = match made.await {
        Ok(Ok(builder)) => builder.with_no_client_auth(),
        // A machine without certificates can still reach plain HTTP.
        Ok(Err(_)) | Err(_) => {
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider has them")
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth()
        }
    };
    let mut config = config;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

impl std::fmt::Debug for Pools {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pools").finish_non_exhaustive()
    }
}
