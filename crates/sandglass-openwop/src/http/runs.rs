//! Runs: created, looked at, cancelled, forked, answered.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::error::Error;
use super::path::Segments;
use super::view::snapshot;
use super::{OpenWop, answer, request};
use crate::service::id::hex;
use crate::service::{Created, is_stopping};

/// What says that an earlier request with the same key has created the run.
const REPLAYED: &str = "openwop-idempotent-replay";
/// What the path of a fork ends with.
const FORK: &str = ":fork";

/// `POST /v1/runs`
pub(super) async fn create(
    State(host): State<OpenWop>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let key = request::idempotency_key(&headers)?;
    let body = host.object(&headers, body).await?;
    // Keys are in order, so the same request has the same text.
    let digest = key.map(|_| hex(&Sha256::digest(Value::Object(body.clone()).to_string())));
    let wanted = request::wanted(body)?;
    let created = host.service().create(wanted, key.zip(digest)).await?;
    created_answer(&host, &created).await
}

async fn created_answer(host: &OpenWop, created: &Created) -> Result<Response, Error> {
    let run = &created.run;
    let body = json!({
        "runId": run,
        "status": status(host, run).await?,
        "eventsUrl": events_url(run),
        "statusUrl": format!("/v1/runs/{run}"),
    });
    let mut response = answer(StatusCode::CREATED, body);
    if created.is_replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

fn events_url(run: &str) -> String {
    format!("/v1/runs/{run}/events")
}

/// How a run stands, by its entity alone.
async fn status(host: &OpenWop, run: &str) -> Result<&'static str, Error> {
    let service = host.service();
    let (entity, snapshot) = service.find(run).await?;
    if snapshot.state == "Waiting" || is_stopping(&snapshot) {
        let log = service.whole_log(&entity).await?;
        let standing = service.standing(&log).await?;
        return Ok(crate::service::status(&standing.state, is_stopping(&snapshot)));
    }
    Ok(match snapshot.state.as_str() {
        "Completed" => "completed",
        "Failed" => "failed",
        "Cancelled" => "cancelled",
        _ => "running",
    })
}

/// `GET /v1/runs/{runId}`
pub(super) async fn look(
    State(host): State<OpenWop>,
    Segments(run): Segments<String>,
) -> Result<Response, Error> {
    if run.ends_with(FORK) {
        return Err(not_so(&run));
    }
    let service = host.service();
    let log = service.log(&run).await?;
    let standing = service.standing(&log).await?;
    let masks = service.library().masks(&standing.definition);
    let (_, entity) = service.find(&run).await?;
    Ok(answer(StatusCode::OK, snapshot(&run, &standing, &masks, is_stopping(&entity))))
}

/// `POST /v1/runs/{runId}:fork`
pub(super) async fn act(
    State(host): State<OpenWop>,
    Segments(target): Segments<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let Some(run) = target.strip_suffix(FORK) else {
        return Err(not_so(&target));
    };
    let body = host.object(&headers, body).await?;
    let (from, mode, overlay) = request::fork(body)?;
    let (created, from) = host.service().fork(run, (from, mode), &overlay).await?;
    let body = json!({
        "runId": created.run,
        "sourceRunId": run,
        "fromSeq": from,
        "mode": mode,
        "status": status(&host, &created.run).await?,
        "eventsUrl": events_url(&created.run),
    });
    Ok(answer(StatusCode::CREATED, body))
}

/// What neither a run nor its forking takes.
pub(super) async fn neither(Segments(target): Segments<String>) -> Error {
    not_so(&target)
}

/// That the path doesn't take the method: the router can't tell a run from its forking.
fn not_so(target: &str) -> Error {
    let allowed = if target.ends_with(FORK) { "POST" } else { "GET,HEAD" };
    let message = "a run is looked at by GET /v1/runs/{runId}, forked by POST \
                   /v1/runs/{runId}:fork, and cancelled by POST /v1/runs/{runId}/cancel";
    Error::allowing(allowed, message)
}

/// `POST /v1/runs/{runId}/cancel`
pub(super) async fn cancel(
    State(host): State<OpenWop>,
    Segments(run): Segments<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let reason = request::reason(host.object(&headers, body).await?)?;
    let status = host.service().cancel(&run, &reason).await?;
    Ok(answer(StatusCode::OK, json!({ "runId": run, "status": status })))
}

/// `POST /v1/runs/{runId}/interrupts/{nodeId}`
pub(super) async fn resolve(
    State(host): State<OpenWop>,
    Segments((run, node)): Segments<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let resume_value = request::answer(host.object(&headers, body).await?)?;
    let status = host.service().resolve(&run, &node, resume_value).await?;
    let body = json!({ "runId": run, "nodeId": node, "status": status });
    Ok(answer(StatusCode::OK, body).into_response())
}
