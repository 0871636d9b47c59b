//! The health and the metrics of the daemon.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::Daemon;
use crate::access::Permission;
use crate::error::Error;
use crate::extract::{Caller, NoQuery};
use crate::view::HealthView;

/// The text format of Prometheus.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The metrics, in the text format of Prometheus
#[utoipa::path(get, path = "/metrics", tag = "status",
    responses((status = 200, content_type = "text/plain", body = String, description = "All metrics")))]
pub(crate) async fn metrics(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
) -> Result<Response, Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()?;
    let text = daemon.parts().exporter.scrape().await;
    Ok(([(header::CONTENT_TYPE, PROMETHEUS)], text).into_response())
}

/// The health of the daemon; needs no key
#[utoipa::path(get, path = "/healthz", tag = "status", security(()),
    responses(
        (status = 200, body = HealthView, description = "The daemon is healthy"),
        (status = 503, body = HealthView, description = "It is not healthy; `reasons` states why"),
    ))]
pub(crate) async fn health(
    State(daemon): State<Daemon>,
    _: NoQuery,
) -> (StatusCode, Json<HealthView>) {
    let health = HealthView::new(&daemon.unhealthy());
    let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(health))
}
