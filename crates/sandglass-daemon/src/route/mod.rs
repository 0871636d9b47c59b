//! The router: every route, the door in front of them, and their document.

#![allow(unused_qualifications, reason = "the macros that describe routes write them out")]

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
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use sandglass_http::timer::within;
use sandglass_http::{ConnectionSlot, NoConnection, NoRoute, with_fallbacks, with_guards};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};
use crate::openapi;

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
        let quick = OpenApiRouter::with_openapi(openapi::description())
            .routes(routes!(entity::create, entity::show))
            .routes(routes!(entity::history))
            .routes(routes!(entity::signal))
            .routes(routes!(dispatch::list))
            .routes(routes!(dispatch::show))
            .routes(routes!(dispatch::explain))
            .routes(routes!(dispatch::cancel))
            .routes(routes!(dispatch::retry))
            .routes(routes!(session::list))
            .routes(routes!(session::show))
            .routes(routes!(session::cancel))
            .routes(routes!(session::resume))
            .routes(routes!(module::list))
            .routes(routes!(status::metrics))
            .routes(routes!(status::health))
            .routes(routes!(page::page))
            .routes(routes!(openapi::document))
            .layer(from_fn_with_state(self.clone(), limit_time));
        // These limit their time themselves.
        let patient = OpenApiRouter::new()
            .routes(routes!(entity::act))
            .routes(routes!(event::follow))
            .routes(routes!(live::watch))
            .routes(routes!(module::put));
        let (router, document) = quick.merge(patient).split_for_parts();
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
    match admit(&daemon, &request) {
        Ok(Some(principal)) => drop(request.extensions_mut().insert(principal)),
        Ok(None) => {}
        Err(error) => return error.into_response(),
    }
    next.run(request).await
}

/// The sender of this request; `None` if it needs no key.
fn admit(daemon: &Daemon, request: &Request) -> Result<Option<Principal>, Error> {
    let path = request.uri().path();
    let slot = request.extensions().get::<ConnectionSlot>();
    if OPEN.contains(&path) {
        if let Some(slot) = slot.filter(|_| path != HEALTH) {
            slot.check_unauthenticated().map_err(no_connection)?;
            if daemon.keys().is_empty() {
                slot.authenticate(&Principal::local().holder()).map_err(no_connection)?;
            }
        }
        return Ok(None);
    }
    let principal = daemon.keys().admit(request.uri(), request.headers())?;
    if let Some(slot) = slot {
        slot.authenticate(&principal.holder()).map_err(no_connection)?;
    }
    if daemon.is_closing() { Err(Error::closing()) } else { Ok(Some(principal)) }
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

fn too_long() -> Error {
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
