//! The routes of runs: create, read, cancel, fork, and answer an interrupt.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use sandglass_workflow::automaton;
use sandglass_workflow::state::RunStatus;
use sandglass_workflow::step::ForkMode;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::error::Error;
use super::owner::NewRun;
use super::path::Segments;
use super::view::RunSnapshot;
use super::{OpenWop, answer, not_implemented, request};
use crate::id::hex;
use crate::runs::{Created, is_stopping};
use crate::service;

/// The header of a response whose run was created by an earlier request with the same key.
const REPLAYED: &str = "openwop-idempotent-replay";
/// The suffix of the path of a fork.
pub(super) const FORK: &str = ":fork";
/// The suffixes of the protocol's other paths of this form, which this host does not implement.
const NOT_IMPLEMENTED: [&str; 2] = [":pause", ":resume"];

/// A run that was created.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CreatedRun<'a> {
    run_id: &'a str,
    status: RunStatus,
    events_url: String,
    status_url: String,
    /// The keys of the request that have no effect.
    #[serde(skip_serializing_if = "<[&str]>::is_empty")]
    unsupported: &'a [&'static str],
}

/// A run that was forked from another one.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ForkedRun<'a> {
    run_id: &'a str,
    source_run_id: &'a str,
    from_seq: u64,
    mode: ForkMode,
    status: RunStatus,
    events_url: String,
}

/// The status of a run after a request.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ChangedRun<'a> {
    run_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_id: Option<&'a str>,
    status: RunStatus,
}

/// `POST /v1/runs`
pub(super) async fn create(
    State(host): State<OpenWop>,
    new: Option<Extension<NewRun>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let key = request::idempotency_key(&headers)?;
    let mut body = host.object(&headers, body).await?;
    // Keys are in order, so the same request has the same text.
    let digest = key.map(|_| hex(&Sha256::digest(Value::Object(body.clone()).to_string())));
    let unsupported = request::unsupported(&mut body)?;
    let wanted = request::wanted(body)?;
    let created = host.service().runs.create(wanted, key.zip(digest), chosen_id(new)).await?;
    let run_id = created.run.as_str();
    let body = CreatedRun {
        run_id,
        status: status(&host, run_id).await?,
        events_url: events_url(run_id),
        status_url: format!("/v1/runs/{run_id}"),
        unsupported: &unsupported,
    };
    Ok(created_response(&created, body))
}

/// The response to a request that created a run, or found the run of an earlier one with the same key.
fn created_response(created: &Created, body: impl Serialize) -> Response {
    let mut response = answer(StatusCode::CREATED, body);
    if created.is_replayed {
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    }
    response
}

/// The id of the run that is created, if it was chosen before.
fn chosen_id(new: Option<Extension<NewRun>>) -> Option<String> {
    new.map(|Extension(NewRun(id))| id)
}

fn events_url(run: &str) -> String {
    format!("/v1/runs/{run}/events")
}

/// The status of a run, from its entity if that is sufficient.
async fn status(host: &OpenWop, run: &str) -> Result<RunStatus, Error> {
    let service = host.service();
    let (entity, snapshot) = service.find(run).await?;
    let state = automaton::State::parse(&snapshot.state);
    if state == Some(automaton::State::Waiting) || is_stopping(&snapshot) {
        let log = service.whole_log(&entity).await.map_err(service::Error::from)?;
        return Ok(service.standing(&log).await?.state.status(is_stopping(&snapshot)));
    }
    Ok(match state {
        Some(automaton::State::Completed) => RunStatus::Completed,
        Some(automaton::State::Failed) => RunStatus::Failed,
        Some(automaton::State::Cancelled) => RunStatus::Cancelled,
        _ => RunStatus::Running,
    })
}

/// `GET /v1/runs/{runId}`
pub(super) async fn read(
    State(host): State<OpenWop>,
    Segments(run): Segments<String>,
) -> Result<Response, Error> {
    if run.ends_with(FORK) {
        return Err(wrong_method(&run));
    }
    let service = host.service();
    let log = service.log(&run).await?;
    let standing = service.standing(&log).await?;
    let masks = service.engine().library.masks(&standing.definition);
    let (_, entity) = service.find(&run).await?;
    let snapshot = RunSnapshot::new(&run, &standing, &masks, is_stopping(&entity));
    Ok(answer(StatusCode::OK, snapshot))
}

/// `POST /v1/runs/{runId}:fork`
pub(super) async fn fork(
    State(host): State<OpenWop>,
    Segments(target): Segments<String>,
    new: Option<Extension<NewRun>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Error> {
    let Some(run) = target.strip_suffix(FORK) else {
        let is_known = NOT_IMPLEMENTED.iter().any(|suffix| target.ends_with(suffix));
        return Err(if is_known { not_implemented().await } else { wrong_method(&target) });
    };
    let key = request::idempotency_key(&headers)?;
    let body = host.object(&headers, body).await?;
    // The same body for another run is another request.
    let digest = key.map(|_| {
        let body = Value::Object(body.clone()).to_string();
        hex(&Sha256::new().chain_update(run).chain_update("\0").chain_update(body).finalize())
    });
    let (from, mode, overlay) = request::fork(body)?;
    let (key, new) = (key.zip(digest), chosen_id(new));
    let (created, from) = host.service().fork(run, (from, mode), &overlay, key, new).await?;
    let body = ForkedRun {
        run_id: &created.run,
        source_run_id: run,
        from_seq: from,
        mode,
        status: status(&host, &created.run).await?,
        events_url: events_url(&created.run),
    };
    Ok(created_response(&created, body))
}

/// The response to a method that neither a run nor its fork path supports.
pub(super) async fn neither(Segments(target): Segments<String>) -> Error {
    wrong_method(&target)
}

/// The error for a method that the path does not support. The router cannot distinguish a run from its fork
/// path.
fn wrong_method(target: &str) -> Error {
    let allowed = if target.ends_with(FORK) { "POST" } else { "GET,HEAD" };
    let message = "a run is read by GET /v1/runs/{runId}, forked by POST \
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
    Ok(answer(StatusCode::OK, ChangedRun { run_id: &run, node_id: None, status }))
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
    let body = ChangedRun { run_id: &run, node_id: Some(&node), status };
    Ok(answer(StatusCode::OK, body))
}
