//! Sends requests about an entity to the host that owns it, and responses back.
//!
//! ```text
//!  client ──▶ door ──▶ forward ──▶ Here: the route ──── 421: look again
//!                         │
//!                         ├──▶ At: the owner ──▶ response ──▶ client, as it is
//!                         │       ├── 421, or nothing was sent: look again, for up to 4 s
//!                         │       └── broken: reads are repeated; else `outcome_unknown`
//!                         └──▶ Moving: look again, for up to 4 s; then `owner_moving`
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{FromRequestParts as _, MatchedPath, State};
use axum::http::request::Parts;
use axum::http::{Request, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use sandglass_http::body::{self, LARGE_BYTES, Limits};
use sandglass_http::timer::within;
use sandglass_http::{NotForwarded, remove_hop_by_hop};
use sandglass_model::{Clock, EntityRef, HostId, Monotonic, Partition};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{ForwardOutcome, RequestFailure};

use super::outgoing::Outgoing;
use super::{Cluster, ForwardError, ForwardedBy, Route};
use crate::Daemon;
use crate::error::{Code, Error};
use crate::extract::{Caller, Dispatch, Entity};

/// How long to look for an owner that accepts the request. A planned move takes milliseconds, or a few
/// seconds on a machine that is overloaded, and the takeover after a kill three seconds; a client can
/// wait for anything longer itself.
pub(super) const FIND_MAX: Duration = Duration::from_secs(4);
/// How long to wait before the same owner is tried again, if no route changes meanwhile: a host that is
/// about to serve a partition reports that to nobody.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long a host that was declared dead may take to respond, in case it is only late. Longer than a
/// request waits for a connection (1 s), so that one that still waits counts as not sent.
const DEAD_HOST_MAX: Duration = Duration::from_millis(1_500);
/// How much longer a forwarded request may take than the owner permits it.
pub(super) const MARGIN: Duration = Duration::from_secs(5);
/// A response whose announced length, in bytes, is at most this is sent to the client when it is complete.
/// So if its connection breaks, the client gets an error in place of a part of it.
const HELD_MAX: usize = 64 << 10;
/// How often a request is repeated because its connection broke, if it can be.
const REPEATS_MAX: u32 = 3;

/// The layer that forwards the requests of its routes, each of which names an entity or a dispatch.
#[derive(Clone, Debug)]
pub(crate) struct Forwarding(pub(crate) Daemon);

/// Serves a request here, if this host owns its entity, and otherwise sends it to the owner.
pub(crate) async fn forward(
    State(Forwarding(daemon)): State<Forwarding>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let Some(cluster) = daemon.cluster() else {
        let response = next.run(request).await;
        return if response.status() == StatusCode::MISDIRECTED_REQUEST {
            // Only hosts look for the owner.
            let message = "another process has taken the journal of this one; nothing was done";
            Error::new(Code::Unavailable, message).into_response()
        } else {
            response
        };
    };
    let (mut parts, body) = request.into_parts();
    let Some(entity) = find_entity(&daemon, &mut parts).await else {
        // The route states what is wrong.
        return next.run(Request::from_parts(parts, body)).await;
    };
    let partition = Partition::of(&entity);
    if parts.extensions.get::<ForwardedBy>().is_some() {
        return match cluster.peers.route(partition) {
            Route::Here => next.run(Request::from_parts(parts, body)).await,
            Route::At { .. } | Route::Moving => Error::not_owner(&entity).into_response(),
        };
    }
    let routed = async {
        let Caller(principal) = Caller::from_request_parts(&mut parts, &daemon).await?;
        let body = match parts.method.is_safe() {
            // No route reads it.
            true => Bytes::new(),
            false => {
                let settings = daemon.settings();
                let (max_bytes, timeout) = (settings.max_body_bytes, settings.body_timeout);
                let slot = || daemon.large_body(&principal);
                body::bytes(&parts.headers, body, Limits { max_bytes, timeout }, slot).await?
            }
        };
        // Held until there is a response, because the body may have to be sent again.
        let is_large = body.len() > LARGE_BYTES;
        let _slot = is_large.then(|| daemon.large_body(&principal)).transpose()?;
        let outgoing = Outgoing::new(cluster, &parts, &principal, body.clone())?;
        let settings = daemon.settings();
        let wait = if outgoing.waits() { settings.max_wait } else { Duration::ZERO };
        let journey = Journey {
            cluster,
            clock: &daemon.parts().clock,
            entity: &entity,
            is_safe: outgoing.is_safe(),
            can_be_repeated: outgoing.can_be_repeated(),
            metrics: Some(&daemon.parts().handlers.host().telemetry().metrics),
            find_max: FIND_MAX,
            patience: settings.request_timeout.saturating_add(wait).saturating_add(MARGIN),
        };
        let serve = || async {
            if daemon.is_closing() {
                return Error::closing().into_response();
            }
            let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
            next.clone().run(request).await
        };
        let response = journey.run(|| outgoing.request(), serve).await;
        response.map_err(|why| not_forwarded(why, &entity))
    };
    routed.await.unwrap_or_else(|error: Error| error.into_response())
}

/// The entity that the request is about; `None` if it names none, or one that cannot be found.
async fn find_entity(daemon: &Daemon, parts: &mut Parts) -> Option<EntityRef> {
    let is_dispatch = parts
        .extensions
        .get::<MatchedPath>()
        .is_some_and(|path| path.as_str().starts_with("/v1/dispatches/"));
    if !is_dispatch {
        let Entity(entity) = Entity::from_request_parts(parts, daemon).await.ok()?;
        return Some(entity);
    }
    let Dispatch(dispatch) = Dispatch::from_request_parts(parts, daemon).await.ok()?;
    let finding = daemon.runtime().find_dispatch(dispatch);
    let found = within(daemon.settings().request_timeout, finding).await.ok()?;
    found.ok()?.map(|(entity, _)| entity)
}

/// A request on its way to the owner of an entity.
pub(super) struct Journey<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) clock: &'a Arc<dyn Clock>,
    pub(super) entity: &'a EntityRef,
    /// Whether repeating it changes nothing.
    pub(super) is_safe: bool,
    /// Whether it can be sent again although it may have been done.
    pub(super) can_be_repeated: bool,
    /// Where it is counted; `None` for a request of a handler.
    pub(super) metrics: Option<&'a Metrics>,
    /// How long to look for an owner.
    pub(super) find_max: Duration,
    /// How long the owner may take for the head of the response.
    pub(super) patience: Duration,
}

