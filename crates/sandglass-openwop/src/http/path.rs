//! The segments of a path that a route names, with errors in the form that all errors have.

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use sandglass_http::find_invalid_escape;
use serde::de::DeserializeOwned;

use super::error::Error;
use crate::code::Code;

/// The segments, decoded.
pub(super) struct Segments<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = Error;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Error> {
        if let Some(at) = find_invalid_escape(parts.uri.path()) {
            let message = format!("`%` at byte {at} of the path is followed by no two digits");
            return Err(Error::new(Code::Validation, message));
        }
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(segments)| Self(segments))
            .map_err(|error: PathRejection| Error::new(Code::Validation, error.body_text()))
    }
}
