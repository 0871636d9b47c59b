//! Sessions: how they stand, that they stop, and that they go on.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use sandglass_liveness::session::LimitSettings;
use sandglass_model::{EntityRef, Object, StopCause};
use sandglass_runtime::{SessionResume, SessionStop};
use sandglass_telemetry::metrics::CancelTarget;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::dispatch::short;
use crate::Daemon;
use crate::access::Permission;
use crate::error::{Code, Envelope, Error};
use crate::extract::{Asked, Body, By, Entity, NoQuery};
use crate::lookup;
use crate::view::{SessionPage, SessionView, TakenView};

/// Most sessions of one page, and how many it has where nothing is said.
const PAGE_MAX: usize = 1_000;
const PAGE_DEFAULT: usize = 100;

/// Which sessions.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Which {
    /// From behind this one on, TYPE/ID.
    #[param(value_type = Option<String>)]
    after: Option<EntityRef>,
    /// How many at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// The sessions that are awake, in the order of their names
///
/// Those that have work in flight, and those that had until a moment ago. The rest sleeps, and
/// is looked at one by one.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(Which),
    responses(
        (status = 200, body = SessionPage, description = "A page"),
        (status = "4XX", body = Envelope, description = "Not understood"),
        (status = "5XX", body = Envelope, description = "Not to be had now"),
    ))]
pub(crate) async fn list(
    State(daemon): State<Daemon>,
    By(principal): By,
    Asked(which): Asked<Which>,
) -> Result<Json<SessionPage>, Error> {
    principal.require(Permission::Read)?;
    let limit = lookup::limit(which.limit, PAGE_DEFAULT, PAGE_MAX)?;
    let awake = daemon.runtime().awake_sessions(which.after.as_ref(), |snapshot| {
        principal.tenant.as_ref().is_none_or(|tenant| *tenant == snapshot.tenant)
    });
    let mut sessions: Vec<SessionView> =
        awake.into_iter().take(limit.saturating_add(1)).map(SessionView::of).collect();
    let is_more = sessions.len() > limit;
    sessions.truncate(limit);
    let next = sessions.last().filter(|_| is_more).map(|last| last.session().to_owned());
    Ok(Json(SessionPage { sessions, next }))
}

/// How a session stands
#[utoipa::path(get, path = "/v1/sessions/{type}/{id}", tag = "sessions",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = SessionView, description = "As it is now"),
        (status = "4XX", body = Envelope, description = "There is none, or it isn't yours"),
        (status = "5XX", body = Envelope, description = "It can't be read now"),
    ))]
pub(crate) async fn look(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Entity(entity): Entity,
) -> Result<Json<SessionView>, Error> {
    principal.require(Permission::Read)?;
    lookup::entity(&daemon, &principal, &entity).await?;
    let status = daemon.runtime().session_status(&entity).await?;
    let none = || Error::new(Code::NoSession, format!("{entity} is no session: nothing limits it"));
    status.map(SessionView::of).map(Json).ok_or_else(none)
}

/// Why a session is to stop.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Cancel {
    /// The run that was seen: refused where it isn't the present one any more.
    #[schema(minimum = 1)]
    run_seq: Option<u32>,
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
}

/// That a session is being stopped.
#[derive(Serialize, ToSchema)]
pub(crate) struct StoppedView {
    /// TYPE/ID.
    #[schema(value_type = String)]
    session: EntityRef,
    /// Which run of it.
    run_seq: u32,
    /// `cancelled`: it doesn't go on.
    status: &'static str,
    /// Whether that is durable; where it isn't, its handlers are stopped all the same, and the
    /// record follows.
    recorded: bool,
}

/// Cancels a session
///
/// What is queued of it never starts, and what runs is stopped now, also in the middle of a host
/// call or of the grace that another stop has given it. What waits to be resumed never is. The
/// record names the owner of the key and the reason.
#[utoipa::path(post, path = "/v1/sessions/{type}/{id}/cancel", tag = "sessions",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
    ),
    request_body(content = Cancel, description = "May be left out"),
    responses(
        (status = 202, body = StoppedView, description = "It is being stopped, for good"),
        (status = "4XX", body = Envelope, description = "There is none, or `already_stopped`"),
        (status = "5XX", body = Envelope, description = "It can't be found now, or `timed_out`"),
    ))]
pub(crate) async fn cancel(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Entity(entity): Entity,
    Body(cancel): Body<Cancel>,
) -> Result<(StatusCode, Json<StoppedView>), Error> {
    principal.require_to_cancel(CancelTarget::Session, &daemon)?;
    let Cancel { run_seq, reason } = cancel;
    short(&reason)?;
    lookup::entity(&daemon, &principal, &entity).await?;
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

/// How a session is to go on.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Resume {
    /// The run that was seen to stop: refused where it isn't the last one any more.
    #[schema(minimum = 1)]
    run_seq: Option<u32>,
    /// For the record.
    #[schema(max_length = 500)]
    reason: String,
    /// The limits of the next run that are to be others than the spec's, within the host's
    /// ceilings: `{"run_timeout": "2h"}`.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    limits: Object,
}

/// Resumes a session
///
/// A new run of it begins, with the handlers dispatched anew that the stop has cut.
#[utoipa::path(post, path = "/v1/sessions/{type}/{id}/resume", tag = "sessions",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
    ),
    request_body(content = Resume, description = "May be left out"),
    responses(
        (status = 200, body = TakenView, description = "It goes on"),
        (status = "4XX", body = Envelope, description = "It doesn't: nothing has changed"),
        (status = "5XX", body = Envelope, description = "It doesn't, or `timed_out`"),
    ))]
pub(crate) async fn resume(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Entity(entity): Entity,
    Body(resume): Body<Resume>,
) -> Result<Json<TakenView>, Error> {
    principal.require(Permission::Operate)?;
    let Resume { run_seq: expected_run, reason, limits } = resume;
    short(&reason)?;
    let limits = limits_of(&limits)?;
    lookup::entity(&daemon, &principal, &entity).await?;
    daemon.operates(&entity)?;
    let resume = SessionResume { by: principal.owner, reason, expected_run, limits };
    let accepted = daemon.runtime().resume_session(&entity, resume).await?;
    Ok(Json(TakenView::of(accepted, None)))
}

/// The limits that a request asks for.
pub(super) fn limits_of(said: &Object) -> Result<LimitSettings, Error> {
    LimitSettings::of_request(said).map_err(|bad| Error::new(Code::BadParams, bad.to_string()))
}
