//! The document that describes the interface, made from the routes themselves.

use std::sync::Arc;

use axum::Extension;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};

/// Where it is served.
pub(crate) const PATH: &str = "/openapi.json";

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
    let text = document.to_json().expect("plain data with text for keys");
    Document(text.into())
}

/// This document; needs no key
#[utoipa::path(get, path = "/openapi.json", tag = "status", security(()),
    responses((status = 200, body = Object, description = "OpenAPI 3.1")))]
pub(crate) async fn served(Extension(Document(text)): Extension<Document>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text.to_string()).into_response()
}
