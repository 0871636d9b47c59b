//! The page that people open in a browser.

use axum::response::Response;

use crate::error::Envelope;
use crate::extract::NoQuery;
use crate::page;

/// The live view, for a browser; needs no key, and asks for it
///
/// It holds nothing of anybody's: what it shows, it reads from this interface.
#[utoipa::path(get, path = "/", tag = "status", security(()),
    responses(
        (status = 200, content_type = "text/html", body = String, description = "The page"),
        (status = 400, body = Envelope, description = "There is nothing to ask in a query"),
    ))]
pub(crate) async fn served(_: NoQuery) -> Response {
    page::response()
}
