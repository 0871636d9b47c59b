//! Routes of sessions: listing those that are awake, reading one, cancel and resume.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use sandglass_liveness::session::LimitSettings;
use sandglass_model::{EntityRef, Object, StopCause};
use sandglass_runtime::{SessionResume, SessionStop};
use sandglass_telemetry::metrics::CancelTarget;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::check_reason;
use crate::Daemon;
use crate::access::Permission;
use crate::cluster::{List, Question};
use crate::error::{Code, Error};
use crate::extract::{Body, Caller, Entity, EntityPath, NoQuery, QueryParams};
use crate::find::{find_entity, page_limit};
use crate::view::{SessionPage, SessionView, TakenView};

/// The query of the list.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Only sessions after this one, TYPE/ID.
    #[param(value_type = Option<String>)]
    after: Option<EntityRef>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// The list of sessions that are awake.
const LIST: List = List { field: "sessions", key: "session" };

/// The sessions that are awake, in the order of their names
///
/// These are the sessions that have work in flight or had some a moment ago. The others are asleep,
/// and can be read one by one. Other entities are in the list while they have handlers in flight,
/// without `run_seq`.
///
/// In a cluster, those of all hosts, except the hosts in `missing`, which did not respond within 500 ms.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(ListParams),
    responses((status = 200, body = SessionPage, description = "A page")))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    QueryParams(params): QueryParams<ListParams>,
    question: Question,
) -> Result<Response, Error> {
    principal.require(Permission::Read)?;
    let limit = page_limit(params.limit)?;
    let awake = daemon.runtime().awake_sessions(params.after.as_ref(), |snapshot| {
        principal.tenant.as_ref().is_none_or(|tenant| *tenant == snapshot.tenant)
    });
    let host = daemon.own_host();
    let view = |status| SessionView::on(status, host);
    let mut sessions: Vec<SessionView> =
        awake.into_iter().take(limit.saturating_add(1)).map(view).collect();
    let is_more = sessions.len() > limit;
    sessions.truncate(limit);
    let next = sessions.last().filter(|_| is_more).map(|last| last.session().to_owned());
    let page = SessionPage { sessions, next, missing: None };
    question.respond::<EntityRef>(&daemon, &principal, LIST, page, limit).await
}

/// The status of a session, or of an entity with handlers in flight
#[utoipa::path(get, path = "/v1/sessions/{type}/{id}", operation_id = "look", tag = "sessions",
    params(EntityPath),
    responses((status = 200, body = SessionView, description = "Its present status")))]
pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Entity(entity): Entity,
) -> Result<Json<SessionView>, Error> {
    principal.require(Permission::Read)?;
    find_entity(&daemon, &principal, &entity).await?;
    let status = daemon.runtime().session_status(&entity).await?;
    let no_session =
        || Error::new(Code::NoSession, format!("{entity} is not a session: it has no limits"));
    status.map(SessionView::new).map(Json).ok_or_else(no_session)
}

/// Why a session is cancelled.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CancelSession {
    /// The run that the client saw; refused if it is no longer the present one.
    #[schema(minimum = 1)]
    run_seq: Option<u32>,
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
}

/// A session that is being stopped.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoppedView {
    /// TYPE/ID.
    #[schema(value_type = String)]
    session: EntityRef,
    /// The run that stops.
    run_seq: u32,
    /// `cancelled`: the session ends.
    status: &'static str,
    /// Whether the stop is durable. If not, its handlers are stopped nevertheless, and the record
    /// follows.
    recorded: bool,
}

/// Cancels a session
///
/// Its queued handlers never start. Those in flight are killed now, even in a host call or within the
/// grace of an earlier stop. A blocked session can no longer be resumed. The record contains the
/// owner of the key and the reason.
#[utoipa::path(post, path = "/v1/sessions/{type}/{id}/cancel", tag = "sessions",
    params(EntityPath), request_body = CancelSession,
    responses((status = 202, body = StoppedView, description = "The session is being stopped and ends")))]
pub(crate) async fn cancel(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Entity(entity): Entity,
    Body(CancelSession { run_seq, reason }): Body<CancelSession>,
) -> Result<(StatusCode, Json<StoppedView>), Error> {
    daemon.require_to_cancel(&principal, CancelTarget::Session)?;
    check_reason(&reason)?;
    find_entity(&daemon, &principal, &entity).await?;
    let cause = StopCause::Operator { by: principal.owner, reason };
    let stopped = daemon.runtime().stop_session(&entity, SessionStop { run_seq, cause }).await?;
    let view = StoppedView {
        session: entity,
        run_seq: stopped.run_seq,
        status: "cancelled",
        recorded: stopped.is_recorded,
    };
    Ok((StatusCode::ACCEPTED, Json(view)))
}

/// How a session is resumed.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Resume {
    /// The run that the client saw stop; refused if it is no longer the last one.
    #[schema(minimum = 1)]
    run_seq: Option<u32>,
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
    /// Limits of the next run that differ from those of the spec, within the host's ceilings:
    /// `{"run_timeout": "2h"}`.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    limits: Object,
}

/// Resumes a session
///
/// A new run begins. The handlers that the stop interrupted are dispatched again.
#[utoipa::path(post, path = "/v1/sessions/{type}/{id}/resume", tag = "sessions",
    params(EntityPath), request_body = Resume,
    responses((status = 200, body = TakenView, description = "A new run has begun")))]
pub(crate) async fn resume(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Entity(entity): Entity,
    Body(resume): Body<Resume>,
) -> Result<Json<TakenView>, Error> {
    principal.require(Permission::Operate)?;
    let Resume { run_seq: expected_run, reason, limits } = resume;
    check_reason(&reason)?;
    let limits = parse_limits(&limits)?;
    find_entity(&daemon, &principal, &entity).await?;
    daemon.require_operated_here(&entity)?;
    let resume = SessionResume { by: principal.owner, reason, expected_run, limits };
    let accepted = daemon.runtime().resume_session(&entity, resume).await?;
    Ok(Json(TakenView::new(accepted, None)))
}

/// Reads the limits of a request.
pub(super) fn parse_limits(limits: &Object) -> Result<LimitSettings, Error> {
    LimitSettings::of_request(limits).map_err(|bad| Error::new(Code::BadParams, bad.to_string()))
}
