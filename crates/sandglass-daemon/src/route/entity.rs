//! Routes of entities: creating one, requesting actions, sending signals, reading its state and its
//! history.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sandglass_http::timer::within;
use sandglass_model::{DEFAULT_TENANT, EntityRef, Object, Position, Sequence};
use sandglass_runtime::{Accepted, ActorError, NewEntity, Request, Signal, Snapshot};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::session::parse_limits;
use crate::Daemon;
use crate::access::Permission;
use crate::error::Error;
use crate::extract::{
    Action, ActionPath, Body, Caller, Entity, EntityPath, Key, KeyHeader, NoQuery, Payload,
    QueryParams, SignalName, SignalPath, Trace,
};
use crate::find::{Results, find_entity, page_limit, read_results};
use crate::view::{EntityView, HistoryPage, TakenView, WaitedView};

/// Settings of a new entity.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Create {
    /// The tenant that it belongs to; by default that of the key, or `default`.
    #[schema(min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]+$")]
    tenant: Option<String>,
    /// If it is a session, limits of its first run that differ from those of the spec, within the
    /// host's ceilings: `{"run_timeout": "2h"}`.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    limits: Object,
}

/// Creates an entity
///
/// Its type is the name of an automaton whose spec is loaded, which declares the initial state and
/// variables.
#[utoipa::path(post, path = "/v1/entities/{type}/{id}", tag = "entities",
    params(EntityPath), request_body = Create,
    responses((status = 201, body = EntityView, description = "The entity was created")))]
pub(crate) async fn create(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Entity(entity): Entity,
    Body(create): Body<Create>,
) -> Result<(StatusCode, Json<EntityView>), Error> {
    principal.require(Permission::Act)?;
    daemon.require_operated_here(&entity)?;
    let tenant = match (&principal.tenant, create.tenant) {
        (Some(own), Some(other)) if *own != other => return Err(principal.other_tenant(own)),
        (own, requested) => {
            requested.or_else(|| own.clone()).unwrap_or_else(|| DEFAULT_TENANT.to_owned())
        }
    };
    let limits = parse_limits(&create.limits)?;
    let birth = NewEntity { tenant: Some(tenant), limits, ..NewEntity::default() };
    let snapshot = daemon.runtime().create_as(entity, birth).await?;
    Ok((StatusCode::CREATED, Json(EntityView::new(&snapshot))))
}

/// An entity
#[utoipa::path(get, path = "/v1/entities/{type}/{id}", operation_id = "look", tag = "entities",
    params(EntityPath),
    responses((status = 200, body = EntityView, description = "Its present state")))]
pub(crate) async fn show(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Entity(entity): Entity,
) -> Result<Json<EntityView>, Error> {
    principal.require(Permission::Read)?;
    let snapshot = find_entity(&daemon, &principal, &entity).await?;
    Ok(Json(EntityView::new(&snapshot)))
}

/// The parameters and conditions of an action.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Act {
    /// The parameters.
    #[schema(value_type = std::collections::BTreeMap<String, serde_json::Value>)]
    params: Object,
    /// The sequence at which the entity must be; by default any.
    expected_sequence: Option<u64>,
}

/// Whether and how long to wait.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Respond when the entity has settled, that is, has no handler queued or in flight, and the
    /// entities that it spawns are created.
    #[param(inline)]
    wait: Option<WaitFor>,
    /// How long to wait, as in `90s`, up to the maximum of the daemon. Without `wait` it has no
    /// effect.
    #[param(value_type = Option<String>, pattern = r"^[0-9]{1,9}(ms|s|m|h)$")]
    timeout: Option<Timeout>,
}

/// What to wait for.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WaitFor {
    /// No handler of the entity is queued or in flight, and the entities that it spawns are created.
    Settled,
}

/// A time as `500ms`, `90s`, `5m` or `1h`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
struct Timeout(Duration);

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let invalid = || {
            format!("`{}` is not a time; write `500ms`, `90s`, `5m` or `1h`", text.escape_debug())
        };
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        // Nine digits of hours still fit as milliseconds.
        let number: u64 = number.parse().ok().filter(|_| digits <= 9).ok_or_else(invalid)?;
        let unit_ms = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return Err(invalid()),
        };
        Ok(Self(Duration::from_millis(number * unit_ms)))
    }
}

