//! The OpenAPI document of the interface, made from the routes.

use std::sync::Arc;

use axum::Extension;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa::openapi::path::Operation;
use utoipa::openapi::request_body::RequestBody;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, Ref, RefOr, Required, ResponseBuilder};

use crate::error::Envelope;
use crate::extract::NoQuery;

/// The path of the document.
pub(crate) const PATH: &str = "/openapi.json";

/// The media type of every body but modules.
const JSON: &str = "application/json";

/// The name of the security scheme of keys in the document.
const KEY: &str = "key";

/// The serialized document.
#[derive(Clone)]
pub(crate) struct Document(Arc<str>);

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Sandglass",
        description = "Entities that run integrations under deadlines. Every response with a status \
            of 400 or above, except that of /healthz, is `{\"error\": {\"code\", \"message\"}}`.",
        license(name = "MIT", identifier = "MIT")
    ),
    components(schemas(Envelope))
)]
struct Description;

/// The document without routes.
pub(crate) fn description() -> utoipa::openapi::OpenApi {
    Description::openapi()
}

/// Completes the document of all routes with what they have in common.
pub(crate) fn finish(mut document: utoipa::openapi::OpenApi) -> Document {
    let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
    let components = document.components.get_or_insert_default();
    components.add_security_scheme(KEY, scheme);
    // Without keys, a loopback address needs none.
    let with_key = SecurityRequirement::new(KEY, Vec::<String>::new());
    document.security = Some(vec![with_key, SecurityRequirement::default()]);
    for path in document.paths.paths.values_mut() {
        for operation in [&mut path.get, &mut path.put, &mut path.post].into_iter().flatten() {
            add_errors(operation);
            // The macros write each body where it is used, so there are no references.
            if let Some(RefOr::T(body)) = &mut operation.request_body {
                fix_request_body(body);
            }
        }
    }
    let text = document.to_json().expect("plain data with text for keys");
    Document(text.into())
}

/// Adds the errors that every operation can return. One that needs no key only checks its query.
fn add_errors(operation: &mut Operation) {
    let is_open = operation.security.is_some();
    let errors: &[(&str, &str)] = if is_open {
        &[("400", "The request has query parameters; this operation takes none")]
    } else {
        &[
            ("4XX", "Refused, and nothing has changed; `error.code` names the reason"),
            (
                "5XX",
                "Not possible at present. After `timed_out` and `outcome_unknown` the work may have been done",
            ),
        ]
    };
    for (status, description) in errors {
        let content = Content::new(Some(Ref::from_schema_name("Envelope")));
        let response = ResponseBuilder::new().description(*description).content(JSON, content);
        let responses = &mut operation.responses.responses;
        responses.insert((*status).to_owned(), RefOr::T(response.build()));
    }
}

/// Adds what the macros cannot express: a JSON body may be omitted everywhere, and a body that is not
/// JSON is bytes, which have no schema (OpenAPI 3.1.1, 4.14.4.3).
fn fix_request_body(body: &mut RequestBody) {
    if body.content.contains_key(JSON) {
        body.required = Some(Required::False);
        body.description = Some("May be omitted".to_owned());
        return;
    }
    for content in body.content.values_mut() {
        *content = RefOr::T(Content::default());
    }
}

/// This document; needs no key
#[utoipa::path(get, path = "/openapi.json", operation_id = "served", tag = "status", security(()),
    responses((status = 200, body = Object, description = "OpenAPI 3.1")))]
pub(crate) async fn document(
    Extension(Document(text)): Extension<Document>,
    _: NoQuery,
) -> Response {
    ([(header::CONTENT_TYPE, JSON)], text.to_string()).into_response()
}
