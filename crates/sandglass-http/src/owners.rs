//! What an interface needs of a cluster, so that a request about an entity of another host is served by
//! that host.

use std::fmt;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use futures_util::future::BoxFuture;
use sandglass_model::{EntityRef, HostId};

/// Who has sent a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Whether the sender has the key of the cluster, or a certificate of a host, so that it may act for every client.
    pub is_trusted: bool,
    /// The host that has forwarded the request, which is never forwarded again.
    pub forwarded_by: Option<HostId>,
}

/// A request on its way to the owner of an entity.
#[derive(Debug)]
pub struct ForwardedRequest {
    /// Its head, without the headers between hosts.
    pub head: Parts,
    /// Its body.
    pub body: Bytes,
    /// Whether it can be sent again although an earlier attempt may have been done.
    pub can_be_repeated: bool,
    /// How long the owner may take for the head of the response, and for each piece of its body.
    pub patience: Duration,
}

/// Why a request has no response of the owner of its entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotForwarded {
    /// No owner was found in time, or it cannot be reached. Nothing was done.
    Moving,
    /// The owner did not respond. The request may have been done.
    Unknown,
    /// The request changes nothing, and the owner took too long for it.
    TooLong,
    /// The owner refuses the key of this host.
    WrongKey,
}

/// Serves a request on this host, which owns the entity. A response with the status 421 means that it
/// does not own the entity any more.
pub type Serve<'a> = &'a (dyn Fn() -> BoxFuture<'a, Response> + Send + Sync);

/// The hosts of a cluster, each of which owns a part of the entities.
pub trait Owners: fmt::Debug + Send + Sync + 'static {
    /// Takes the headers between hosts out of `headers`, and returns what counts of them. `is_peer` states
    /// whether the connection is that of a host by its certificate.
    ///
    /// # Errors
    /// Errors if the sender has another key, or headers that cannot be read, with a message for people that
    /// contains no secret.
    fn admit(&self, headers: &mut HeaderMap, is_peer: bool) -> Result<Arrival, String>;

    /// Whether this host owns `entity`.
    fn is_here(&self, entity: &EntityRef) -> bool;

    /// Has the owner of `entity` serve `request`. If that is this host, `serve` is called, possibly several
    /// times. The body of the response is not read before it is polled, and dropping it ends the
    /// request.
    ///
    /// # Errors
    /// Errors if the owner has sent no response.
    fn forward<'a>(
        &'a self,
        entity: &'a EntityRef,
        request: ForwardedRequest,
        serve: Serve<'a>,
    ) -> BoxFuture<'a, Result<Response, NotForwarded>>;
}
