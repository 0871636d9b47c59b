//! Every route, the door before them, and the document that describes them.

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
use sandglass_http::{ConnectionSlot, NoConnection, with_fallbacks, with_guards};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};
use crate::openapi;

/// What needs no key: whether it lives, what it offers, and the page that asks for the key;
/// none tells anything of anybody's entities.
const OPEN: [&str; 3] = ["/", HEALTH, openapi::PATH];
/// What is answered also while nothing else is.
const HEALTH: &str = "/healthz";

impl Daemon {
    /// The whole interface, to be served by [`Daemon::serve`] or inside another server.
    pub fn router(&self) -> Router {
        let quick = OpenApiRouter::with_openapi(openapi::description())
            .routes(routes!(entity::create, entity::look))
            .routes(routes!(entity::history))
            .routes(routes!(dispatch::list))
            .routes(routes!(dispatch::look))
            .routes(routes!(dispatch::story))
            .routes(routes!(dispatch::cancel))
            .routes(routes!(dispatch::retry))
            .routes(routes!(session::list))
            .routes(routes!(session::look))
            .routes(routes!(session::cancel))
            .routes(routes!(session::resume))
            .routes(routes!(module::list))
            .routes(routes!(status::metrics))
            .routes(routes!(status::health))
            .routes(routes!(page::served))
            .routes(routes!(openapi::served))
            .layer(from_fn_with_state(self.clone(), bounded));
        // These bound their time themselves.
        let patient = OpenApiRouter::new()
            .routes(routes!(entity::act))
            .routes(routes!(event::follow))
            .routes(routes!(live::watch))
            .routes(routes!(module::put));
        let (router, document) = quick.merge(patient).split_for_parts();
        let document = openapi::finished(document);
        let router = with_fallbacks(router, |unserved| Error::from(unserved).into_response())
            .layer(axum::Extension(document))
            .layer(from_fn_with_state(self.clone(), door));
        with_guards(router, panicked).with_state(self.clone())
    }
}

/// Checks the key of each request that needs one, and has its connection count as authenticated.
/// A connection without a slot is one of another server, which bounds it itself.
async fn door(State(daemon): State<Daemon>, mut request: Request, next: Next) -> Response {
    match admit(&daemon, &request) {
        Ok(Some(principal)) => drop(request.extensions_mut().insert(principal)),
        Ok(None) => {}
        Err(error) => return error.into_response(),
    }
    next.run(request).await
}

/// Who sends this request, if it needs a key.
fn admit(daemon: &Daemon, request: &Request) -> Result<Option<Principal>, Error> {
    let path = request.uri().path();
    let slot = request.extensions().get::<ConnectionSlot>();
    if OPEN.contains(&path) {
        if let Some(slot) = slot.filter(|_| path != HEALTH) {
            slot.check_unauthenticated().map_err(no_connection)?;
            if daemon.keys().is_empty() {
                occupy(slot, &Principal::local())?;
            }
        }
        return Ok(None);
    }
    let principal = daemon.keys().admit(request.uri(), request.headers())?;
    if let Some(slot) = slot {
        occupy(slot, &principal)?;
    }
    if daemon.is_closing() { Err(Error::closing()) } else { Ok(Some(principal)) }
}

/// Has the connection count as one of `principal`.
fn occupy(slot: &ConnectionSlot, principal: &Principal) -> Result<(), Error> {
    slot.authenticate(&principal.holder()).map_err(no_connection)
}

fn no_connection(refused: NoConnection) -> Error {
    Error::new(Code::Busy, refused.to_string())
}

/// Ends what takes longer than a request may. A disk that hangs must not hold every
/// connection.
async fn bounded(State(daemon): State<Daemon>, request: Request, next: Next) -> Response {
    let time = daemon.settings().request_timeout;
    within(time, next.run(request)).await.unwrap_or_else(|_| too_long().into_response())
}

fn too_long() -> Error {
    let message = "it takes longer than a request may; look whether it was done";
    Error::new(Code::TimedOut, message)
}

fn panicked() -> Response {
    Error::new(Code::Internal, "the daemon failed; its log says where").into_response()
}
