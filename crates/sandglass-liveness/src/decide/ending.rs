//! What a handler's end becomes: rule 10 of handler deadlines, that every ending is
//! a transition.

use std::time::Duration;

use sandglass_model::{
    Cause, Completion, DeadlineOwner, Decision, Dispatched, Ended, Event, Failure, FailureKind,
    Object, Outcome, TransitionCause, WallTime,
};
use serde_json::{Value, json};

use super::take::{Taking, within};
use super::{HandlerEnd, RERUN_ATTEMPTS_MAX, Refusal, session};
use crate::entity::{Entity, InFlight};
use crate::session::Session;
use crate::spec::{Integration, OnCrash, Spec};

pub(super) fn decide(
    spec: &Spec,
    entity: &Entity,
    end: &HandlerEnd,
    now: WallTime,
) -> Result<Vec<Event>, Refusal> {
    let dispatch = end.dispatch;
    let run = entity.run(dispatch).ok_or(Refusal::UnknownDispatch { dispatch })?;
    if run.dispatched.attempt != end.attempt {
        return Err(Refusal::StaleAttempt { dispatch, attempt: end.attempt });
    }
    let integration = spec.integrations.get(&run.dispatched.integration);
    let Some(integration) = integration else {
        // A spec is kept with its entities, so only a damaged journal gets here.
        return Ok(vec![ended(end, end.outcome.clone(), superseded("none"))]);
    };
    let ending = Ending { spec, entity, run, integration, end, now };
    let may_go_on = entity.session().is_none_or(Session::is_running);
    Ok(if may_go_on && is_rerun(integration, run, end) { ending.rerun() } else { ending.decide() })
}

struct Ending<'a> {
    spec: &'a Spec,
    entity: &'a Entity,
    run: &'a InFlight,
    integration: &'a Integration,
    end: &'a HandlerEnd,
    now: WallTime,
}

impl Ending<'_> {
    fn decide(&self) -> Vec<Event> {
        let outcome = self.judged();
        let action = self.action(&outcome).to_owned();
        if self.is_left() {
            return vec![ended(self.end, outcome, superseded(&action))];
        }
        if let Some(decision) = session::decision_of_stopped(self.entity, &outcome) {
            return vec![ended(self.end, outcome, decision)];
        }
        match self.take(&action, &outcome) {
            Ok(transition) => self.taken(outcome, action, transition),
            Err(refusal) => self.refused(outcome, action, &refusal),
        }
    }

    /// The outcome, with a success that names no action made a failure.
    fn judged(&self) -> Outcome {
        match &self.end.outcome {
            Outcome::Completed(completion) if self.success_action(completion).is_none() => {
                let message = format!(
                    "the result names no action, and integration `{}` declares no `on_success`",
                    self.integration.name
                );
                failure(FailureKind::NoAction, message, completion)
            }
            other => other.clone(),
        }
    }

    fn success_action<'b>(&'b self, completion: &'b Completion) -> Option<&'b str> {
        self.integration.on_success.as_deref().or(completion.action.as_deref())
    }

    /// The action that an outcome becomes.
    fn action<'b>(&'b self, outcome: &'b Outcome) -> &'b str {
        let of = self.integration;
        if session::is_cut(self.entity, outcome) {
            return &of.on_cancelled;
        }
        match outcome {
            Outcome::Completed(completion) => {
                self.success_action(completion).unwrap_or(&of.on_failure)
            }
            Outcome::Failed(_) | Outcome::Trapped(_) | Outcome::Limit(_) | Outcome::Rejected(_) => {
                &of.on_failure
            }
            Outcome::TimedOut(_) => &of.on_timeout,
            Outcome::Interrupted => &of.on_interrupted,
            Outcome::Cancelled(_) => &of.on_cancelled,
        }
    }

    /// Whether the transition that left the handler's state has ended it. What it
    /// answers then belongs to another time, also if that state is entered again.
    fn is_left(&self) -> bool {
        self.run.left || self.end.cause == Cause::StateLeft
    }

    fn take(&self, action: &str, outcome: &Outcome) -> Result<Vec<Event>, Refusal> {
        let dispatched = &self.run.dispatched;
        let params = params(dispatched, outcome);
        let cause = TransitionCause::HandlerEnded { dispatch: dispatched.dispatch };
        let taking = Taking::new(self.spec, self.entity, self.now);
        let taking = taking.after_a_handler(self.end.asker_remaining_ms);
        taking.take(action, &params, &cause, dispatched.trace)
    }

    fn taken(&self, outcome: Outcome, action: String, transition: Vec<Event>) -> Vec<Event> {
        let mut events = vec![ended(self.end, outcome, Decision::Take { action })];
        events.extend(transition);
        events
    }

    /// An ending that the handler's own state refuses becomes a failure, so that it has
    /// its transition, too: a success in name as well. In another state it came too
    /// late, unless it is a success that names no declared action.
    fn refused(&self, outcome: Outcome, action: String, refusal: &Refusal) -> Vec<Event> {
        let same_state = self.entity.state == self.run.dispatched.state;
        if !same_state && (!is_success(&outcome) || self.spec.actions.contains_key(&action)) {
            return vec![ended(self.end, outcome, superseded(&action))];
        }
        let outcome = match &outcome {
            Outcome::Completed(completion) => {
                let message = format!("the result's action can't be taken: {refusal}");
                failure(FailureKind::ActionNotTaken, message, completion)
            }
            _ => outcome,
        };
        let of = self.integration;
        let own_state = [&of.on_timeout, &of.on_interrupted, &of.on_cancelled];
        let others = own_state.into_iter().filter(|_| same_state);
        for instead in std::iter::once(&of.on_failure).chain(others) {
            if let Ok(transition) = self.take(instead, &outcome) {
                return self.taken(outcome, instead.to_string(), transition);
            }
        }
        vec![ended(self.end, outcome, superseded(&of.on_failure))]
    }

    fn rerun(&self) -> Vec<Event> {
        let Self { end, integration, .. } = self;
        let dispatched = &self.run.dispatched;
        let attempt = end.attempt + 1;
        let own_ms = match dispatched.owner {
            DeadlineOwner::Parent => integration.budget_for(&dispatched.params),
            DeadlineOwner::Handler => dispatched.budget_ms,
        };
        // After a crash whoever asked was lost, too, and lends it nothing any more.
        let lent_ms = end.asker_remaining_ms;
        let (budget_ms, owner) = within(own_ms, lent_ms);
        let again = Dispatched {
            spec: Some(self.spec.digest),
            expected: Some(self.entity.sequence),
            attempt,
            budget_ms,
            owner,
            asker: lent_ms.and(dispatched.asker),
            retried: None,
            trace: dispatched.trace.of_dispatch(dispatched.dispatch, attempt),
            ..(**dispatched).clone()
        };
        vec![ended(end, Outcome::Interrupted, Decision::Rerun), Event::Dispatched(Box::new(again))]
    }
}

