//! The health and the metrics of the host.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandglass_host::TickerHealth;
use sandglass_journal::Health;
use serde_json::json;

use super::error::Error;
use super::{OpenWop, answer};
use crate::code::Code;

/// The text format of Prometheus.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `GET /healthz`
pub(super) async fn health(State(host): State<OpenWop>) -> Result<Response, Error> {
    let engine = host.engine();
    let sandbox = &engine.host;
    let ticker = sandbox.ticker_health() != TickerHealth::Healthy;
    let overdue = sandbox.kills_overdue() > 0;
    let is_failing = engine.journals.health() != Health::Working;
    let closing = *host.0.closing.borrow();
    let reasons = [
        (ticker, "ticker"),
        (overdue, "kill_overdue"),
        (is_failing, "journal"),
        (closing, "shutting_down"),
    ];
    let reasons: Vec<&str> =
        reasons.into_iter().filter_map(|(is, reason)| is.then_some(reason)).collect();
    if reasons.is_empty() {
        return Ok(answer(StatusCode::OK, json!({ "healthy": true })));
    }
    let message = format!("the host is not healthy: {}", reasons.join(", "));
    Err(Error::new(Code::Unavailable, message).detail("reasons", reasons))
}

/// `GET /metrics`
pub(super) async fn metrics(State(host): State<OpenWop>) -> Response {
    ([(header::CONTENT_TYPE, PROMETHEUS)], host.0.exporter.scrape().await).into_response()
}
