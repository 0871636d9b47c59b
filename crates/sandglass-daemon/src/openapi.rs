//! The document that describes the interface, made from the routes themselves.

use std::sync::Arc;

use crate::error::Envelope;
use crate::extract::NoQuery;
use axum::Extension;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use utoipa::OpenApi;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, RefOr, Required};

/// Where it is served.
pub(crate) const PATH: &str = "/openapi.json";

/// The media type of every body but modules.
const JSON: &str = "application/json";

/// The name of the scheme of keys in the document.
const KEY: &str = "key";

/// The document, as it is sent.
#[derive(Clone)]
pub(crate) struct Document(Arc<str>);

#[derive(OpenApi)]
#[openapi(info(
    title = "Sandglass",
    description = "Entities that run integrations under deadlines. Every answer of a status of \
        400 or above, but that of /healthz, is `{\"error\": {\"code\", \"message\"}}`.",
    license(name = "MIT", identifier = "MIT")
))]
struct Description;

/// What there is to say before the routes.
pub(crate) fn description() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// The document with all its routes.
pub(crate) fn finished(mut document: utoipa::openapi::OpenApi) -> Document {
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(KEY, scheme);
    // Without keys, a loopback address needs none.
    let one = SecurityRequirement::new(KEY, Vec::<String>::new());
    document.security = Some(vec![one, SecurityRequirement::default()]);
    for path in document.paths.paths.values_mut() {
        let operations = [&mut path.put, &mut path.post].into_iter().flatten();
        operations.filter_map(|one| one.request_body.as_mut()).for_each(mend);
    }
    let text = document.to_json().expect("plain data with text for keys");
    Document(text.into())
}

/// Says of a body what the macros can't: JSON may be left out everywhere, and what isn't
/// JSON is bytes, which have no schema (OpenAPI 3.1.1, 4.14.4.3).
fn mend(body: &mut RefOr<RequestBody>) {
    // The macros write each body where it is sent.
    let RefOr::T(body) = body else { return };
    if body.content.contains_key(JSON) {
        body.required = Some(Required::False);
        return;
    }
    for content in body.content.values_mut() {
        *content = RefOr::T(Content::default());
    }
}

/// This document; needs no key
#[utoipa::path(get, path = "/openapi.json", tag = "status", security(()),
    responses(
        (status = 200, body = Object, description = "OpenAPI 3.1"),
        (status = 400, body = Envelope, description = "There is nothing to ask in a query"),
    ))]
pub(crate) async fn served(Extension(Document(text)): Extension<Document>, _: NoQuery) -> Response {
    ([(header::CONTENT_TYPE, JSON)], text.to_string()).into_response()
}
