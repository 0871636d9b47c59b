//! Entities: creating them, having them take actions, looking at them.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sandglass_http::timer::within;
use sandglass_model::{DEFAULT_TENANT, EntityRef, Object, Position, Sequence};
use sandglass_runtime::{Accepted, ActorError, NewEntity, Request, Snapshot};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::session::limits_of;
use crate::Daemon;
use crate::access::Permission;
use crate::error::{Code, Envelope, Error};
use crate::extract::{Asked, Body, By, Entity, EntityAction, NoQuery, Trace};
use crate::lookup;
use crate::view::{EntityView, HistoryPage, OutcomeView, TakenView, WaitedView};

/// Most entries of one page of history, and how many it has where nothing is said.
const HISTORY_MAX: usize = 1_000;
const HISTORY_DEFAULT: usize = 100;

/// What a new entity is made with.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Create {
    /// On whose behalf it lives; that of the key, or `default`, unless it is said.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// The limits of its first run that are to be others than the spec's, where it is a
    /// session, within the host's ceilings: `{"run_timeout": "2h"}`.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    limits: Object,
}

/// Creates an entity
///
/// Its type is the name of an automaton whose spec is loaded; its first state and
/// variables are as that declares.
#[utoipa::path(post, path = "/v1/entities/{type}/{id}", tag = "entities",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
    ),
    request_body(content = Create, description = "May be left out"),
    responses(
        (status = 201, body = EntityView, description = "It lives"),
        (status = "4XX", body = Envelope, description = "It was not created"),
        (status = "5XX", body = Envelope, description = "It was not created, or `timed_out`"),
    ))]
pub(crate) async fn create(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Entity(entity): Entity,
    Body(create): Body<Create>,
) -> Result<(StatusCode, Json<EntityView>), Error> {
    principal.require(Permission::Act)?;
    daemon.operates(&entity)?;
    let tenant = match (principal.tenant, create.tenant) {
        (Some(own), Some(other)) if own != other => {
            let message = format!("the key of `{}` is for tenant `{own}` alone", principal.owner);
            return Err(Error::new(Code::Forbidden, message));
        }
        (own, said) => said.or(own).unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
    };
    let limits = limits_of(&create.limits)?;
    let birth = NewEntity { tenant: Some(tenant), limits, ..NewEntity::default() };
    let snapshot = daemon.runtime().create_as(entity, birth).await?;
    Ok((StatusCode::CREATED, Json(EntityView::of(&snapshot))))
}

/// Looks at an entity
#[utoipa::path(get, path = "/v1/entities/{type}/{id}", tag = "entities",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
    ),
    responses(
        (status = 200, body = EntityView, description = "As it is now"),
        (status = "4XX", body = Envelope, description = "There is none, or it isn't yours"),
        (status = "5XX", body = Envelope, description = "It can't be read now"),
    ))]
pub(crate) async fn look(
    State(daemon): State<Daemon>,
    By(principal): By,
    _: NoQuery,
    Entity(entity): Entity,
) -> Result<Json<EntityView>, Error> {
    principal.require(Permission::Read)?;
    let snapshot = lookup::entity(&daemon, &principal, &entity).await?;
    Ok(Json(EntityView::of(&snapshot)))
}

/// An action's parameters, and what has to hold for it.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Act {
    /// Its parameters.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    params: Object,
    /// Where the entity has to be; anywhere, unless it is said.
    expected_sequence: Option<u64>,
}

/// Whether and how long to wait.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Waiting {
    /// Answer when the entity has settled: no handler of it is queued or in flight.
    #[param(inline)]
    wait: Option<WaitFor>,
    /// How long to wait, as in `90s`; what is longer than the daemon allows is as long as
    /// it allows. Without `wait` it means nothing.
    #[param(value_type = Option<String>, pattern = r"^[0-9]{1,9}(ms|s|m|h)$")]
    timeout: Option<Patience>,
}

/// What to wait for.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitFor {
    /// No handler of the entity is queued or in flight.
    Settled,
}

/// A time as `500ms`, `90s`, `5m` or `1h`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Patience(Duration);

impl TryFrom<String> for Patience {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong =
            || format!("`{}` is no time; write `500ms`, `90s`, `5m` or `1h`", text.escape_debug());
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        // Nine digits of hours fit a number of milliseconds.
        let number: u64 = number.parse().ok().filter(|_| digits <= 9).ok_or_else(wrong)?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(wrong()),
        };
        Ok(Self(Duration::from_millis(number * unit_ms)))
    }
}

/// Has an entity take an action
///
/// Answered when that is durable and its handlers are started; they run in the
/// background, also when whoever asked goes away. With `wait=settled` it is answered
/// when the entity has settled, with how the handlers ended: a handler that failed or
/// timed out is an outcome, not an error. Where the time is over before that, the answer
/// is 202 with what there is, and the handlers go on. A `traceparent` makes the action
/// part of that trace.
#[utoipa::path(post, path = "/v1/entities/{type}/{id}/actions/{action}", tag = "entities",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
        ("action" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
        Waiting,
    ),
    request_body(content = Act, description = "May be left out"),
    responses(
        (status = 200, body = TakenView, description = "Taken, and settled where that was waited for"),
        (status = 202, body = TakenView, description = "Taken, and not settled within the time, or not all of it can be told"),
        (status = "4XX", body = Envelope, description = "Not taken: nothing has changed"),
        (status = "5XX", body = Envelope, description = "Not taken, or `timed_out`"),
    ))]
