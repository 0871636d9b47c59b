//! The router: every route, the door in front of them, and their document.

#![allow(unused_qualifications, reason = "the macros that describe routes write them out")]

mod cluster;
mod deployment;
mod dispatch;
mod entity;
mod event;
mod live;
mod module;
mod page;
mod session;
mod status;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use sandglass_http::timer::within;
use sandglass_http::{ConnectionSlot, Holder, NoConnection, NoRoute, with_fallbacks, with_guards};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Daemon;
use crate::access::Principal;
use crate::cluster::{Admitted, ForwardedBy, Forwarding, TrustedPeer, forward};
use crate::error::{Code, Error};
use crate::extract::refuse_key;
use crate::openapi;

pub(crate) use cluster::{HostLine, host_lines};

/// The paths that need no key: health, the document, and the page, which asks for the key. They reveal
/// nothing about any entity.
const OPEN: [&str; 3] = ["/", HEALTH, openapi::PATH];
/// The path that is answered even if nothing else is.
const HEALTH: &str = "/healthz";

/// Longest reason for the record, in characters: a sentence or two.
const REASON_MAX_CHARS: usize = 500;

impl Daemon {
    /// The whole interface, to be served by [`Daemon::serve`] or inside another server.
    pub fn router(&self) -> Router {
        // Each of these is about one entity, whose owner serves it.
        let owned = OpenApiRouter::with_openapi(openapi::description())
            .routes(routes!(entity::create, entity::show))
            .routes(routes!(entity::history))
            .routes(routes!(entity::signal))
            .routes(routes!(dispatch::show))
            .routes(routes!(dispatch::explain))
            .routes(routes!(dispatch::cancel))
            .routes(routes!(dispatch::retry))
            .routes(routes!(session::show))
            .routes(routes!(session::cancel))
            .routes(routes!(session::resume))
            .layer(from_fn(refuse_key))
            .layer(from_fn_with_state(self.clone(), limit_time))
            // It limits its time itself.
            .routes(routes!(entity::act))
            .layer(from_fn_with_state(Forwarding(self.clone()), forward));
        let quick = OpenApiRouter::new()
            .routes(routes!(dispatch::list))
            .routes(routes!(session::list))
            .routes(routes!(module::list))
            .routes(routes!(cluster::show))
            .routes(routes!(cluster::drain))
            .routes(routes!(cluster::nudge))
            .routes(routes!(cluster::whoami))
            .routes(routes!(status::metrics))
            .routes(routes!(status::health))
            .routes(routes!(page::page))
            .routes(routes!(openapi::document))
            .layer(from_fn(refuse_key))
            .layer(from_fn_with_state(self.clone(), limit_time));
        // These limit their time themselves.
        let patient = OpenApiRouter::new()
            .routes(routes!(event::follow))
            .routes(routes!(cluster::deliver))
            .routes(routes!(live::watch))
            .routes(routes!(module::put))
            .routes(routes!(deployment::activate))
            .routes(routes!(deployment::upgrade_format))
            .layer(from_fn(refuse_key));
        let (router, document) = owned.merge(quick).merge(patient).split_for_parts();
        let document = openapi::finish(document);
        let router = with_fallbacks(router, |no_route| no_route_error(&no_route).into_response())
            .layer(axum::Extension(document))
            .layer(from_fn_with_state(self.clone(), door));
        with_guards(router, panic_response).with_state(self.clone())
    }
}

/// Checks the key of each request that needs one, and marks its connection as authenticated. A
/// connection without a slot belongs to another server, which bounds its connections itself.
async fn door(State(daemon): State<Daemon>, mut request: Request, next: Next) -> Response {
    match admit(&daemon, &mut request) {
        Ok(Some(principal)) => drop(request.extensions_mut().insert(principal)),
        Ok(None) => {}
        Err(error) => return error.into_response(),
    }
    next.run(request).await
}

/// The sender of this request, or the client for which another host sends it; `None` if it needs no key.
fn admit(daemon: &Daemon, request: &mut Request) -> Result<Option<Principal>, Error> {
    let path = request.uri().path();
    let slot = request.extensions().get::<ConnectionSlot>().cloned();
    if OPEN.contains(&path) {
        if let Some(slot) = slot.filter(|_| path != HEALTH) {
            slot.check_unauthenticated().map_err(no_connection)?;
            if daemon.keys().is_empty() {
                slot.authenticate(&Principal::local().holder()).map_err(no_connection)?;
            }
        }
        return Ok(None);
    }
    let peer = match daemon.cluster() {
        Some(cluster) => {
            let is_peer = slot.as_ref().is_some_and(ConnectionSlot::is_peer);
            cluster.admit(request.headers_mut(), is_peer)?
        }
        None => Admitted::default(),
    };
    let is_trusted = peer.principal.is_some();
    let principal = match peer.principal {
        Some(principal) => principal,
        None => daemon.keys().admit(request.uri(), request.headers())?,
    };
    if let Some(slot) = slot {
        // The connection of another host carries the requests of all its clients.
        let holder = if is_trusted { Holder::Host } else { principal.holder() };
        slot.authenticate(&holder).map_err(no_connection)?;
    }
    if is_trusted {
        request.extensions_mut().insert(TrustedPeer);
    }
    if let Some(host) = peer.forwarded_by {
        request.extensions_mut().insert(ForwardedBy(host));
    }
    if daemon.is_closing() {
        if peer.forwarded_by.is_some() {
            // Nothing was done, so the host that forwarded it can look for the next owner.
            return Err(Error::new(Code::NotOwner, "this host is shutting down"));
        }
        // Other hosts ask a host that is about to end whether it is still there, and it still forwards.
        let is_forwarded = daemon.cluster().is_some() && is_about_an_entity(request.uri().path());
        if !is_trusted && !is_forwarded {
            return Err(Error::closing());
        }
    }
    Ok(Some(principal))
}

/// Whether a path is that of a route whose requests are forwarded.
fn is_about_an_entity(path: &str) -> bool {
    ["/v1/entities/", "/v1/dispatches/", "/v1/sessions/"]
        .iter()
        .any(|start| path.starts_with(start))
}

fn no_connection(refused: NoConnection) -> Error {
    Error::new(Code::Busy, refused.to_string())
}

fn no_route_error(no_route: &NoRoute) -> Error {
    match no_route {
        NoRoute::Path { .. } => {
            Error::new(Code::UnknownPath, format!("{no_route}; {} lists all paths", openapi::PATH))
        }
        NoRoute::Method { .. } => Error::new(Code::MethodNotAllowed, no_route.to_string()),
    }
}

/// Ends a request that takes too long, because a disk that hangs must not occupy every connection.
async fn limit_time(State(daemon): State<Daemon>, request: Request, next: Next) -> Response {
    let time = daemon.settings().request_timeout;
    within(time, next.run(request)).await.unwrap_or_else(|_| too_long().into_response())
}

pub(crate) fn too_long() -> Error {
    let message = "the request took too long; read the entity to see whether it was done";
    Error::new(Code::TimedOut, message)
}

fn panic_response() -> Response {
    Error::new(Code::Internal, "the daemon failed; see its log").into_response()
}

/// Refuses a reason that is too long for a record.
fn check_reason(reason: &str) -> Result<(), Error> {
    if reason.chars().count() <= REASON_MAX_CHARS {
        return Ok(());
    }
    let message = format!("the reason has more than {REASON_MAX_CHARS} characters");
    Err(Error::new(Code::BadBody, message))
}
