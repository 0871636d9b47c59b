//! Connections to upstream servers, in a pool for each tenant and integration, so that no guest can
//! affect a connection of another tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use rustls::ClientConfig;
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::sync::OnceCell;

use super::super::{HttpError, Sender};
use super::resolver::{Resolver, SystemResolver};

use crate::opaque::opaque;
use crate::sync::lock;

/// Most idle connections of a pool to one server: as many as a busy handler's concurrent requests, and
/// few enough that a burst does not leave many sockets behind.
const IDLE_CONNECTIONS: usize = 32;

/// The pools of a host.
pub(super) struct Pools {
    system: SystemResolver,
    /// Created by the first request, from the system's certificates.
    tls: OnceCell<ClientConfig>,
    known: Arc<Mutex<KeptPools>>,
}

/// The pools that are kept, the most recently used one last.
struct KeptPools {
    pools: Vec<Pool>,
    /// Connections that all pools together may keep.
    idle_max: usize,
}

struct Pool {
    sender: Sender,
    private: Arc<BTreeSet<String>>,
    client: reqwest::Client,
    /// By host and port.
    servers: BTreeMap<String, Connections>,
}

/// The requests to one server. A pool keeps at most as many connections as it has used concurrently.
#[derive(Clone, Copy, Debug, Default)]
struct Connections {
    open: usize,
    most: usize,
}

impl Pool {
    fn is_of(&self, sender: &Sender, private: &BTreeSet<String>) -> bool {
        self.sender == *sender && *self.private == *private
    }

    /// How many connections it may keep.
    fn idle(&self) -> usize {
        self.servers.values().map(|server| server.most.min(IDLE_CONNECTIONS)).sum()
    }
}

/// The client for one request, whose connection counts until this is dropped.
pub(super) struct PooledClient {
    pub(super) client: reqwest::Client,
    known: Arc<Mutex<KeptPools>>,
    sender: Sender,
    private: Arc<BTreeSet<String>>,
    server: String,
}

impl Drop for PooledClient {
    fn drop(&mut self) {
        let mut known = lock(&self.known);
        let mut pools = known.pools.iter_mut();
        let pool = pools.find(|pool| pool.is_of(&self.sender, &self.private));
        if let Some(server) = pool.and_then(|pool| pool.servers.get_mut(&self.server)) {
            // The pool may have been replaced in the meantime, and its count then starts at zero.
            server.open = server.open.saturating_sub(1);
        }
    }
}

impl Pools {
    /// Pools that together keep at most `idle_max` connections.
    pub(super) fn new(idle_max: usize) -> Self {
        let known = KeptPools { pools: Vec::new(), idle_max };
        Self {
            system: SystemResolver::default(),
            tls: OnceCell::new(),
            known: Arc::new(Mutex::new(known)),
        }
    }

    /// Returns the client for a request of `sender` to `server`, a host with its port. The names in
    /// `private` may have any address.
    pub(super) async fn client(
        &self,
        sender: &Sender,
        private: &Arc<BTreeSet<String>>,
        server: String,
    ) -> Result<PooledClient, HttpError> {
        let tls = self.tls.get_or_init(tls).await;
        let mut known = lock(&self.known);
        let mut pool = match known.pools.iter().position(|pool| pool.is_of(sender, private)) {
            Some(at) => known.pools.remove(at),
            None => {
                let resolver =
                    Resolver { system: self.system.clone(), private: Arc::clone(private) };
                let client = client(tls.clone(), resolver).map_err(|error| {
                    HttpError::Transport(format!("failed to create the HTTP client: {error}"))
                })?;
                let (sender, private) = (sender.clone(), Arc::clone(private));
                Pool { sender, private, client, servers: BTreeMap::new() }
            }
        };
        let connections = pool.servers.entry(server.clone()).or_default();
        connections.open += 1;
        connections.most = connections.most.max(connections.open);
        let client = pool.client.clone();
        known.pools.push(pool);
        known.make_room();
        Ok(PooledClient {
            client,
            known: Arc::clone(&self.known),
            sender: sender.clone(),
            private: Arc::clone(private),
            server,
        })
    }
}

impl KeptPools {
    /// Drops the least recently used pools while all of them together may keep too many connections.
    /// Requests in flight continue, and their connections are closed afterwards. A single pool that
    /// exceeds the bound is dropped as well, and the next request creates a new one.
    fn make_room(&mut self) {
        let mut idle: usize = self.pools.iter().map(Pool::idle).sum();
        while idle > self.idle_max && !self.pools.is_empty() {
            idle -= self.pools.remove(0).idle();
        }
    }
}

/// How far a server may be ahead of a reading guest over HTTP/2, in bytes: for one response, and for
/// all responses of a connection.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 1 << 20;

fn client(tls: ClientConfig, resolver: Resolver) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        // The grants decide where requests go, so the environment must not set a proxy.
        .no_proxy()
        .tls_backend_preconfigured(tls)
        .dns_resolver(Arc::new(resolver))
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .http2_initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .user_agent(concat!("sandglass/", env!("CARGO_PKG_VERSION")))
        .build()
}

/// Creates the TLS settings of all connections. Reading certificates is file I/O, which must not block
/// a thread for guests.
async fn tls() -> ClientConfig {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
    };
    let verified = tokio::task::spawn_blocking(move || {
        builder().with_platform_verifier().map_err(|error| error.to_string())
    });
    let mut config = match verified.await.unwrap_or_else(|panicked| Err(panicked.to_string())) {
        Ok(builder) => builder.with_no_client_auth(),
        // A machine without certificates can still reach plain HTTP.
        Err(error) => {
            tracing::warn!(
                error,
                "failed to load the system's CA certificates, so https requests of guests fail; \
                 install them (Debian: ca-certificates), and restart the host"
            );
            builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

opaque!(Pools as "Pools");

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(tenant: &str) -> Sender {
        Sender { tenant: tenant.into(), integration: "x".into() }
    }

    fn kept(pools: &Pools) -> Vec<String> {
        let known = lock(&pools.known);
        known.pools.iter().map(|pool| pool.sender.tenant.to_string()).collect()
    }

    #[tokio::test]
    async fn pools_keep_no_more_connections_than_the_process_can_spare() {
        let pools = Pools::new(4);
        let private = Arc::default();
        let pooled = async |tenant: &str, server: &str| {
            pools.client(&sender(tenant), &private, server.to_owned()).await.expect("a client")
        };
        // One request after the other: one connection each.
        for server in ["s:1", "s:1", "s:2"] {
            drop(pooled("a", server).await);
        }
        drop(pooled("b", "s:1").await);
        assert_eq!(kept(&pools), ["a", "b"]);
        drop(pooled("a", "s:2").await);
        assert_eq!(kept(&pools), ["b", "a"], "it was used last");
        // Two at the same time.
        let both = (pooled("c", "s:1").await, pooled("c", "s:1").await);
        assert_eq!(kept(&pools), ["a", "c"]);
        drop(pooled("c", "s:2").await);
        assert_eq!(kept(&pools), ["c"]);
        drop((pooled("c", "s:3").await, both));
        assert_eq!(kept(&pools), ["c"]);
        drop(pooled("c", "s:4").await);
        assert!(kept(&pools).is_empty(), "it exceeds the bound by itself");
        drop(pooled("c", "s:4").await);
        assert_eq!(kept(&pools), ["c"]);
    }
}
