//! Forwarding for another interface of the same process.

use std::fmt;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::future::BoxFuture;
use sandglass_http::{Arrival, ForwardedRequest, NotForwarded, Owners, Serve};
use sandglass_model::{Clock, EntityRef, Partition};
use sandglass_telemetry::Metrics;

use super::forwarding::{FIND_MAX, Journey};
use super::outgoing::Outgoing;
use super::{Cluster, Route};
use crate::access::Principal;

/// Forwards requests of another interface as the daemon forwards its own. All clients of that interface have
/// the same rights.
pub struct Forwarder {
    cluster: Cluster,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Forwarder {
    /// Forwards to the hosts of `cluster`. Requests are counted in `metrics`.
    #[must_use]
    pub const fn new(cluster: Cluster, clock: Arc<dyn Clock>, metrics: Metrics) -> Self {
        Self { cluster, clock, metrics }
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forwarder").field("cluster", &self.cluster).finish_non_exhaustive()
    }
}

impl Owners for Forwarder {
    fn admit(&self, headers: &mut HeaderMap, is_peer: bool) -> Result<Arrival, String> {
        let admitted = self.cluster.admit(headers, is_peer);
        let admitted = admitted.map_err(|error| error.message().to_owned())?;
        let is_trusted = admitted.principal.is_some();
        Ok(Arrival { is_trusted, forwarded_by: admitted.forwarded_by })
    }

    fn is_here(&self, entity: &EntityRef) -> bool {
        self.cluster.peers.route(Partition::of(entity)) == Route::Here
    }

    fn forward<'a>(
        &'a self,
        entity: &'a EntityRef,
        request: ForwardedRequest,
        serve: Serve<'a>,
    ) -> BoxFuture<'a, Result<Response, NotForwarded>> {
        Box::pin(async move {
            let ForwardedRequest { head, body, can_be_repeated, patience } = request;
            let outgoing = Outgoing::new(&self.cluster, &head, &Principal::peer(), body);
            let outgoing = outgoing.map_err(|error| {
                tracing::error!(%entity, error = error.message(), "a request cannot be forwarded");
                NotForwarded::Moving
            })?;
            let journey = Journey {
                cluster: &self.cluster,
                clock: &self.clock,
                entity,
                is_safe: outgoing.is_safe(),
                can_be_repeated: can_be_repeated || outgoing.is_safe(),
                metrics: Some(&self.metrics),
                find_max: FIND_MAX,
                patience,
            };
            journey.run(|| outgoing.request(), serve).await
        })
    }
}
