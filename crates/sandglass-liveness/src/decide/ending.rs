//! What a handler's end becomes: every failure of a handler, also a missed deadline, is a transition
//! of its entity. Only a success with an empty action, and the end of a message, change nothing.
//!
//! This is the only place that decides about an end. A decision depends on the spec, on the
//! entity as its records made it, and on what the record of the end will state; on nothing else,
//! because a replay knows nothing else. So the outcome is judged first, as it will be recorded,
//! and everything after that follows from the judged outcome. Judging an outcome again does not
//! change it. If a decision depended on the outcome as it was reported, a replay, which sees the
//! recorded one, would decide differently: tests/all/instants.rs holds both to the same result.

use std::sync::Arc;

use sandglass_model::timeout::timeout_text;
use sandglass_model::{
    Cancellation, CancelledBy, Cause, Completion, DeadlineOwner, Decision, Directive, Dispatched,
    Ended, Event, Failure, FailureKind, HandlerEnd, Limit, NO_ACTION, Object, Outcome,
    RulesVersion, TransitionCause, WallTime,
};
use serde_json::{Value, json};

use super::action::{ActionContext, MayRefuse, smaller_budget};
use super::{Known, RERUN_ATTEMPTS_MAX, Refusal, unless_unobserved};
use crate::entity::{Entity, InFlight};
use crate::session::Session;
use crate::spec::refusable::REFUSED;
use crate::spec::{FailureCategory, Integration, Name, OnCrash, Spec, failure_route};

pub(super) fn decide(
    spec: &Spec,
    entity: &Entity,
    end: &Arc<HandlerEnd>,
    now: WallTime,
    known: Known<'_>,
) -> Result<Vec<Event>, Refusal> {
    let dispatch = end.dispatch;
    let run = entity.in_flight_handler(dispatch).ok_or(Refusal::UnknownDispatch { dispatch })?;
    if run.dispatched.attempt != end.attempt {
        return Err(Refusal::StaleAttempt { dispatch, attempt: end.attempt });
    }
    let integration = spec.integrations.get(&run.dispatched.integration);
    let Some(integration) = integration else {
        // A spec is kept with its entities, so only a damaged journal gets here.
        return Ok(vec![record_end(Arc::clone(end), supersede(NO_ACTION))]);
    };
    let ending = Ending { spec, entity, run, integration, end, now, known };
    let may_go_on = entity.session().is_none_or(Session::is_running);
    if may_go_on && is_rerun(integration, run, end) { Ok(ending.rerun()) } else { ending.decide() }
}

/// The end of a handler that was dispatched after the stop of its run had been requested, and so
/// never starts.
pub(super) fn end_unstarted(entity: &Entity, run: &InFlight) -> Event {
    let goes_on = entity.session().and_then(Session::directive).is_some_and(Directive::goes_on);
    let decision = if goes_on { Decision::Held } else { Decision::Dropped };
    let outcome = Outcome::Cancelled(Cancellation {
        by: CancelledBy::RunStopped,
        reason: String::new(),
        dying_span: None,
    });
    let end = HandlerEnd::unreported(&run.dispatched, outcome, Cause::RunStopped);
    record_end(Arc::new(end), decision)
}

struct Ending<'a> {
    spec: &'a Spec,
    entity: &'a Entity,
    run: &'a InFlight,
    integration: &'a Integration,
    /// As it was reported. It may be large, so it is shared with the record.
    end: &'a Arc<HandlerEnd>,
    now: WallTime,
    /// What is known of other entities.
    known: Known<'a>,
}

/// The end with the outcome that is recorded, and the records of its transition, if its action is
/// taken.
enum Judgment {
    /// A success whose action is taken, with the records of that.
    Succeeds { action: String, transition: Vec<Event> },
    /// A success for a state that the entity has left: its action changes nothing any more.
    TooLate { action: String },
    /// Anything but a success.
    Fails(Arc<HandlerEnd>),
}