pub(crate) async fn act(
    State(daemon): State<Daemon>,
    By(principal): By,
    EntityAction(entity, action): EntityAction,
    Asked(waiting): Asked<Waiting>,
    Trace(trace): Trace,
    Body(act): Body<Act>,
) -> Result<Response, Error> {
    principal.require(Permission::Act)?;
    daemon.operates(&entity)?;
    let settings = daemon.settings();
    if waiting.wait.is_some() {
        // The answer tells of the entity and its handlers.
        principal.require(Permission::Read)?;
    }
    // Refused for want of a place before the action is taken, not after.
    let place = waiting.wait.map(|WaitFor::Settled| daemon.waiting(&principal)).transpose()?;
    let request = Request {
        action,
        params: act.params,
        trace,
        expected: act.expected_sequence.map(Sequence),
    };
    let taking = async {
        lookup::entity(&daemon, &principal, &entity).await?;
        Ok::<_, Error>(daemon.runtime().request(&entity, request).await?)
    };
    let accepted =
        within(settings.request_timeout, taking).await.map_err(|_| super::too_long())??;
    let taken = match place {
        None => TakenView::of(accepted, None),
        Some(_place) => {
            let time = waiting.timeout.map_or(settings.max_wait, |Patience(time)| time);
            let time = time.min(settings.max_wait);
            let waited = waited(&daemon, &entity, &accepted, time).await;
            TakenView::of(accepted, Some(waited))
        }
    };
    let status = if taken.is_over() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(taken)).into_response())
}

/// What has come of `accepted` when the entity has settled, or when the time is over.
/// The action is taken, so this is never an error: what can't be told is left out.
async fn waited(
    daemon: &Daemon,
    entity: &EntityRef,
    accepted: &Accepted,
    time: Duration,
) -> WaitedView {
    let runtime = daemon.runtime();
    let (settled, snapshot) = match within(time, runtime.settled(entity)).await {
        Ok(snapshot) => (snapshot.is_ok(), snapshot),
        Err(_) => (false, runtime.entity(entity).await),
    };
    let read = lookup::outcomes(daemon, entity, &accepted.dispatches, accepted.position).await;
    told(settled, snapshot, read)
}

/// What can be told of these, and why not the rest.
fn told(
    settled: bool,
    snapshot: Result<Arc<Snapshot>, ActorError>,
    outcomes: Result<Vec<OutcomeView>, Error>,
) -> WaitedView {
    let (entity, no_entity) = match snapshot {
        Ok(snapshot) => (Some(EntityView::of(&snapshot)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let (outcomes, no_outcomes) = match outcomes {
        Ok(outcomes) => (outcomes, None),
        Err(error) => (Vec::new(), Some(error.message().to_owned())),
    };
    WaitedView { settled, entity, outcomes, untold: no_entity.or(no_outcomes) }
}

/// Which part of a history.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Part {
    /// From behind this position of the journal on; from the entity's creation, unless it
    /// is said.
    after: Option<u64>,
    /// How many entries at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// The records of an entity, the oldest first
///
/// A page ends with the entry that brings it to a mebibyte, so that it may have fewer
/// entries than it is asked for; only `next` says whether there are more.
#[utoipa::path(get, path = "/v1/entities/{type}/{id}/history", tag = "entities",
    params(
        ("type" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^/\x00-\x1f\x7f-\x9f]+$"),
        ("id" = String, Path, min_length = 1, max_length = 256, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$"),
        Part,
    ),
    responses(
        (status = 200, body = HistoryPage, description = "A page"),
        (status = "4XX", body = Envelope, description = "There is none, or it isn't yours"),
        (status = "5XX", body = Envelope, description = "It can't be read now"),
    ))]
pub(crate) async fn history(
    State(daemon): State<Daemon>,
    By(principal): By,
    Entity(entity): Entity,
    Asked(part): Asked<Part>,
) -> Result<Response, Error> {
    principal.require(Permission::Read)?;
    let limit = lookup::limit(part.limit, HISTORY_DEFAULT, HISTORY_MAX)?;
    lookup::entity(&daemon, &principal, &entity).await?;
    let from = Position(part.after.unwrap_or(0).saturating_add(1));
    let _place = daemon.reading().await;
    let page = daemon.runtime().history(&entity, from, limit).await?;
    // Written while it has its place: from here on there is only its text.
    Ok(Json(HistoryPage::of(page)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_is_told_as_taken_also_when_what_came_of_it_cannot_be_read() {
        let dispatches = vec![sandglass_model::DispatchId::from_bytes([7; 16])];
        let accepted = Accepted {
            sequence: Sequence(3),
            state: "Executing".to_owned(),
            dispatches,
            position: Position(9),
        };
        let waited = told(true, Err(ActorError::Closed), Err(Error::closing()));
        let taken = TakenView::of(accepted, Some(waited));
        assert!(!taken.is_over(), "200 says that all is told");
        let body = serde_json::to_value(&taken).expect("plain data");
        assert_eq!(
            (&body["position"], &body["waited"]["outcomes"]),
            (&9.into(), &serde_json::json!([]))
        );
        assert!(body["waited"]["untold"].as_str().is_some_and(|why| why.contains("shutting down")));
    }

    #[test]
    fn times_are_read_as_people_write_them_and_nothing_else_is() {
        for (text, millis) in
            [("500ms", 500), ("90s", 90_000), ("0m", 0), ("999999999h", 999_999_999 * 3_600_000)]
        {
            let read = Patience::try_from(text.to_owned()).map(|time| time.0.as_millis());
            assert_eq!(read, Ok(millis), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1.5s", "5 s", "1234567890s", "1d", "٣s"] {
            assert!(Patience::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }
}
