//! The page for browsers.

use axum::response::Response;

use crate::extract::NoQuery;

/// The live view for browsers; needs no key, and asks for it
///
/// The page itself contains no data: it reads everything through this interface.
#[utoipa::path(get, path = "/", operation_id = "served", tag = "status", security(()),
    responses((status = 200, content_type = "text/html", body = String, description = "The page")))]
pub(crate) async fn page(_: NoQuery) -> Response {
    crate::page::response()
}