impl Ending<'_> {
    fn decide(&self) -> Result<Vec<Event>, Refusal> {
        if self.is_only_recorded() {
            let action = match &self.end.outcome {
                Outcome::Completed(completion) => self.success_action(completion),
                outcome => self.action(outcome),
            };
            let decision = supersede(action.unwrap_or(NO_ACTION));
            return Ok(vec![record_end(Arc::clone(self.end), decision)]);
        }
        if self.is_left() {
            let end = self.with_named_action();
            let action = self.action(&end.outcome).unwrap_or(NO_ACTION).to_owned();
            return Ok(vec![record_end(end, supersede(&action))]);
        }
        let end = match self.judge()? {
            Judgment::Succeeds { action, transition } => {
                return Ok(take_action(Arc::clone(self.end), action, transition));
            }
            Judgment::TooLate { action } => {
                return Ok(vec![record_end(Arc::clone(self.end), supersede(&action))]);
            }
            Judgment::Fails(end) => end,
        };
        if self.is_held(&end.outcome) {
            return Ok(vec![record_end(end, Decision::Held)]);
        }
        self.fail(end)
    }

    /// Judges the outcome. A success is a failure if it names no action, names one that is not
    /// declared, or if its action is refused in the handler's own state.
    fn judge(&self) -> Result<Judgment, Refusal> {
        let end = self.with_named_action();
        let Outcome::Completed(completion) = &end.outcome else {
            return Ok(Judgment::Fails(end));
        };
        let action = self.action(&end.outcome).unwrap_or(NO_ACTION).to_owned();
        let may_refuse = MayRefuse::Everything(self.known.unspawnable);
        let taken = self.take(&action, &end.outcome, may_refuse, None);
        Ok(match unless_unobserved(taken)? {
            Ok(transition) => Judgment::Succeeds { action, transition },
            // A replay does not know what existed, so the record has to state this refusal.
            Err(refusal @ Refusal::Unspawnable(_)) => {
                Judgment::Fails(self.not_taken(&refusal, completion))
            }
            Err(_) if !self.is_in_own_state() && self.spec.actions.contains_key(&action) => {
                Judgment::TooLate { action }
            }
            Err(refusal) => Judgment::Fails(self.not_taken(&refusal, completion)),
        })
    }

    /// The end with its success made a failure, because its action is refused.
    fn not_taken(&self, refusal: &Refusal, completion: &Completion) -> Arc<HandlerEnd> {
        let message = format!("the result's action can't be taken: {refusal}");
        self.failed(FailureKind::ActionNotTaken, message, completion)
    }

    /// The end, with a success that names no action made a failure.
    fn with_named_action(&self) -> Arc<HandlerEnd> {
        match &self.end.outcome {
            Outcome::Completed(completion) if self.success_action(completion).is_none() => {
                let message = format!(
                    "the result names no action, and integration `{}` declares no `on_success`",
                    self.integration.name
                );
                self.failed(FailureKind::NoAction, message, completion)
            }
            _ => Arc::clone(self.end),
        }
    }

    /// The end with its success made a failure.
    fn failed(
        &self,
        kind: FailureKind,
        message: String,
        completion: &Completion,
    ) -> Arc<HandlerEnd> {
        let result = Some(completion.result.clone());
        let outcome = Outcome::Failed(Failure { kind, message, result });
        Arc::new(HandlerEnd { outcome, ..(**self.end).clone() })
    }

    fn success_action<'b>(&'b self, completion: &'b Completion) -> Option<&'b str> {
        self.integration.on_success.as_deref().or(completion.action.as_deref())
    }

    /// The action that an outcome becomes, if it becomes one.
    fn action<'b>(&'b self, outcome: &'b Outcome) -> Option<&'b str> {
        let of = self.integration;
        if self.is_cut(outcome) {
            return of.on_cancelled.as_deref();
        }
        match outcome {
            Outcome::Completed(completion) => {
                self.success_action(completion).or(of.on_failure.as_deref())
            }
            Outcome::Failed(_) | Outcome::Trapped(_) | Outcome::Limit(_) | Outcome::Rejected(_) => {
                self.failure_action(outcome)
            }
            Outcome::TimedOut(_) => of.on_timeout.as_deref(),
            Outcome::Interrupted => of.on_interrupted.as_deref(),
            Outcome::Cancelled(_) => of.on_cancelled.as_deref(),
        }
    }

    /// The action of a failure: the route of its category, if it has one.
    fn failure_action(&self, outcome: &Outcome) -> Option<&str> {
        let category = FailureCategory::of(outcome);
        let route = category.and_then(|category| self.integration.failure_routes.get(&category));
        route.or(self.integration.on_failure.as_ref()).map(Name::as_str)
    }

    /// Whether nothing waits for the handler: it was started in a state that takes no action, is a
    /// message that nothing answers, or its guest names the empty action in a spec that is not strict.
    /// (Specs of earlier versions of the rules have no such handlers.)
    fn is_only_recorded(&self) -> bool {
        let starts_in_terminal =
            self.is_in_own_state() && self.spec.is_terminal(&self.entity.state);
        let changes_nothing = match &self.end.outcome {
            Outcome::Completed(completion) if self.success_action(completion).is_none() => {
                let is_message = self.integration.on_failure.is_none();
                let is_empty = completion.result.get("action").is_some_and(|action| action == "");
                is_message || is_empty && !self.spec.is_strict
            }
            _ => false,
        };
        self.spec.rules >= RulesVersion::V3 && (starts_in_terminal || changes_nothing)
    }

    /// Whether the stop of its run ended the handler: killed it, made it fail, because its host calls
    /// end with an error after a graceful stop was requested, or was recorded before the handler ended
    /// at its deadline.
    fn is_cut(&self, outcome: &Outcome) -> bool {
        let is_stopped = self.entity.session().is_some_and(|session| !session.is_running());
        let has_failed = match outcome {
            // Version 1 of the rules decided about a refused success before it was judged.
            Outcome::Failed(failure) if failure.kind == FailureKind::ActionNotTaken => {
                self.spec.rules >= RulesVersion::V2
            }
            Outcome::Cancelled(_) | Outcome::Failed(_) | Outcome::Trapped(_) => true,
            // Earlier versions of the rules took `on_timeout`.
            Outcome::TimedOut(_) => self.spec.rules >= RulesVersion::V3,
            _ => false,
        };
        is_stopped && has_failed
    }

    /// Whether the session continues later and dispatches the handler again.
    fn is_held(&self, outcome: &Outcome) -> bool {
        let directive = self.entity.session().and_then(Session::directive);
        // A handler that was lost with its host after the stop of its run was requested was cut,
        // too.
        let is_cut = self.is_cut(outcome) || matches!(outcome, Outcome::Interrupted);
        is_cut && directive.is_some_and(Directive::goes_on)
    }

    /// Whether the transition that left the handler's state has ended it. Its result then belongs
    /// to an earlier visit of that state, even if the entity has entered it again.
    fn is_left(&self) -> bool {
        self.run.left || self.end.cause == Cause::StateLeft
    }

    fn is_in_own_state(&self) -> bool {
        self.entity.state == self.run.dispatched.state
    }

    /// Takes `action`, because of `refused` if that says why another ending was refused.
    fn take(
        &self,
        action: &str,
        outcome: &Outcome,
        may_refuse: MayRefuse<'_>,
        refused: Option<&Refusal>,
    ) -> Result<Vec<Event>, Refusal> {
        let dispatched = &self.run.dispatched;
        let mut params = params(self.spec.rules, dispatched, outcome);
        if self.spec.rules >= RulesVersion::V3
            && let Some(refused) = refused
        {
            params.insert(REFUSED.to_owned(), json!(refused.to_string()));
        }
        if self.spec.rules >= RulesVersion::V3
            && let Some(hint) = self.hint(outcome)
        {
            params.insert("hint".to_owned(), json!(hint));
        }
        if let Some(category) = FailureCategory::of(outcome)
            && self.integration.failure_routes.values().any(|route| *route == *action)
        {
            let failure = failure_route::envelope(category, outcome);
            params.insert(failure_route::PARAM.to_owned(), failure);
        }
        let cause = TransitionCause::HandlerEnded { dispatch: dispatched.dispatch };
        let context = ActionContext::new(self.spec, self.entity, self.now, self.known.observed);
        let context = context.refused_for(may_refuse).after_a_handler(self.end.asker_remaining_ms);
        context.take(action, &params, &cause, dispatched.trace)
    }

    /// What to do about a timeout: the passed deadline of the handler, or the limit of the host call
    /// because of which it did not complete.
    fn hint(&self, outcome: &Outcome) -> Option<String> {
        let limit_ms = match outcome {
            Outcome::Completed(_) => None,
            Outcome::TimedOut(exceeded) => Some(exceeded.budget_ms),
            _ => {
                // Without the calls of the handler, any that reached its limit can be the reason.
                let story = self.end.account.as_ref().map(|account| &account.story);
                let is_reason = story.is_none_or(|story| story.last_timeout().is_some());
                let mut calls = self.end.overruns.iter();
                let call = calls.find(|overrun| overrun.limit == Limit::HostCallTimeout);
                call.filter(|_| is_reason).map(|overrun| overrun.threshold_ms)
            }
        };
        limit_ms.map(timeout_text)
    }

    /// Takes the action of an ending that is not a success. If it is refused in the handler's own
    /// state, tries the other declared endings; in any other state the ending is superseded.
    fn fail(&self, end: Arc<HandlerEnd>) -> Result<Vec<Event>, Refusal> {
        let own = self.action(&end.outcome).map(str::to_owned);
        let of = self.integration;
        let others = [&of.on_failure, &of.on_timeout, &of.on_interrupted, &of.on_cancelled];
        let others = others.into_iter().filter(|_| self.is_in_own_state());
        let others = others.filter_map(Option::as_deref);
        let actions: Vec<&str> = own.as_deref().into_iter().chain(others).collect();
        let mut refused = None;
        for may_refuse in [MayRefuse::Invariants, MayRefuse::Nothing] {
            for action in &actions {
                let taken = self.take(action, &end.outcome, may_refuse, refused.as_ref());
                match unless_unobserved(taken)? {
                    Ok(transition) => {
                        return Ok(take_action(end, (*action).to_owned(), transition));
                    }
                    Err(refusal) => refused = refused.or(Some(refusal)),
                }
            }
            if !self.is_in_own_state() {
                break;
            }
        }
        // Recorded under this name since version 1.
        let instead =
            if self.is_in_own_state() { of.on_failure.as_deref() } else { own.as_deref() };
        let decision = supersede(instead.unwrap_or(NO_ACTION));
        Ok(vec![record_end(end, decision)])
    }

    fn rerun(&self) -> Vec<Event> {
        let Self { end, integration, .. } = self;
        let dispatched = &self.run.dispatched;
        let attempt = end.attempt + 1;
        let own_ms = match dispatched.owner {
            DeadlineOwner::Parent => integration.budget_for(&dispatched.params),
            DeadlineOwner::Handler => dispatched.budget_ms,
        };
        // After a crash the asker is lost, too, and leaves no time any more.
        let parent_remaining_ms = end.asker_remaining_ms;
        let (budget_ms, owner) = smaller_budget(own_ms, parent_remaining_ms);
        let again = Dispatched {
            spec: Some(self.spec.digest),
            expected: Some(self.entity.sequence),
            attempt,
            budget_ms,
            owner,
            asker: parent_remaining_ms.and(dispatched.asker),
            retried: None,
            trace: dispatched.trace.of_dispatch(dispatched.dispatch, attempt),
            ..(**dispatched).clone()
        };
        vec![record_end(Arc::clone(end), Decision::Rerun), Event::Dispatched(Box::new(again))]
    }
}

