//! One more attempt of a dispatch that has ended, at the request of an operator.

use sandglass_model::id::{NAME_MAX_BYTES, check_name};
use sandglass_model::limit::MAX_BUDGET_MS;
use sandglass_model::{DeadlineOwner, DispatchId, Dispatched, Event, OutcomeKind, Retried};

use super::action::check_handed;
use super::{HANDED_MAX_BYTES, IN_FLIGHT_MAX, REASON_MAX_BYTES, Refusal};
use crate::entity::{EndedDispatch, Entity};
use crate::spec::{Integration, Spec};

/// A request for one more attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Retry {
    /// The recorded dispatch, of any of its attempts.
    pub dispatched: Box<Dispatched>,
    /// Who requests it, why, and with what budget.
    pub retried: Retried,
    /// The attempt that the operator saw end; `None` for any.
    pub expected_attempt: Option<u32>,
}

pub(super) fn decide(spec: &Spec, entity: &Entity, retry: &Retry) -> Result<Vec<Event>, Refusal> {
    let Retry { dispatched, retried, expected_attempt } = retry;
    not_retried_since(entity, dispatched.dispatch, *expected_attempt)?;
    let past = find_ended(entity, dispatched)?;
    let name = &dispatched.integration;
    let integration = spec.integrations.get(name);
    let integration = integration
        .ok_or_else(|| Refusal::UnknownIntegration { integration: super::refusal::shown(name) })?;
    endings_taken(spec, entity, integration)?;
    check(retried)?;
    if entity.in_flight_count() >= IN_FLIGHT_MAX {
        return Err(Refusal::TooManyInFlight { max: IN_FLIGHT_MAX });
    }
    check_handed(&dispatched.params, &entity.variables, HANDED_MAX_BYTES)?;
    let attempt = past.attempt.saturating_add(1);
    // The remaining time of an asker says nothing once the asker waits no more.
    let declared = || integration.budget_for(&dispatched.params);
    let own = if past.was_lent { declared() } else { past.budget_ms };
    Ok(vec![Event::Dispatched(Box::new(Dispatched {
        spec: Some(spec.digest),
        expected: Some(entity.sequence),
        module_hash: None,
        state: entity.state.clone(),
        variables: entity.variables.clone(),
        attempt,
        budget_ms: retried.budget_ms.unwrap_or(own),
        budget_defaulted: retried.budget_ms.is_none() && integration.budget_defaulted,
        owner: DeadlineOwner::Handler,
        asker: None,
        depth: 0,
        retried: Some(retried.clone()),
        trace: past.trace.of_dispatch(past.dispatch, attempt),
        ..(**dispatched).clone()
    }))])
}

/// Two operators who saw the same attempt end may both retry: the second one would start a handler
/// again whose last end they have not seen.
fn not_retried_since(
    entity: &Entity,
    dispatch: DispatchId,
    expected: Option<u32>,
) -> Result<(), Refusal> {
    let in_flight = entity.in_flight_handler(dispatch).map(|run| run.dispatched.attempt);
    let last = in_flight.or_else(|| entity.ended_dispatch(dispatch).map(|past| past.attempt));
    match (expected, last) {
        (Some(expected), Some(last)) if expected != last => {
            Err(Refusal::NotTheLastAttempt { dispatch, expected, last })
        }
        _ => Ok(()),
    }
}

/// The handler that has to be started again, which has ended without success.
fn find_ended<'e>(
    entity: &'e Entity,
    dispatched: &Dispatched,
) -> Result<&'e EndedDispatch, Refusal> {
    let dispatch = dispatched.dispatch;
    if entity.in_flight_handler(dispatch).is_some() {
        return Err(Refusal::StillInFlight { dispatch });
    }
    match entity.ended_dispatch(dispatch) {
        Some(past) if past.outcome == OutcomeKind::Completed => {
            Err(Refusal::RetryOfSuccess { dispatch })
        }
        Some(past) if past.is_of(dispatched) => Ok(past),
        _ => Err(Refusal::NothingToRetry { dispatch }),
    }
}

/// Rule 10 holds for a retry, too: the present state accepts every ending.
fn endings_taken(spec: &Spec, entity: &Entity, of: &Integration) -> Result<(), Refusal> {
    let state = entity.state.as_str();
    let missing = spec.endings_not_taken(of, state);
    if missing.is_empty() {
        return Ok(());
    }
    let (integration, state) = (of.name.to_string(), state.to_owned());
    Err(Refusal::EndingsNotTaken { integration, state, missing: missing.join(", ") })
}

fn check(retried: &Retried) -> Result<(), Refusal> {
    check_name("name of who retries", &retried.by, NAME_MAX_BYTES).map_err(Refusal::BadRetry)?;
    if retried.reason.len() > REASON_MAX_BYTES {
        return Err(Refusal::TooLarge { what: "reason", max: REASON_MAX_BYTES });
    }
    match retried.budget_ms {
        Some(budget_ms) if !(1..=MAX_BUDGET_MS).contains(&budget_ms) => {
            Err(Refusal::BadBudget { budget_ms })
        }
        _ => Ok(()),
    }
}
