//! Whether the daemon does its work, and what it measures.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::Daemon;
use crate::access::Permission;
use crate::error::{Envelope, Error};
use crate::extract::{By, NoQuery};
use crate::view::HealthView;

/// The text format of Prometheus.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics, in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", tag = "status",
    responses(
        (status = 200, content_type = "text/plain", body = String, description = "All of them"),
        (status = "4XX", body = Envelope, description = "Not for you"),
        (status = "5XX", body = Envelope, description = "Not to be had now"),
    ))]
pub(crate) async fn metrics(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
) -> Result<Response, Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()?;
    let text = daemon.exporter().scrape().await;
    Ok(([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response())
}

/// Whether the daemon does its work; needs no key
#[utoipa::path(get, path = "/healthz", tag = "status", security(()),
    responses(
        (status = 200, body = HealthView, description = "It does"),
        (status = 400, body = Envelope, description = "There is nothing to ask in a query"),
        (status = 503, body = HealthView, description = "It doesn't, and why"),
    ))]
pub(crate) async fn health(
    State(daemon): State<Daemon>,
    _: NoQuery,
) -> (StatusCode, Json<HealthView>) {
    let health = HealthView::of(&daemon.unhealthy());
    let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}
