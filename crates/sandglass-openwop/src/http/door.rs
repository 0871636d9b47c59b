//! The door in front of all routes: which requests need the key of clients, and which come from other
//! hosts of the cluster.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sandglass_http::key;
use sandglass_http::{Arrival, ConnectionSlot, Holder, NoConnection};

use super::error::Error;
use super::owner::ForwardedBy;
use super::{HEALTH_PATH, METRICS_PATH, OPENAPI_PATH, OpenWop};
use crate::code::Code;

/// Longest path with its query, in bytes: ids and cursors are short.
const TARGET_MAX_BYTES: usize = 2_048;

/// Checks the key of each request that needs it, and has its connection count as authenticated.
/// A connection without a slot is one of another server, which bounds it itself.
pub(super) async fn check(
    State((host, holder)): State<(OpenWop, Holder)>,
    mut request: Request,
    next: Next,
) -> Response {
    match admit(&host, &holder, &mut request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

fn admit(host: &OpenWop, holder: &Holder, request: &mut Request) -> Result<(), Error> {
    let target = request.uri();
    let length = target.path().len() + target.query().map_or(0, str::len);
    if length > TARGET_MAX_BYTES {
        let message = format!(
            "the path and its query have {length} bytes, and {TARGET_MAX_BYTES} are allowed"
        );
        return Err(Error::new(Code::Validation, message));
    }
    let slot = request.extensions().get::<ConnectionSlot>().cloned();
    let path = target.path();
    let is_health = path == HEALTH_PATH;
    let needs_key = (path.starts_with("/v1/") && path != OPENAPI_PATH) || path == METRICS_PATH;
    if needs_key {
        let arrival = match &host.0.owners {
            Some(owners) => owners
                .admit(request.headers_mut(), slot.as_ref().is_some_and(ConnectionSlot::is_peer))
                .map_err(|message| Error::new(Code::WrongClusterKey, message))?,
            None => Arrival::default(),
        };
        if let Some(sender) = arrival.forwarded_by {
            if *host.0.closing.borrow() {
                // Nothing was done, so the host that forwarded it can look for the next owner.
                return Err(Error::new(Code::NotOwner, "this host is shutting down"));
            }
            request.extensions_mut().insert(ForwardedBy(sender));
        }
        if arrival.is_trusted {
            // The connection of another host carries the requests of all its clients.
            let authenticate = |slot: ConnectionSlot| slot.authenticate(&Holder::Host);
            return slot.map_or(Ok(()), authenticate).map_err(no_connection);
        }
        let sent = key::bearer(request.headers());
        let fits = sent.and_then(|sent| key::find(sent, [(&host.0.key, ())]));
        if fits.is_none() {
            let message = "send the host's key as `Authorization: Bearer KEY`";
            return Err(Error::new(Code::Unauthenticated, message));
        }
        slot.map_or(Ok(()), |slot| slot.authenticate(holder)).map_err(no_connection)
    } else if !is_health {
        slot.map_or(Ok(()), |slot| slot.check_unauthenticated()).map_err(no_connection)
    } else {
        Ok(())
    }
}

fn no_connection(refused: NoConnection) -> Error {
    Error::new(Code::RateLimited, refused.to_string())
}
