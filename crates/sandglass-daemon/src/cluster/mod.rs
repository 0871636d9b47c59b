//! The other hosts of a cluster, as this interface uses them: who owns an entity, and the way there.
//!
//! The caller implements [`Peers`]; this crate decides which requests are forwarded, with what, and
//! what a client gets if the owner cannot be found or its connection breaks (`forwarding.rs`). What
//! handlers send to entities of other hosts goes the same way (`delivery.rs`).

mod admission;
mod delivery;
mod deployments;
mod forwarder;
mod forwarding;
mod gather;
mod key;
mod outgoing;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, Request, Response};
use futures_util::future::BoxFuture;
use sandglass_model::{HostId, Membership, Partition, Refusal};

pub(crate) use admission::{Admitted, ForwardedBy, TrustedPeer};
pub use deployments::{Deployment, DeploymentError, Deployments, ExpectedActive, UploadedModule};
pub use forwarder::Forwarder;
pub(crate) use forwarding::{Forwarding, forward};
pub(crate) use gather::{List, MissingView, Question, Reply, ask_all};
pub use key::{ClusterKey, InvalidClusterKey};
pub(crate) use outgoing::Outgoing;

/// The header of a forwarded request with the id of the host that forwarded it. Such a request is never
/// forwarded again.
pub const FORWARDED_BY: HeaderName = HeaderName::from_static("sandglass-forwarded-by");
/// The header with which a host shows that it belongs to the cluster.
pub const CLUSTER_KEY: HeaderName = HeaderName::from_static("sandglass-cluster-key");
/// The header of a forwarded request with the client that sent it, and what that client may do.
pub const PRINCIPAL: HeaderName = HeaderName::from_static("sandglass-principal");

/// The cluster that a daemon is a member of.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The other hosts.
    pub peers: Arc<dyn Peers>,
    /// The key that all hosts share.
    pub key: Option<ClusterKey>,
    /// Whether hosts prove what they are by certificates of the cluster's CA.
    pub has_certificates: bool,
    /// What the hosts run; `None` if this host serves specs and modules of its own.
    pub deployments: Option<Arc<dyn Deployments>>,
}

impl Cluster {
    /// Whether hosts can prove that they are hosts. Otherwise, each authenticates the clients of forwarded
    /// requests itself.
    pub(crate) const fn authenticates_hosts(&self) -> bool {
        self.key.is_some() || self.has_certificates
    }
}

/// Where the owner of a partition is, as far as this host knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// This host.
    Here,
    /// Another host.
    At {
        /// Its id.
        host: HostId,
        /// Its address: `http://HOST:PORT` or `https://HOST:PORT`.
        url: String,
    },
    /// No host at present.
    Moving,
}

/// Why a request got no response from another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The address refused the connection. Nothing was sent.
    #[error("the host refuses connections")]
    Refused,
    /// There was no connection in time. Nothing was sent.
    #[error("the host accepted no connection in time")]
    TimedOut,
    /// The connection broke after it was there. The request may have been done.
    #[error("the connection broke before the response")]
    Broken,
}

/// The other hosts of a cluster.
pub trait Peers: fmt::Debug + Send + Sync + 'static {
    /// The id of this host.
    fn host(&self) -> HostId;

    /// Whether this host's lease is valid.
    fn is_trusted(&self) -> bool;

    /// Where the owner of `partition` is.
    fn route(&self, partition: Partition) -> Route;

    /// Resolves when a route has changed since this function was called, not only since the future was
    /// first polled.
    fn changed(&self) -> BoxFuture<'_, ()>;

    /// Reports that the address of `host` refuses connections, so that it is checked now.
    fn suspect(&self, host: HostId);

    /// The hosts and the owners, as they were last read.
    fn membership(&self) -> Membership;

    /// Whether `host` was declared dead, or is unknown, as it was last read.
    fn is_dead(&self, host: HostId) -> bool;

    /// How long ago this host saw the last new beat of `host`; `None` for itself, and for a host of
    /// which it has seen none.
    fn silent_for(&self, host: HostId) -> Option<Duration>;

    /// Why this host and `host` refuse each other, if they did when they were last in contact.
    fn refusal(&self, _host: HostId) -> Option<Refusal> {
        None
    }

    /// Whether this host is to be corrected, because the other hosts refuse it.
    fn is_refused(&self) -> bool {
        false
    }

    /// Has `host` give its partitions away and get no others, or ends that. False if there is no such
    /// live host.
    ///
    /// # Errors
    /// Errors with the reason, for people and without secrets, if it could not be recorded.
    fn drain(&self, host: HostId, is_draining: bool) -> BoxFuture<'_, Result<bool, String>>;

    /// Notes that `from` reports to own these partitions, each with its epoch.
    fn nudge(&self, from: HostId, owned: Vec<(Partition, u64)>);

    /// Sends `request` to the host at `url`. The URI of the request has a path and a query only, which
    /// must arrive exactly as they are: a client that resolves `..` or decodes `%2e` would send it to
    /// another entity. Redirects are not followed. The body of the response is not read before it is
    /// polled, and dropping the future or the body ends the request.
    ///
    /// # Errors
    /// Errors if there is no response; with [`ForwardError::TimedOut`] if there is no connection within
    /// 1 s.
    fn forward<'a>(
        &'a self,
        url: &'a str,
        request: Request<Bytes>,
    ) -> BoxFuture<'a, Result<Response<Body>, ForwardError>>;
}
