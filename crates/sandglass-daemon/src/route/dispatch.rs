//! Dispatches: which handlers are in flight, how one ended, and what operators do about
//! them.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use sandglass_insight::why::Explanation;
use sandglass_model::DispatchId;
use sandglass_telemetry::metrics::CancelTarget;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use crate::Daemon;
use crate::access::{Permission, Principal};
use crate::error::{Code, Envelope, Error};
use crate::extract::{Asked, Body, By, Dispatch, NoQuery};
use crate::lookup;
use crate::view::{
    CancelledView, DispatchView, HandlerView, InFlightPage, InFlightView, TakenView,
};

/// Most dispatches of one page, and how many it has where nothing is said.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;
/// Longest reason, in characters: a sentence or two, which records keep.
const REASON_MAX_CHARS: usize = 500;

/// Which dispatches.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// Must be said, and `true`: those that have ended are in the histories of their
    /// entities.
    #[param(value_type = OnlyTrue, inline)]
    in_flight: Option<String>,
    /// From behind this dispatch on.
    #[param(value_type = Option<String>, pattern = "^[0-9a-f]{32}$")]
    after: Option<String>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// True.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what a query says")]
pub(crate) enum OnlyTrue {
    #[schema(rename = "true")]
    True,
}

/// The handlers that are queued or in flight, in the order of their ids
#[utoipa::path(get, path = "/v1/dispatches", tag = "dispatches", params(Which),
    responses(
        (status = 200, body = InFlightPage, description = "A page"),
        (status = "4XX", body = Envelope, description = "Not understood"),
        (status = "5XX", body = Envelope, description = "Not to be had now"),
    ))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    By(principal): By,
    Asked(which): Asked<Which>,
) -> Result<Json<InFlightPage>, Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()?;
    if which.in_flight.as_deref() != Some("true") {
        let message = "only those in flight are listed: ask with `in_flight=true`";
        return Err(Error::new(Code::BadQuery, message));
    }
    let limit = lookup::limit(which.limit, PAGE_DEFAULT, PAGE_MAX)?;
    let after = which.after.map(|id| id.parse::<DispatchId>()).transpose();
    let after = after.map_err(|error| Error::new(Code::BadQuery, format!("`after`: {error}")))?;
    let mut runs = daemon.in_flight();
    runs.retain(|(_, run)| after.is_none_or(|after| run.dispatch > after));
    let more = runs.len() > limit;
    runs.truncate(limit);
    let next = runs.last().filter(|_| more).map(|(_, run)| run.dispatch);
    let view = |(entity, run)| InFlightView { entity, handler: HandlerView::of(&run) };
    Ok(Json(InFlightPage { dispatches: runs.into_iter().map(view).collect(), next }))
}

/// Looks at a dispatch
#[utoipa::path(get, path = "/v1/dispatches/{id}", tag = "dispatches",
    params(("id" = String, Path, pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, body = DispatchView, description = "As its records tell of its last attempt"),
        (status = "4XX", body = Envelope, description = "There is none, or it isn't yours"),
        (status = "5XX", body = Envelope, description = "It can't be read now"),
    ))]
pub(crate) async fn look(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Dispatch(id): Dispatch,
) -> Result<Json<DispatchView>, Error> {
    principal.require(Permission::Read)?;
    let (entity, at) = lookup::owner(&daemon, &principal, id).await?;
    Ok(Json(lookup::dispatch(&daemon, &entity, id, at).await?))
}

/// Tells why a dispatch ended as it did
///
/// As `sandglass why` does, by the records of its entity: the keys of a run's report, its
/// host calls one by one where they are kept, what was decided, how often its entity saw
/// that before, and what to do next.
#[utoipa::path(get, path = "/v1/dispatches/{id}/story", tag = "dispatches",
    params(("id" = String, Path, pattern = "^[0-9a-f]{32}$")),
    responses(
        (status = 200, body = Object, description = "Its last attempt; `outcome` is null while it goes on"),
        (status = "4XX", body = Envelope, description = "There is none, or it isn't yours"),
        (status = "5XX", body = Envelope, description = "It can't be read now"),
    ))]
pub(crate) async fn story(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Dispatch(id): Dispatch,
) -> Result<Json<Explanation>, Error> {
    principal.require(Permission::Read)?;
    let (entity, _) = lookup::owner(&daemon, &principal, id).await?;
    Ok(Json(lookup::explanation(&daemon, &entity, id).await?))
}

