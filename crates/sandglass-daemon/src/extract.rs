//! Takes requests apart, so that whatever is wrong with one is told in the one shape of
//! errors.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use sandglass_http::body::{self, DuplicateKeys, Limits};
use sandglass_http::find_invalid_escape;
use sandglass_model::id::{NAME_MAX_BYTES, check_name};
use sandglass_model::{DispatchId, EntityRef, TraceContext};
use serde::de::DeserializeOwned;

use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};

/// Who asks.
pub(crate) struct By(pub(crate) Principal);

impl FromRequestParts<Daemon> for By {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        // Each request goes through the door, which puts it there.
        let principal = parts.extensions.get::<Principal>().cloned();
        principal.map(Self).ok_or_else(|| Error::new(Code::Unauthorized, "send a key"))
    }
}

/// The entity of the path.
pub(crate) struct Entity(pub(crate) EntityRef);

impl FromRequestParts<Daemon> for Entity {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let Segments((entity_type, id)) = Segments::from_request_parts(parts, daemon).await?;
        named(entity_type, id).map(Self)
    }
}

/// The entity and the action of the path.
pub(crate) struct EntityAction(pub(crate) EntityRef, pub(crate) String);

impl FromRequestParts<Daemon> for EntityAction {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let Segments((entity_type, id, action)) =
            Segments::<(String, String, String)>::from_request_parts(parts, daemon).await?;
        name("action", action.as_str())?;
        Ok(Self(named(entity_type, id)?, action))
    }
}

/// The dispatch of the path.
pub(crate) struct Dispatch(pub(crate) DispatchId);

impl FromRequestParts<Daemon> for Dispatch {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let Segments(id) = Segments::<String>::from_request_parts(parts, daemon).await?;
        let id = id.parse();
        id.map(Self).map_err(|error: sandglass_model::id::InvalidId| {
            Error::new(Code::BadPath, error.to_string())
        })
    }
}

/// The module of the path.
pub(crate) struct ModuleName(pub(crate) String);

impl FromRequestParts<Daemon> for ModuleName {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let Segments(module) = Segments::<String>::from_request_parts(parts, daemon).await?;
        name("module", &module)?;
        Ok(Self(module))
    }
}

fn named(entity_type: String, id: String) -> Result<EntityRef, Error> {
    EntityRef::new(entity_type, id).map_err(|error| Error::new(Code::BadPath, error.to_string()))
}

fn name(what: &'static str, text: &str) -> Result<(), Error> {
    check_name(what, text, NAME_MAX_BYTES)
        .map_err(|error| Error::new(Code::BadPath, error.to_string()))
}

/// The segments of the path that a route names, decoded.
struct Segments<T>(T);

impl<T: DeserializeOwned + Send> FromRequestParts<Daemon> for Segments<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        if let Some(at) = find_invalid_escape(parts.uri.path()) {
            let message = format!("`%` at byte {at} of the path is followed by no two digits");
            return Err(Error::new(Code::BadPath, message));
        }
        let path = Path::from_request_parts(parts, daemon).await;
        path.map(|Path(segments)| Self(segments))
            .map_err(|error: PathRejection| Error::new(Code::BadPath, error.body_text()))
    }
}

/// The query.
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Daemon> for Asked<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let query = Query::from_request_parts(parts, daemon).await;
        query
            .map(|Query(asked)| Self(asked))
            .map_err(|error: QueryRejection| Error::new(Code::BadQuery, error.body_text()))
    }
}

/// That nothing is asked in the query: what is there and does nothing was meant for
/// something.
pub(crate) struct NoQuery;

impl FromRequestParts<Daemon> for NoQuery {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(_) => Err(Error::new(Code::BadQuery, "there is nothing to ask in a query here")),
        }
    }
}

/// The body, as JSON; the default where there is none.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Daemon> for Body<T> {
    type Rejection = Error;

    async fn from_request(request: Request, daemon: &Daemon) -> Result<Self, Error> {
        let settings = daemon.settings();
        let (mut parts, body) = request.into_parts();
        let By(principal) = By::from_request_parts(&mut parts, daemon).await?;
        let limits = Limits { max_bytes: settings.max_body_bytes, timeout: settings.body_timeout };
        let slot = || daemon.large_body(&principal);
        let bytes = body::bytes(&parts.headers, body, limits, slot).await?;
        Ok(Self(body::json(&parts.headers, &bytes, DuplicateKeys::LastWins)?.unwrap_or_default()))
    }
}

/// The span that asks. A `traceparent` that can't be read starts a new trace, as W3C
/// Trace Context wants it.
pub(crate) struct Trace(pub(crate) Option<TraceContext>);

impl FromRequestParts<Daemon> for Trace {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        let sent = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        Ok(Self(sent.and_then(|text| text.parse().ok())))
    }
}