/// Requests an action of an entity
///
/// The response comes when the transition is durable and its handlers are started. They execute in
/// the background, even if the client disconnects. With `wait=settled` the response comes when the
/// entity has settled, and contains how the handlers ended, and which entities were not spawned: a
/// handler that failed or timed out is an outcome, not an error. If the time is over before that, the
/// response is 202 with the present state, and the handlers continue. A `traceparent` makes the action
/// part of that trace. With an `Idempotency-Key` the action is taken once: the same request with the same key
/// gets the first response again, as long as the key is one of the last 64 of the entity.
#[utoipa::path(post, path = "/v1/entities/{type}/{id}/actions/{action}", tag = "entities",
    params(EntityPath, ActionPath, WaitParams, KeyHeader), request_body = Act,
    responses(
        (status = 200, body = TakenView, description = "Taken; settled, if the request waited"),
        (status = 202, body = TakenView,
            description = "Taken; not settled in time, or the result is incomplete"),
    ))]
#[expect(clippy::too_many_arguments, reason = "each is a part of the request")]
pub(crate) async fn act(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    Entity(entity): Entity,
    Action(action): Action,
    QueryParams(params): QueryParams<WaitParams>,
    Trace(trace): Trace,
    Key(key): Key,
    Body(act): Body<Act>,
) -> Result<Response, Error> {
    principal.require(Permission::Act)?;
    daemon.require_operated_here(&entity)?;
    let settings = daemon.settings();
    if params.wait.is_some() {
        // The response contains the entity and the outcomes of its handlers.
        principal.require(Permission::Read)?;
    }
    // Taken before the action, so that a request without a slot changes nothing.
    let slot = params.wait.map(|WaitFor::Settled| daemon.waiting(&principal)).transpose()?;
    let request = Request {
        action,
        params: act.params,
        trace,
        expected: act.expected_sequence.map(Sequence),
        idempotency_key: key,
    };
    let may_read = principal.require(Permission::Read).is_ok();
    let to_error = if may_read { Error::for_reader } else { Error::from };
    let taking = async {
        find_entity(&daemon, &principal, &entity).await?;
        daemon.runtime().request(&entity, request).await.map_err(to_error)
    };
    let accepted =
        within(settings.request_timeout, taking).await.map_err(|_| super::too_long())??;
    let taken = match slot {
        None => TakenView::new(accepted, None),
        Some(_slot) => {
            let time = params.timeout.map_or(settings.max_wait, |Timeout(time)| time);
            let time = time.min(settings.max_wait);
            let waited = wait_until_settled(&daemon, &entity, &accepted, time).await;
            TakenView::new(accepted, Some(waited))
        }
    };
    let status = if taken.is_complete() { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(taken)).into_response())
}

/// Waits until the entity has settled or `time` is over. The action is already taken, so this never
/// fails: what cannot be read is left out.
async fn wait_until_settled(
    daemon: &Daemon,
    entity: &EntityRef,
    accepted: &Accepted,
    time: Duration,
) -> WaitedView {
    let runtime = daemon.runtime();
    let (settled, snapshot) = match within(time, runtime.settled(entity)).await {
        Ok(snapshot) => (snapshot.is_ok(), snapshot),
        // Not as a new request, which is refused while the partition is given away.
        Err(_) => (false, runtime.wait_until(entity, |_| true).await),
    };
    let results = read_results(daemon, entity, accepted).await;
    waited_view(settled, snapshot, results)
}