fn is_rerun(integration: &Integration, run: &InFlight, end: &HandlerEnd) -> bool {
    integration.on_crash == OnCrash::Rerun
        && end.outcome == Outcome::Interrupted
        && !run.left
        && end.attempt < RERUN_ATTEMPTS_MAX
}

fn supersede(action: &str) -> Decision {
    Decision::Superseded { action: action.to_owned() }
}

fn record_end(end: Arc<HandlerEnd>, decision: Decision) -> Event {
    Event::Ended(Box::new(Ended::new(end, decision)))
}

fn take_action(end: Arc<HandlerEnd>, action: String, transition: Vec<Event>) -> Vec<Event> {
    let mut events = vec![record_end(end, Decision::Take { action })];
    events.extend(transition);
    events
}

/// The parameters of the transition: those of a success, and otherwise the cause.
fn params(rules: RulesVersion, dispatched: &Dispatched, outcome: &Outcome) -> Object {
    let mut params = match outcome {
        Outcome::Completed(completion) => {
            let mut params = completion.params.clone();
            params.retain(|name, _| rules < RulesVersion::V3 || !is_for_telemetry(name));
            return params;
        }
        Outcome::TimedOut(exceeded) => match serde_json::to_value(exceeded) {
            Ok(Value::Object(fields)) => fields.into_iter().collect(),
            _ => Object::new(),
        },
        _ => Object::new(),
    };
    params.insert("cause".to_owned(), json!(outcome.kind()));
    params.insert("dispatch_id".to_owned(), json!(dispatched.dispatch));
    params.insert("integration".to_owned(), json!(dispatched.integration));
    let Some((kind, message)) = outcome.error() else { return params };
    if rules >= RulesVersion::V3 {
        // Both names are those of Temper, whose specs declare one or the other.
        params.insert("error".to_owned(), json!(message));
        params.insert("error_message".to_owned(), json!(message));
        params.insert("error_kind".to_owned(), json!(kind));
    } else {
        params.insert("error".to_owned(), json!({ "kind": kind, "message": message }));
    }
    params
}

