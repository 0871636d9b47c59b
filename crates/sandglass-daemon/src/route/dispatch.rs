//! Routes of dispatches: listing those in flight, reading and explaining one, cancel and retry.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use sandglass_insight::why::Explanation;
use sandglass_model::DispatchId;
use sandglass_telemetry::metrics::CancelTarget;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::check_reason;
use crate::Daemon;
use crate::access::Permission;
use crate::cluster::{List, Question};
use crate::error::{Code, Error};
use crate::extract::{Body, Caller, Dispatch, DispatchPath, NoQuery, QueryParams};
use crate::find::{explain_dispatch, find_dispatch, page_limit, read_dispatch};
use crate::view::{
    CancelledView, DispatchView, HandlerView, InFlightPage, InFlightView, TakenView,
};

/// The query of the list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Required, and must be `true`: ended dispatches are in the histories of their entities.
    #[param(value_type = OnlyTrue, inline)]
    in_flight: Option<String>,
    /// Only dispatches after this one.
    #[param(value_type = Option<String>, pattern = "^[0-9a-f]{32}$")]
    after: Option<String>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// The list of handlers in flight.
const LIST: List = List { field: "dispatches", key: "dispatch" };

/// True.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes a query parameter")]
pub(crate) enum OnlyTrue {
    #[schema(rename = "true")]
    True,
}

/// The handlers that are queued or in flight, in the order of their ids
///
/// In a cluster, those of all hosts, except the hosts in `missing`, which did not respond within 500 ms.
#[utoipa::path(get, path = "/v1/dispatches", tag = "dispatches", params(ListParams),
    responses((status = 200, body = InFlightPage, description = "A page")))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    QueryParams(params): QueryParams<ListParams>,
    question: Question,
) -> Result<Response, Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()?;
    if params.in_flight.as_deref() != Some("true") {
        let message = "only dispatches in flight are listed: add `in_flight=true`";
        return Err(Error::new(Code::BadQuery, message));
    }
    let limit = page_limit(params.limit)?;
    let after = params.after.map(|id| id.parse::<DispatchId>()).transpose();
    let after = after.map_err(|error| Error::new(Code::BadQuery, format!("`after`: {error}")))?;
    let mut runs = daemon.in_flight();
    runs.retain(|(_, run)| after.is_none_or(|after| run.dispatch > after));
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next = runs.last().filter(|_| more).map(|(_, run)| run.dispatch);
    let host = daemon.own_host();
    let view = |(entity, run)| InFlightView { entity, handler: HandlerView::new(&run), host };
    let dispatches = runs.into_iter().map(view).collect();
    let page = InFlightPage { dispatches, next, missing: None };
    question.respond::<DispatchId>(&daemon, &principal, LIST, page, limit).await
}

/// A dispatch
#[utoipa::path(get, path = "/v1/dispatches/{id}", operation_id = "look", tag = "dispatches",
    params(DispatchPath),
    responses((status = 200, body = DispatchView, description = "The dispatch with its last attempt")))]
pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Dispatch(id): Dispatch,
) -> Result<Json<DispatchView>, Error> {
    principal.require(Permission::Read)?;
    let (entity, at) = find_dispatch(&daemon, &principal, id).await?;
    Ok(Json(read_dispatch(&daemon, &entity, id, at).await?))
}

/// An explanation of why a dispatch ended as it did
///
/// As `sandglass why` explains it, from the records of its entity: the keys of a report, the host
/// calls if they were recorded, the decision, how often the entity has seen this before, and what to
/// do next.
#[utoipa::path(get, path = "/v1/dispatches/{id}/story", operation_id = "story", tag = "dispatches",
    params(DispatchPath),
    responses((status = 200, body = Object,
        description = "The last attempt; `outcome` is null while it is in flight")))]
pub(crate) async fn explain(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Dispatch(id): Dispatch,
) -> Result<Json<Explanation>, Error> {
    principal.require(Permission::Read)?;
    let (entity, _) = find_dispatch(&daemon, &principal, id).await?;
    Ok(Json(explain_dispatch(&daemon, &entity, id).await?))
}

/// Why a handler is cancelled.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cancel {
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
}

/// Cancels the handler of a dispatch
///
/// It ends as cancelled, and its entity takes the action that its spec declares for that. The record
/// contains the owner of the key and the reason.
#[utoipa::path(post, path = "/v1/dispatches/{id}/cancel", tag = "dispatches",
    params(DispatchPath), request_body = Cancel,
    responses((status = 202, body = CancelledView, description = "The handler is being stopped")))]
pub(crate) async fn cancel(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Dispatch(dispatch): Dispatch,
    Body(Cancel { reason }): Body<Cancel>,
) -> Result<(StatusCode, Json<CancelledView>), Error> {
    daemon.require_to_cancel(&principal, CancelTarget::Dispatch)?;
    check_reason(&reason)?;
    let (entity, _) = find_dispatch(&daemon, &principal, dispatch).await?;
    daemon.require_operated_here(&entity)?;
    let by = &principal.owner;
    let recorded =
        if reason.is_empty() { format!("by {by}") } else { format!("by {by}: {reason}") };
    if daemon.runtime().cancel(&entity, Some(dispatch), &recorded).await? == 0 {
        let message = format!("dispatch {dispatch} of {entity} has ended");
        return Err(Error::new(Code::NotInFlight, message));
    }
    Ok((StatusCode::ACCEPTED, Json(CancelledView { dispatch, entity })))
}

/// How a dispatch is retried.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retry {
    /// The attempt that the client saw end; `not_retried` if it is no longer the last one.
    #[schema(minimum = 1)]
    attempt: Option<u32>,
    /// The new budget, in milliseconds; by default the previous one.
    #[schema(minimum = 1)]
    budget_ms: Option<u64>,
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
}

/// Retries a dispatch that has ended
///
/// The dispatch keeps its id, which handlers use for idempotency, and its attempt increases by one.
/// The present state of the entity must take every action in which the handler may end.
#[utoipa::path(post, path = "/v1/dispatches/{id}/retry", tag = "dispatches",
    params(DispatchPath), request_body = Retry,
    responses((status = 200, body = TakenView, description = "It is queued or in flight again")))]
pub(crate) async fn retry(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Dispatch(dispatch): Dispatch,
    Body(retry): Body<Retry>,
) -> Result<Json<TakenView>, Error> {
    principal.require(Permission::Operate)?;
    let Retry { attempt: expected_attempt, budget_ms, reason } = retry;
    if expected_attempt == Some(0) || budget_ms == Some(0) {
        return Err(Error::new(Code::BadBody, "`attempt` and `budget_ms` must be at least 1"));
    }
    check_reason(&reason)?;
    let (entity, _) = find_dispatch(&daemon, &principal, dispatch).await?;
    daemon.require_operated_here(&entity)?;
    let budget = budget_ms.map(Duration::from_millis);
    let retry = sandglass_runtime::Retry { budget, by: principal.owner, reason, expected_attempt };
    // The last step that can fail: an accepted retry is always reported as accepted.
    let accepted = daemon.runtime().retry(&entity, dispatch, retry).await?;
    Ok(Json(TakenView::new(accepted, None)))
}
