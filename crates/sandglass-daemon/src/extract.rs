//! Extractors: the parts of a request that routes use, each with an error in the shape of this
//! interface.

use std::borrow::Cow;
use std::fmt::Display;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use sandglass_http::body::{self, DuplicateKeys, Limits};
use sandglass_http::find_invalid_escape;
use sandglass_liveness::decide::SIGNAL_MAX_BYTES;
use sandglass_model::id::{NAME_MAX_BYTES, check_name, check_signal_name};
use sandglass_model::idempotency::IDEMPOTENCY_KEY_MAX_BYTES;
use sandglass_model::{DispatchId, EntityRef, EntitySignal, IdempotencyKey, TraceContext};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use utoipa::IntoParams;

use crate::Daemon;
use crate::access::Principal;
use crate::error::{Code, Error};

/// The header with the key of a request (draft-ietf-httpapi-idempotency-key-header).
pub(crate) const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The sender of the request.
pub(crate) struct Caller(pub(crate) Principal);

impl FromRequestParts<Daemon> for Caller {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        // The door in front of all routes has put it there.
        let principal = parts.extensions.get::<Principal>().cloned();
        principal.map(Self).ok_or_else(|| Error::new(Code::Unauthorized, "send a key"))
    }
}

/// The path of an entity.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct EntityPath {
    #[serde(rename = "type")]
    #[param(min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$")]
    entity_type: String,
    #[param(min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    id: String,
}

/// The entity that the path names.
pub(crate) struct Entity(pub(crate) EntityRef);

impl FromRequestParts<Daemon> for Entity {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let EntityPath { entity_type, id } = read_path(parts, daemon).await?;
        EntityRef::new(entity_type, id).map(Self).map_err(bad_path)
    }
}

/// The last part of a path of an action.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct ActionPath {
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    action: String,
}

/// The action that the path names.
pub(crate) struct Action(pub(crate) String);

impl FromRequestParts<Daemon> for Action {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let ActionPath { action } = read_path(parts, daemon).await?;
        check_name("action", &action, NAME_MAX_BYTES).map_err(bad_path)?;
        Ok(Self(action))
    }
}

/// The last part of a path of a signal.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct SignalPath {
    /// Any name but `action`, `asked`, `dispatched`, `ended` and `host_call`, which are reserved.
    #[param(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    name: String,
}

/// The name of the signal in the path.
pub(crate) struct SignalName(pub(crate) String);

impl FromRequestParts<Daemon> for SignalName {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let SignalPath { name } = read_path(parts, daemon).await?;
        check_signal_name(&name).map_err(bad_path)?;
        Ok(Self(name))
    }
}

/// The path of a dispatch.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct DispatchPath {
    #[param(pattern = "^[0-9a-f]{32}$")]
    id: String,
}

/// The dispatch that the path names.
pub(crate) struct Dispatch(pub(crate) DispatchId);

impl FromRequestParts<Daemon> for Dispatch {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let DispatchPath { id } = read_path(parts, daemon).await?;
        id.parse().map(Self).map_err(|error: sandglass_model::id::InvalidId| bad_path(error))
    }
}

/// The module that the path names.
pub(crate) struct ModuleName(pub(crate) String);

impl FromRequestParts<Daemon> for ModuleName {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        let module: String = read_path(parts, daemon).await?;
        check_name("module", &module, NAME_MAX_BYTES).map_err(bad_path)?;
        Ok(Self(module))
    }
}

/// Reads the segments of the path that a route names, decoded.
async fn read_path<T: DeserializeOwned + Send>(
    parts: &mut Parts,
    daemon: &Daemon,
) -> Result<T, Error> {
    if let Some(at) = find_invalid_escape(parts.uri.path()) {
        let message = format!("`%` at byte {at} of the path is not followed by two hex digits");
        return Err(bad_path(message));
    }
    let path = Path::from_request_parts(parts, daemon).await;
    path.map(|Path(segments)| segments).map_err(|error| bad_path(error.body_text()))
}

fn bad_path(error: impl Display) -> Error {
    Error::new(Code::BadPath, error.to_string())
}

/// The parameters of the query.
pub(crate) struct QueryParams<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<Daemon> for QueryParams<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, daemon: &Daemon) -> Result<Self, Error> {
        match Query::from_request_parts(parts, daemon).await {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => {
                let text = error.body_text();
                let why = text.strip_prefix("Failed to deserialize query string: ");
                let why = why.unwrap_or(&text);
                Err(Error::new(Code::BadQuery, format!("the query is invalid: {why}")))
            }
        }
    }
}

/// Refuses a query. A parameter that has no effect was meant to have one, so it is not ignored.
pub(crate) struct NoQuery;

impl FromRequestParts<Daemon> for NoQuery {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        match parts.uri.query() {
            None | Some("") => Ok(Self),
            Some(_) => Err(Error::new(Code::BadQuery, "this path takes no query parameters")),
        }
    }
}

/// The JSON body; the default if there is none.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned + Default> FromRequest<Daemon> for Body<T> {
    type Rejection = Error;

    async fn from_request(request: Request, daemon: &Daemon) -> Result<Self, Error> {
        let (headers, bytes) = read_body(request, daemon, usize::MAX).await?;
        Ok(Self(body::json(&headers, &bytes, DuplicateKeys::LastWins)?.unwrap_or_default()))
    }
}