/// Whether a parameter of a success is for telemetry alone: in these, guests of Temper return prompts
/// and answers of models, and Temper removes them before it takes the action.
fn is_for_telemetry(name: &str) -> bool {
    name.starts_with("_gen_ai_") || name == "_dd_llmobs_tool_spans"
}

#[cfg(test)]
mod tests {
    use sandglass_model::{
        DeadlineOwner, HandlerDeadlineExceeded, Incarnation, StopCause, TimeSplit, TraceContext,
    };

    use super::*;
    use crate::decide::{Input, Terms, decide};

    const SPEC: &str = r#"
[automaton]
name = "Job"
states = ["Ready", "Working", "Failed", "Stopped"]
initial = "Ready"
terminal = ["Failed", "Stopped"]
allow_indefinite_states = ["Ready", "Working"]

[limits]
run_timeout = "1h"

[[action]]
name = "Start"
from = ["Ready"]
to = "Working"
effect = ["trigger work"]

[[action]]
name = "Fail"
from = ["Working"]
to = "Failed"

[[action]]
name = "Stop"
from = ["Working"]
to = "Stopped"

[[integration]]
name = "work"
module = "work"
deadline = "10s"
on_failure = "Fail"
on_timeout = "Fail"
on_cancelled = "Stop"
"#;
    const NOW: WallTime = WallTime::from_millis(1_000);