const fn is_success(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Completed(_))
}

fn is_rerun(integration: &Integration, run: &InFlight, end: &HandlerEnd) -> bool {
    integration.on_crash == OnCrash::Rerun
        && end.outcome == Outcome::Interrupted
        && !run.left
        && end.attempt < RERUN_ATTEMPTS_MAX
}

fn superseded(action: &str) -> Decision {
    Decision::Superseded { action: action.to_owned() }
}

fn failure(kind: FailureKind, message: String, completion: &Completion) -> Outcome {
    Outcome::Failed(Failure { kind, message, result: Some(completion.result.clone()) })
}

pub(super) fn ended(end: &HandlerEnd, outcome: Outcome, decision: Decision) -> Event {
    let budget = Duration::from_millis(end.deadline.budget_ms);
    Event::Ended(Box::new(Ended {
        dispatch: end.dispatch,
        attempt: end.attempt,
        outcome,
        cause: end.cause,
        decision,
        started_at: end.started_at,
        deadline_at: end.started_at.map(|started| started.after(budget)),
        deadline: end.deadline,
        dying_span: end.dying_span.clone(),
        ended_at: end.ended_at,
        host_calls: end.host_calls.clone(),
        overruns: end.overruns.clone(),
        time_split_us: end.time_split_us,
        account: end.account.clone(),
        recording: end.recording.clone(),
        asker_remaining_ms: end.asker_remaining_ms,
    }))
}

/// The parameters of the transition: a success's own, and otherwise the cause.
fn params(dispatched: &Dispatched, outcome: &Outcome) -> Object {
    let mut params = match outcome {
        Outcome::Completed(completion) => return completion.params.clone(),
        Outcome::TimedOut(exceeded) => match serde_json::to_value(exceeded) {
            Ok(Value::Object(fields)) => fields.into_iter().collect(),
            _ => Object::new(),
        },
        _ => Object::new(),
    };
    params.insert("cause".to_owned(), json!(outcome.kind()));
    params.insert("dispatch_id".to_owned(), json!(dispatched.dispatch));
    params.insert("integration".to_owned(), json!(dispatched.integration));
    if let Some((kind, message)) = outcome.error() {
        params.insert("error".to_owned(), json!({ "kind": kind, "message": message }));
    }
    params
}