/// The payload of a signal: a body of any JSON value; `null` if there is none.
pub(crate) struct Payload(pub(crate) Value);

impl FromRequest<Daemon> for Payload {
    type Rejection = Error;

    async fn from_request(request: Request, daemon: &Daemon) -> Result<Self, Error> {
        let (headers, bytes) = read_body(request, daemon, SIGNAL_MAX_BYTES).await?;
        let payload = body::json_value(&headers, &bytes, EntitySignal::PAYLOAD_MAX_VALUES)?;
        Ok(Self(payload.unwrap_or_default()))
    }
}

/// Reads a body of at most `max_bytes`, and never more than the settings allow.
async fn read_body(
    request: Request,
    daemon: &Daemon,
    max_bytes: usize,
) -> Result<(HeaderMap, Bytes), Error> {
    let settings = daemon.settings();
    let (mut parts, body) = request.into_parts();
    let Caller(principal) = Caller::from_request_parts(&mut parts, daemon).await?;
    let max_bytes = max_bytes.min(settings.max_body_bytes);
    let limits = Limits { max_bytes, timeout: settings.body_timeout };
    let slot = || daemon.large_body(&principal);
    let bytes = body::bytes(&parts.headers, body, limits, slot).await?;
    Ok((parts.headers, bytes))
}

/// The header with the key of a request.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[allow(dead_code, reason = "it only describes the header")]
pub(crate) struct KeyHeader {
    /// A key that the client chooses for this request, bare or in double quotes. The same request with the
    /// same key is not done again. Another request with the key of an earlier one is refused
    /// (`idempotency_key_reused`).
    #[param(
        rename = "Idempotency-Key",
        min_length = 1,
        max_length = 512,
        pattern = r"^[\x21-\x7e]+$"
    )]
    idempotency_key: Option<String>,
}

/// The key by which the entity recognizes the request if it is sent again.
pub(crate) struct Key(pub(crate) Option<IdempotencyKey>);

impl FromRequestParts<Daemon> for Key {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        let mut sent = parts.headers.get_all(IDEMPOTENCY_KEY).iter();
        let Some(first) = sent.next() else { return Ok(Self(None)) };
        if sent.next().is_some() {
            return Err(bad_key("it is sent more than once"));
        }
        let key = parse_key(first.to_str().map_err(|_| bad_key("it is not ASCII"))?)?;
        key.parse().map(|key| Self(Some(key))).map_err(bad_key)
    }
}

/// The key in a header, which is the string of a structured field (RFC 9651, 3.3.3), or the key itself.
fn parse_key(text: &str) -> Result<Cow<'_, str>, Error> {
    let Some(quoted) = text.strip_prefix('"') else { return Ok(text.into()) };
    let mut key = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next() {
            Some('"') if characters.as_str().is_empty() => return Ok(key.into()),
            Some('"') => return Err(bad_key("something follows its closing quote")),
            Some('\\') => match characters.next() {
                Some(escaped @ ('"' | '\\')) => key.push(escaped),
                _ => return Err(bad_key("a `\\` in quotes must be followed by `\"` or `\\`")),
            },
            Some(character) => key.push(character),
            None => return Err(bad_key("it has no closing quote")),
        }
    }
}

fn bad_key(why: impl Display) -> Error {
    let message = format!(
        "the header `Idempotency-Key` is invalid: {why}; send one key of 1 to \
         {IDEMPOTENCY_KEY_MAX_BYTES} visible characters of ASCII, bare or in double quotes"
    );
    Error::new(Code::BadHeader, message)
}

/// Refuses an idempotency key for an operation that cannot be recognized by it. A client that sends one
/// relies on it when it sends the request again.
pub(crate) async fn refuse_key(request: Request, next: Next) -> Response {
    if request.method().is_safe() || !request.headers().contains_key(IDEMPOTENCY_KEY) {
        return next.run(request).await;
    }
    let message = "`Idempotency-Key` has an effect on actions only; send this request without it";
    Error::new(Code::BadHeader, message).into_response()
}

/// The client's span. An invalid `traceparent` starts a new trace, as W3C Trace Context requires.
pub(crate) struct Trace(pub(crate) Option<TraceContext>);

impl FromRequestParts<Daemon> for Trace {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, _: &Daemon) -> Result<Self, Error> {
        let sent = parts.headers.get("traceparent").and_then(|value| value.to_str().ok());
        Ok(Self(sent.and_then(|text| text.parse().ok())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_bare_or_quoted() {
        for (text, key) in [
            ("a", "a"),
            ("\"a\"", "a"),
            ("\"\\\"\\\\\"", "\"\\"),
            ("a\"b", "a\"b"),
            ("a\\b", "a\\b"),
            ("\"\"", ""),
        ] {
            assert_eq!(parse_key(text).ok().as_deref(), Some(key), "{text}");
        }
        for bad in ["\"", "\"a", "\"a\"b", "\"a\";q=1", "\"a\\b\"", "\"a\\", "\"a\\\""] {
            let error = parse_key(bad).expect_err(bad);
            assert!(error.message().contains("`Idempotency-Key`"), "{}", error.message());
        }
    }
}