    /// A session with a handler in flight when `cause` stops its run, all at one instant.
    struct Stopped {
        spec: Spec,
        entity: Entity,
    }

    impl Stopped {
        fn by(cause: StopCause, rules: RulesVersion) -> Self {
            let spec = Spec::parse_recorded(SPEC, rules).spec.expect("a valid spec");
            let incarnation = Incarnation::from_bytes([7; 16]);
            let name = "Job/1".parse().expect("a name");
            let create = Input::Create { name, incarnation, tenant: None, spawned_by: None };
            let entity = decide(&spec, None, &create, NOW).expect("a new entity").after;
            let mut stopped = Self { spec, entity };
            stopped.take(&Input::Start { limits: crate::session::default_limits() });
            let (action, trace) = ("Start".to_owned(), TraceContext::root([5; 24]));
            stopped.take(&Input::Action {
                action,
                params: Object::new(),
                trace,
                asked: None,
                terms: Terms::default(),
            });
            stopped.take(&Input::Stop { run_seq: None, cause });
            stopped
        }

        fn take(&mut self, input: &Input) -> Vec<Event> {
            let decided = decide(&self.spec, Some(&self.entity), input, NOW).expect("taken");
            self.entity = decided.after;
            decided.events
        }

        /// The record of an end with `outcome`, decided as it was reported, and once more as it was
        /// recorded.
        fn end(&self, outcome: Outcome, cause: Cause) -> [Ended; 2] {
            let run = self.entity.in_flight()[0];
            let reported = HandlerEnd::unreported(&run.dispatched, outcome, cause);
            let decided = |end: Arc<HandlerEnd>| {
                let input = Input::HandlerEnded(end);
                let decided = decide(&self.spec, Some(&self.entity), &input, NOW).expect("taken");
                match &decided.events[..] {
                    [Event::Ended(ended), ..] => (**ended).clone(),
                    other => panic!("an end, not {other:?}"),
                }
            };
            let first = decided(reported.into());
            let again = decided(Arc::clone(&first.end));
            [first, again]
        }
    }

