//! The daemon as a member of a cluster: what its interface and the cluster need of each other.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;
use sandglass_cluster::{Cluster, PeerError, PeerKey, Peers, Settings};
use sandglass_daemon::{ForwardError, Route};
use sandglass_host::Lease;
use sandglass_http::PeerTls;
use sandglass_model::{HostId, Membership, Partition, Refusal};
use sandglass_postgres::Database;
use sandglass_runtime::Runtime;

use crate::base::Base;
use crate::config::ClusterConfig;
use crate::deployments::Follower;
use crate::error::{Error, Result};

/// The client for other hosts, which connects with `certificates`, if given.
pub(crate) fn peers(config: &ClusterConfig, certificates: Option<&PeerTls>) -> Result<Peers> {
    let key = config.key.clone().map(|key| PeerKey {
        header: (sandglass_daemon::CLUSTER_KEY, key.header()),
        accepts: Arc::new(move |host, proof| key.accepts_proof(host, proof)),
    });
    let tls = certificates.map_or_else(|| tls(&config.advertise), |one| Ok(one.client()))?;
    Ok(Peers::new(tls, key))
}

/// Makes the process a member, whose runtime begins without partitions.
pub(crate) fn join(
    config: &ClusterConfig,
    peers: Peers,
    database: Database,
    runtime: Runtime,
    lease: Lease,
    base: &Base,
) -> Cluster {
    let settings =
        Settings { ttl: config.ttl, is_fast: config.fast_takeover, ..Settings::default() };
    let metrics = base.telemetry.metrics.clone();
    let cluster = Cluster::start(database, runtime.clone(), lease, peers, settings, metrics);
    // Before the first partition is adopted, because what is in flight there may ask other hosts.
    of_daemon(cluster.clone(), Some(config), None).connect(&runtime, Arc::clone(&base.clock));
    cluster
}

/// The cluster for the daemon's interface.
pub(crate) fn of_daemon(
    cluster: Cluster,
    config: Option<&ClusterConfig>,
    deployments: Option<Follower>,
) -> sandglass_daemon::Cluster {
    let key = config.and_then(|config| config.key.clone());
    let has_certificates = config.is_some_and(|config| config.has_mutual_tls);
    let deployments =
        deployments.map(|one| Arc::new(one) as Arc<dyn sandglass_daemon::Deployments>);
    let peers = Arc::new(Member(cluster));
    sandglass_daemon::Cluster { peers, key, has_certificates, deployments }
}

/// Errors if other hosts in `database` respond and all of them refuse this one: it would take partitions and
/// get no requests for them.
pub(crate) async fn require_accepted(
    config: &ClusterConfig,
    peers: &Peers,
    database: &Database,
) -> Result<()> {
    let membership = database.membership().await?;
    let others = membership.hosts.iter().filter(|member| member.is_in_cluster());
    let urls = others.filter_map(|member| member.url.as_deref());
    // A former process with the address of this one is gone.
    let urls: BTreeSet<&str> = urls.filter(|url| *url != config.advertise).collect();
    match peers.refusal_by_all(urls).await {
        None => Ok(()),
        Some((url, why)) => Err(Error::Unusable(format!("the host at {url} {}", why.message()))),
    }
}

/// TLS for connections to other hosts, whose certificates must be trusted by the system. Other hosts may
/// be reached over HTTPS although this one is not, for example while a cluster changes to HTTPS. A host
/// that is reached over plain HTTP may run on a system without certificates; it then trusts no host with
/// HTTPS.
fn tls(advertise: &str) -> Result<Arc<ClientConfig>> {
    let unusable = |why: rustls::Error| {
        Error::Unusable(format!("TLS for connections to other hosts cannot be used: {why}"))
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(unusable)?;
    let builder = match builder.clone().with_platform_verifier() {
        Ok(builder) => builder,
        Err(why) if advertise.starts_with("https://") => return Err(unusable(why)),
        Err(why) => {
            tracing::debug!(%why, "hosts with HTTPS cannot be reached: the system has no certificates");
            builder.with_root_certificates(RootCertStore::empty())
        }
    };
    let mut tls = builder.with_no_client_auth();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(tls))
}

/// The cluster, as the daemon's interface uses it.
struct Member(Cluster);

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl sandglass_daemon::Peers for Member {
    fn host(&self) -> HostId {
        self.0.state().me
    }

    fn is_trusted(&self) -> bool {
        self.0.is_trusted()
    }

    fn route(&self, partition: Partition) -> Route {
        match self.0.route(partition) {
            sandglass_cluster::Route::Here => Route::Here,
            sandglass_cluster::Route::At { host, url, .. } => Route::At { host, url },
            sandglass_cluster::Route::Moving => Route::Moving,
        }
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.wait_for_change())
    }

    fn suspect(&self, host: HostId) {
        self.0.suspect(host);
    }

    fn membership(&self) -> Membership {
        self.0.state().membership.clone()
    }

    fn is_dead(&self, host: HostId) -> bool {
        self.0.state().membership.host(host).is_none_or(|member| member.is_dead)
    }

    fn silent_for(&self, host: HostId) -> Option<Duration> {
        let state = self.0.state();
        let seen = state.last_seen.get(&host).filter(|_| host != state.me)?;
        Some(self.0.now().since(*seen))
    }

    fn refusal(&self, host: HostId) -> Option<Refusal> {
        self.0.state().contacts.get(&host).copied().flatten()
    }

    fn is_refused(&self) -> bool {
        self.0.state().is_refused()
    }

    fn drain(
        &self,
        host: HostId,
        is_draining: bool,
    ) -> BoxFuture<'_, std::result::Result<bool, String>> {
        Box::pin(async move {
            let set = self.0.set_draining(host, is_draining).await;
            set.map_err(|error| error.to_string())
        })
    }

    fn nudge(&self, from: HostId, owned: Vec<(Partition, u64)>) {
        self.0.note_owned(from, owned);
    }

    fn forward<'a>(
        &'a self,
        url: &'a str,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, std::result::Result<Response<Body>, ForwardError>> {
        Box::pin(async move {
            match self.0.forward(url, request).await {
                Ok(response) => Ok(response.map(Body::new)),
                Err(PeerError::Refused) => Err(ForwardError::Refused),
                Err(PeerError::Unreachable | PeerError::Untrusted) => Err(ForwardError::TimedOut),
                Err(PeerError::Broken) => Err(ForwardError::Broken),
            }
        })
    }
}