/// Why a host gave no response.
enum Failure {
    /// Nothing was sent.
    NotSent,
    /// It may have been done.
    Broken,
    /// It took longer than it may take. It may have been done.
    Late,
}

impl Journey<'_> {
    /// Returns the response of the owner to what `make` makes for each attempt, which `serve` produces if
    /// that is this host.
    pub(super) async fn run<F: Future<Output = Response>>(
        &self,
        make: impl Fn() -> Request<Bytes>,
        serve: impl Fn() -> F,
    ) -> Result<Response, NotForwarded> {
        let (peers, partition) = (&self.cluster.peers, Partition::of(self.entity));
        let mut search = Search::new(Arc::clone(self.clock), self.find_max);
        let (mut repeats, mut may_be_done) = (0, false);
        loop {
            // Before the route is read, so that no change is missed.
            let changed = peers.changed();
            match peers.route(partition) {
                Route::Here => {
                    let response = serve().await;
                    if response.status() != StatusCode::MISDIRECTED_REQUEST {
                        return Ok(response);
                    }
                }
                Route::At { host, url } => match self.send(host, &url, make()).await {
                    Ok(response) if response.status() == StatusCode::MISDIRECTED_REQUEST => {}
                    Ok(response) => return self.check_key(response),
                    Err(Failure::NotSent) => {}
                    Err(Failure::Late) if self.is_safe => {
                        return Err(NotForwarded::TooLong);
                    }
                    Err(Failure::Broken) if self.can_be_repeated && repeats < REPEATS_MAX => {
                        // An owner had accepted it, so the search for one begins anew.
                        repeats += 1;
                        may_be_done = !self.is_safe;
                        search = Search::new(Arc::clone(&search.clock), self.find_max);
                    }
                    Err(Failure::Broken) if self.is_safe => return Err(self.moving()),
                    Err(Failure::Broken | Failure::Late) => return Err(self.unknown()),
                },
                Route::Moving => {}
            }
            let Some(pause) = search.pause() else {
                return Err(if may_be_done { self.unknown() } else { self.moving() });
            };
            // The pause is as good as a change.
            let _ = within(pause, changed).await;
        }
    }

    /// Sends the request to `host`, and returns its response, whose body still arrives.
    async fn send(
        &self,
        host: HostId,
        url: &str,
        request: Request<Bytes>,
    ) -> Result<Response, Failure> {
        let peers = &self.cluster.peers;
        let begun = self.clock.now();
        let sent = async { when_complete(peers.forward(url, request).await?).await };
        let sent = within(self.patience, sent);
        let mut sent = pin!(sent);
        let ended = loop {
            let changed = peers.changed();
            if peers.is_dead(host) {
                let late = within(DEAD_HOST_MAX, &mut sent).await;
                break late.unwrap_or(Ok(Err(ForwardError::Broken)));
            }
            tokio::select! {
                ended = &mut sent => break ended,
                () = changed => {}
            }
        };
        if let Some(metrics) = self.metrics {
            metrics.request_forwarded(outcome_of(&ended), self.clock.now().since(begun));
        }
        let error = match ended {
            Ok(Ok(response)) => return Ok(pass_on(response, self.patience)),
            Ok(Err(error)) => error,
            Err(_) => return Err(Failure::Late),
        };
        tracing::debug!(%host, entity = %self.entity, %error, "a request was not forwarded");
        match error {
            ForwardError::Refused => {
                peers.suspect(host);
                Err(Failure::NotSent)
            }
            ForwardError::TimedOut => Err(Failure::NotSent),
            ForwardError::Broken => Err(Failure::Broken),
        }
    }

    /// Replaces the refusal of this host's cluster key, which does not concern the client.
    fn check_key(&self, response: Response) -> Result<Response, NotForwarded> {
        if !self.cluster.authenticates_hosts() || response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        tracing::warn!(entity = %self.entity, "the owner refuses the cluster key of this host");
        Err(NotForwarded::WrongKey)
    }

    fn count(&self, failure: RequestFailure) {
        if let Some(metrics) = self.metrics {
            metrics.request_failed_in_cluster(failure);
        }
    }

    fn moving(&self) -> NotForwarded {
        self.count(RequestFailure::OwnerMoving);
        NotForwarded::Moving
    }

    fn unknown(&self) -> NotForwarded {
        self.count(RequestFailure::OutcomeUnknown);
        NotForwarded::Unknown
    }
}