    #[test]
    fn a_deadline_that_passes_after_the_stop_of_the_run_is_not_the_cause() {
        let take = |action: &str| Decision::Take { action: action.to_owned() };
        let cancel = || StopCause::Operator { by: "ann".to_owned(), reason: String::new() };
        let cases = [
            (StopCause::Shutdown, RulesVersion::V2, take("Fail")),
            (StopCause::Shutdown, RulesVersion::V3, Decision::Held),
            (cancel(), RulesVersion::V2, take("Fail")),
            (cancel(), RulesVersion::V3, take("Stop")),
        ];
        for (cause, rules, expected) in cases {
            let stopped = Stopped::by(cause.clone(), rules);
            let run = stopped.entity.in_flight()[0];
            let late = Outcome::TimedOut(Box::new(HandlerDeadlineExceeded {
                integration: run.dispatched.integration.clone(),
                action: run.dispatched.action.clone(),
                entity_type: "Job".to_owned(),
                entity_id: "1".to_owned(),
                budget_ms: 10_000,
                elapsed_ms: 10_001,
                overrun_us: 1,
                owner: DeadlineOwner::Handler,
                dying_span: "guest".to_owned(),
                dying_call: None,
                backtrace: Vec::new(),
                host_calls: 0,
                time_split_us: TimeSplit::default(),
                trace_id: TraceContext::root([5; 24]).trace_id,
                attempt: 1,
            }));
            let [first, again] = stopped.end(late, Cause::Deadline);
            assert_eq!(first.decision, expected, "{cause:?} under rules {rules}");
            assert_eq!(again, first, "{cause:?} under rules {rules}, replayed");
        }
    }

    #[test]
    fn a_refused_success_of_a_stopped_run_is_decided_as_it_is_recorded() {
        let take = |action: &str| Decision::Take { action: action.to_owned() };
        let cancel = || StopCause::Operator { by: "ann".to_owned(), reason: String::new() };
        let cases = [
            (StopCause::Shutdown, RulesVersion::V1, take("Fail")),
            (StopCause::Shutdown, RulesVersion::V2, Decision::Held),
            (cancel(), RulesVersion::V1, take("Fail")),
            (cancel(), RulesVersion::V2, take("Stop")),
        ];
        for (cause, rules, expected) in cases {
            let refused = Outcome::Completed(Completion {
                action: Some("Start".to_owned()),
                params: Object::new(),
                result: json!({ "success": true }),
            });
            let [first, again] = Stopped::by(cause.clone(), rules).end(refused, Cause::Returned);
            assert_eq!(first.decision, expected, "{cause:?} under rules {rules}");
            assert_eq!(again, first, "{cause:?} under rules {rules}, replayed");
        }
    }
}