/// Why a handler is to end.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cancel {
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
}

/// Asks the handler of a dispatch to end
///
/// It ends as cancelled, and its entity takes the action that its spec declares for
/// that. The record names the owner of the key and the reason.
#[utoipa::path(post, path = "/v1/dispatches/{id}/cancel", tag = "dispatches",
    params(("id" = String, Path, pattern = "^[0-9a-f]{32}$")),
    request_body(content = Cancel, description = "May be left out"),
    responses(
        (status = 202, body = CancelledView, description = "It was asked to end, and does soon"),
        (status = "4XX", body = Envelope, description = "There is none, or it has ended"),
        (status = "5XX", body = Envelope, description = "It can't be found now"),
    ))]
pub(crate) async fn cancel(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Dispatch(dispatch): Dispatch,
    Body(cancel): Body<Cancel>,
) -> Result<(StatusCode, Json<CancelledView>), Error> {
    principal.require_to_cancel(CancelTarget::Dispatch, &daemon)?;
    let reason = reason(&principal, &cancel.reason)?;
    let (entity, _) = lookup::owner(&daemon, &principal, dispatch).await?;
    daemon.operates(&entity)?;
    if daemon.runtime().cancel(&entity, Some(dispatch), &reason)? == 0 {
        let message = format!("dispatch {dispatch} of {entity} has ended");
        return Err(Error::new(Code::NotInFlight, message));
    }
    Ok((StatusCode::ACCEPTED, Json(CancelledView { dispatch, entity })))
}

/// How a dispatch is to be tried again.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Retry {
    /// The attempt that was seen to end: `not_retried` where it isn't the last any more.
    #[schema(minimum = 1)]
    attempt: Option<u32>,
    /// Its budget, in milliseconds; as before, unless it is said.
    #[schema(minimum = 1)]
    budget_ms: Option<u64>,
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
}

/// Runs the handler of a dispatch again that has ended
///
/// The dispatch keeps its id, which handlers take for idempotency, and its attempt goes
/// up by one. The entity's present state has to take whatever the handler may end in.
#[utoipa::path(post, path = "/v1/dispatches/{id}/retry", tag = "dispatches",
    params(("id" = String, Path, pattern = "^[0-9a-f]{32}$")),
    request_body(content = Retry, description = "May be left out"),
    responses(
        (status = 200, body = TakenView, description = "It is queued or in flight again"),
        (status = "4XX", body = Envelope, description = "It isn't run again: nothing has changed"),
        (status = "5XX", body = Envelope, description = "It isn't run again, or `timed_out`"),
    ))]
pub(crate) async fn retry(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Dispatch(dispatch): Dispatch,
    Body(retry): Body<Retry>,
) -> Result<Json<TakenView>, Error> {
    principal.require(Permission::Operate)?;
    let Retry { attempt: expected_attempt, budget_ms, reason } = retry;
    if expected_attempt == Some(0) || budget_ms == Some(0) {
        return Err(Error::new(Code::BadBody, "`attempt` and `budget_ms` must be at least 1"));
    }
    short(&reason)?;
    let (entity, _) = lookup::owner(&daemon, &principal, dispatch).await?;
    daemon.operates(&entity)?;
    let budget = budget_ms.map(Duration::from_millis);
    let retry = sandglass_runtime::Retry { budget, by: principal.owner, reason, expected_attempt };
    // Once it is taken nothing is read any more that could fail.
    let accepted = daemon.runtime().retry(&entity, dispatch, retry).await?;
    Ok(Json(TakenView::of(accepted, None)))
}

/// Refuses a reason that is longer than people read.
pub(super) fn short(reason: &str) -> Result<(), Error> {
    if reason.chars().count() <= REASON_MAX_CHARS {
        return Ok(());
    }
    let message = format!("the reason has more than {REASON_MAX_CHARS} characters");
    Err(Error::new(Code::BadBody, message))
}

/// The reason as it is recorded: with who gives it.
fn reason(principal: &Principal, given: &str) -> Result<String, Error> {
    short(given)?;
    let by = &principal.owner;
    Ok(if given.is_empty() { format!("by {by}") } else { format!("by {by}: {given}") })
}