/// The error of a request about `entity`.
pub(super) fn not_forwarded(why: NotForwarded, entity: &EntityRef) -> Error {
    let (code, message) = match why {
        NotForwarded::TooLong => return crate::route::too_long(),
        NotForwarded::Moving => (
            Code::OwnerMoving,
            format!(
                "{entity} is moving to another host, or its host cannot be reached; nothing was done, so \
                 try again later"
            ),
        ),
        NotForwarded::Unknown => (
            Code::OutcomeUnknown,
            format!(
                "the host that owns {entity} did not respond; read the entity to see whether the request \
                 was done, or send an action with an `Idempotency-Key`, and again until it has a response"
            ),
        ),
        NotForwarded::WrongKey => (
            Code::Unavailable,
            format!(
                "the host that owns {entity} refuses the cluster key of this host; give all hosts the \
                 same one"
            ),
        ),
    };
    Error::new(code, message)
}

/// What became of a request that was sent, of which the time limit is the outer error.
fn outcome_of<E>(ended: &Result<Result<Response, ForwardError>, E>) -> ForwardOutcome {
    match ended {
        Ok(Ok(response)) if response.status() == StatusCode::MISDIRECTED_REQUEST => {
            ForwardOutcome::NotOwner
        }
        Ok(Ok(_)) => ForwardOutcome::Ok,
        Ok(Err(ForwardError::Refused)) => ForwardOutcome::Refused,
        Ok(Err(ForwardError::TimedOut)) => ForwardOutcome::Unreachable,
        Ok(Err(ForwardError::Broken)) => ForwardOutcome::Broken,
        Err(_) => ForwardOutcome::TimedOut,
    }
}

/// The time in which an owner must be found.
struct Search {
    clock: Arc<dyn Clock>,
    until: Monotonic,
    pause: Duration,
}

impl Search {
    fn new(clock: Arc<dyn Clock>, max: Duration) -> Self {
        Self { until: clock.now().after(max), clock, pause: PAUSE_FIRST }
    }

    /// How long to wait before the next attempt; `None` if the time is over.
    fn pause(&mut self) -> Option<Duration> {
        let left = self.until.since(self.clock.now());
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        (!left.is_zero()).then_some(pause)
    }
}

/// Waits for the body of a small response.
async fn when_complete(response: Response) -> Result<Response, ForwardError> {
    let length = response.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if response.body().is_end_stream() || length.is_none_or(|length| length > HELD_MAX) {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, HELD_MAX).await.map_err(|_| ForwardError::Broken)?;
    Ok(Response::from_parts(parts, Body::from(body)))
}

/// The response of another host, as the client gets it. Each piece of its body may take `time`.
fn pass_on(response: Response, time: Duration) -> Response {
    let (mut parts, body) = response.into_parts();
    remove_hop_by_hop(&mut parts.headers);
    parts.extensions.clear();
    parts.version = Version::default();
    if body.is_end_stream() {
        return Response::from_parts(parts, Body::empty());
    }
    let pieces = stream::try_unfold(body.into_data_stream(), move |mut pieces| async move {
        match within(time, pieces.next()).await {
            Ok(Some(piece)) => piece.map(|piece| Some((piece, pieces))),
            Ok(None) => Ok(None),
            Err(late) => Err(axum::Error::new(late)),
        }
    });
    Response::from_parts(parts, Body::from_stream(pieces))
}