fn waited_view(
    settled: bool,
    snapshot: Result<Arc<Snapshot>, ActorError>,
    results: Result<Results, Error>,
) -> WaitedView {
    let (entity, no_entity) = match snapshot {
        Ok(snapshot) => (Some(EntityView::new(&snapshot)), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let (results, no_results) = match results {
        Ok(results) => (results, None),
        Err(error) => (Results::default(), Some(error.message().to_owned())),
    };
    let (outcomes, not_spawned) = results;
    WaitedView { settled, entity, outcomes, not_spawned, incomplete: no_entity.or(no_results) }
}

/// Sends a signal to an entity
///
/// A signal is a notice: it is recorded, changes no state and does not advance the sequence. The body
/// is its payload, any JSON value of at most 64 KiB and 1,024 values (an object counts as eight). If the entity's state lists the name in
/// `reset_on`, the timer of the state restarts. For a session, a signal is activity, unless its spec
/// lists the name as `synthetic`, and progress if the spec lists it as `material`. The response comes
/// when the signal is durable.
#[utoipa::path(post, path = "/v1/entities/{type}/{id}/signals/{name}", tag = "entities",
    params(EntityPath, SignalPath),
    request_body(content = serde_json::Value, content_type = "application/json"),
    responses((status = 204, description = "The signal is recorded")))]
pub(crate) async fn signal(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    _: NoQuery,
    Entity(entity): Entity,
    SignalName(name): SignalName,
    Payload(payload): Payload,
) -> Result<StatusCode, Error> {
    principal.require(Permission::Act)?;
    daemon.require_operated_here(&entity)?;
    find_entity(&daemon, &principal, &entity).await?;
    daemon.runtime().signal(&entity, Signal { name, from: None, payload }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A part of a history.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HistoryParams {
    /// Only entries after this position of the journal; by default all since the entity's creation.
    after: Option<u64>,
    /// How many entries at most.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<usize>,
}

/// The records of an entity, the oldest first
///
/// A page ends when its entries reach a mebibyte, so it may have fewer than `limit`. Only `next`
/// states whether there are more.
#[utoipa::path(get, path = "/v1/entities/{type}/{id}/history", tag = "entities",
    params(EntityPath, HistoryParams),
    responses((status = 200, body = HistoryPage, description = "A page")))]
pub(crate) async fn history(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    Entity(entity): Entity,
    QueryParams(params): QueryParams<HistoryParams>,
) -> Result<Response, Error> {
    principal.require(Permission::Read)?;
    let limit = page_limit(params.limit)?;
    find_entity(&daemon, &principal, &entity).await?;
    let from = Position(params.after.unwrap_or(0).saturating_add(1));
    let _permit = daemon.reading().await;
    let page = daemon.runtime().history(&entity, from, limit).await?;
    // Serialized while the permit is held; afterwards only the text is in memory.
    Ok(Json(HistoryPage::new(page)).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_action_is_reported_as_taken_even_if_its_result_cannot_be_read() {
        let dispatches = vec![sandglass_model::DispatchId::from_bytes([7; 16])];
        let accepted = Accepted {
            sequence: Sequence(3),
            state: "Executing".to_owned(),
            dispatches,
            position: Position(9),
        };
        let waited = waited_view(true, Err(ActorError::Closed), Err(Error::closing()));
        let taken = TakenView::new(accepted, Some(waited));
        assert!(!taken.is_complete(), "200 means that nothing is missing");
        let body = serde_json::to_value(&taken).expect("plain data");
        assert_eq!(
            (&body["position"], &body["waited"]["outcomes"]),
            (&9.into(), &serde_json::json!([]))
        );
        assert!(body["waited"]["untold"].as_str().is_some_and(|why| why.contains("shutting down")));
    }

    #[test]
    fn times_need_a_unit_and_at_most_nine_digits() {
        for (text, millis) in
            [("500ms", 500), ("90s", 90_000), ("0m", 0), ("999999999h", 999_999_999 * 3_600_000)]
        {
            let read = Timeout::try_from(text.to_owned()).map(|time| time.0.as_millis());
            assert_eq!(read, Ok(millis), "{text}");
        }
        for bad in ["", "5", "s", "-1s", "1.5s", "5 s", "1234567890s", "1d", "٣s"] {
            assert!(Timeout::try_from(bad.to_owned()).is_err(), "{bad:?}");
        }
    }
}
