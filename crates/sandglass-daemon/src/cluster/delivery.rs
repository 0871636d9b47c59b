//! What handlers of this host request of the entities of other hosts: sent to the owner, as the requests
//! of clients are.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Bytes, to_bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use futures_util::future::{BoxFuture, FutureExt as _};
use sandglass_http::NotForwarded;
use sandglass_http::timer::within;
use sandglass_model::{Clock, EntityRef};
use sandglass_runtime::{Here, OtherHosts, RemoteRequest, RemoteResponse, Runtime, Undelivered};
use serde::Deserialize;

use super::Cluster;
use super::forwarding::{Journey, MARGIN, not_forwarded};
use super::outgoing::own_headers;
use crate::error::Error;

/// Where hosts receive what handlers of others request.
const PATH: &str = "/v1/cluster/deliver";
/// How long to look for the owner: the task of the entity that sends the request may wait meanwhile.
const FIND_MAX: Duration = Duration::from_secs(2);
/// How long the owner may take for a request that waits for no handler.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest response, in bytes: more than the variables of an entity have.
const RESPONSE_MAX_BYTES: usize = 16 << 20;

impl Cluster {
    /// Has asks, signals and spawns of the handlers of `runtime` reach the entities of other hosts.
    /// `clock` is that of the runtime. To be called before the runtime serves a partition.
    pub fn connect(&self, runtime: &Runtime, clock: Arc<dyn Clock>) {
        runtime.set_other_hosts(Arc::new(Delivery { cluster: self.clone(), clock }));
    }
}

/// Carries requests of handlers to the owners of entities.
struct Delivery {
    cluster: Cluster,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cluster.fmt(f)
    }
}

impl OtherHosts for Delivery {
    fn send<'a>(
        &'a self,
        here: &'a Here,
        request: &'a RemoteRequest,
    ) -> BoxFuture<'a, Result<RemoteResponse, Undelivered>> {
        self.deliver(here, request).boxed()
    }
}

impl Delivery {
    async fn deliver(
        &self,
        here: &Here,
        request: &RemoteRequest,
    ) -> Result<RemoteResponse, Undelivered> {
        let patience = request.budget().unwrap_or(PATIENCE).saturating_add(MARGIN);
        let journey = Journey {
            cluster: &self.cluster,
            clock: &self.clock,
            entity: request.target(),
            is_safe: request.is_repeatable(),
            can_be_repeated: request.is_repeatable(),
            metrics: None,
            find_max: if request.comes_again() { Duration::ZERO } else { FIND_MAX },
            patience,
        };
        let headers = own_headers(&self.cluster).map_err(refused)?;
        let begun = self.clock.now();
        // The asker has less time with each attempt.
        let present = || request.clone().after(self.clock.now().since(begun));
        let serve = || async { serve_here(here, present()).await };
        let response = journey.run(|| write(&headers, &present()), serve).await;
        read(response.map_err(|why| undelivered(why, request.target()))?, patience).await
    }
}

/// This host owns the entity by now.
async fn serve_here(here: &Here, request: RemoteRequest) -> Response {
    match here.deliver(request).await {
        Ok(response) => Json(response).into_response(),
        Err(error) => Error::from(error).into_response(),
    }
}

fn write(headers: &HeaderMap, request: &RemoteRequest) -> Request<Bytes> {
    // Maps have text for keys, so it can be written. The owner would refuse an empty body.
    let body = serde_json::to_vec(request).unwrap_or_default();
    let mut request = Request::new(body.into());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(PATH);
    request.headers_mut().clone_from(headers);
    request
}

/// What the owner responds. An error of its own says that nothing was done if it refuses the request.
async fn read(response: Response, patience: Duration) -> Result<RemoteResponse, Undelivered> {
    let status = response.status();
    let body = within(patience, to_bytes(response.into_body(), RESPONSE_MAX_BYTES)).await;
    let body = body.ok().and_then(Result::ok).ok_or(Undelivered::Unknown)?;
    if status == StatusCode::OK {
        return serde_json::from_slice(&body).map_err(|error| {
            tracing::warn!(%error, "the response of another host cannot be read");
            Undelivered::Unknown
        });
    }
    if status.is_client_error() {
        let refusal: Option<Refusal> = serde_json::from_slice(&body).ok();
        let message = refusal.map(|refusal| refusal.error.message);
        return Err(Undelivered::Refused(message.unwrap_or_else(|| status.to_string())));
    }
    Err(Undelivered::Unknown)
}

/// The body of an error.
#[derive(Deserialize)]
struct Refusal {
    error: Message,
}

#[derive(Deserialize)]
struct Message {
    message: String,
}

fn undelivered(why: NotForwarded, target: &EntityRef) -> Undelivered {
    match why {
        NotForwarded::Moving => Undelivered::Moving,
        NotForwarded::Unknown | NotForwarded::TooLong => Undelivered::Unknown,
        NotForwarded::WrongKey => refused(not_forwarded(why, target)),
    }
}

fn refused(error: Error) -> Undelivered {
    Undelivered::Refused(error.message().to_owned())
}
