//! Finds endings that may be refused although nothing else would end the handler's state. Only
//! files are checked: a spec in a journal is obeyed as it is.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::Object;
use sandglass_source::Diagnostics;
use serde_json::Value;

use super::states::{StateSet, States};
use super::{Action, Assigned, Integration, Name, Spec, StateTimeout, VariableKind, failure_route};

/// The parameters of every ending but a success.
const ENDING_PARAMS: [&str; 4] = ["cause", "dispatch_id", "error", "integration"];
/// Further parameters of every ending but a success. Version 3 of the rules has added them.
const ERROR_PARAMS: [&str; 2] = ["error_kind", "error_message"];
/// Further parameters of a passed deadline: the fields of
/// [`sandglass_model::HandlerDeadlineExceeded`] that are not numbers, and the hint.
const TIMEOUT_PARAMS: [&str; 9] = [
    "action",
    "backtrace",
    "dying_span",
    "entity_id",
    "entity_type",
    "hint",
    "owner",
    "time_split_us",
    "trace_id",
];
/// The fields that a counter can have as values.
const TIMEOUT_NUMBERS: [&str; 5] =
    ["attempt", "budget_ms", "elapsed_ms", "host_calls", "overrun_us"];

/// A parameter of a passed deadline, if the handler died in a host call.
const DYING_CALL: &str = "dying_call";

/// Whether `params` are those of an ending other than a success.
pub(crate) fn are_of_ending(params: &Object) -> bool {
    ENDING_PARAMS.iter().all(|name| params.contains_key(*name))
}

/// Whether endings have a parameter of this name.
pub(crate) fn is_of_ending(name: &str) -> bool {
    let all = [&ENDING_PARAMS[..], &ERROR_PARAMS, &TIMEOUT_PARAMS, &TIMEOUT_NUMBERS, &[DYING_CALL]];
    all.iter().any(|names| names.contains(&name))
}

/// Why an ending may be refused by a state that is declared to accept it.
#[derive(Clone, Copy)]
pub(super) enum Why<'s> {
    /// Its guard may not hold.
    Guard,
    /// It uses this parameter, which the ending has with another type.
    Param(&'s Name),
    /// It may break this invariant.
    Invariant(&'s Name),
}

/// Finds why endings may be refused. Many integrations may have one action as an ending.
pub(super) struct Refusals<'s> {
    spec: &'s Spec,
    states: States<'s>,
    /// The states in which each invariant holds whatever the variables are.
    holds: Vec<StateSet>,
    /// What was found, by the key of the ending and the action.
    found: BTreeMap<(&'static str, &'s str), Option<Why<'s>>>,
}

impl<'s> Refusals<'s> {
    pub(super) fn of(spec: &'s Spec) -> Self {
        let states = States::of(&spec.states);
        let holds = spec.invariants.iter().map(|invariant| {
            let holds = |state: &&str| invariant.condition.decided_by(state) == Some(true);
            states.set(spec.states.iter().map(Name::as_str).filter(holds))
        });
        Self { spec, holds: holds.collect(), states, found: BTreeMap::new() }
    }

    /// Why `action` may be refused as `ending`; `None` if the spec gives no reason. A success has its
    /// own parameters, and becomes a failure if it is refused.
    pub(super) fn why(&mut self, ending: &'static str, action: &'s Action) -> Option<Why<'s>> {
        if ending == "on_success" {
            return None;
        }
        let key = (ending, action.name.as_str());
        if let Some(found) = self.found.get(&key) {
            return *found;
        }
        let mut used = used(self.spec, action);
        let unfit = used.find(|(param, kind)| is_unfit(ending, param, *kind));
        let why = match unfit {
            _ if action.guard.is_some() => Some(Why::Guard),
            Some((param, _)) => Some(Why::Param(param)),
            None => self.may_break(action).map(Why::Invariant),
        };
        self.found.insert(key, why);
        why
    }

    /// An invariant that `action` may break in the state that it leads to: because it changes variables,
    /// or because the invariant holds in another state whatever the variables are.
    fn may_break(&self, action: &Action) -> Option<&'s Name> {
        let to = self.states.number(action.to.as_deref()?)?;
        let changes = action.effects.iter().any(|effect| effect.changes().is_some());
        let from = self.states.taking(action);
        let mut invariants = self.spec.invariants.iter().zip(&self.holds);
        let broken = invariants
            .find(|(_, holds)| !holds.contains(to) && (changes || from.intersects(**holds)));
        broken.map(|(invariant, _)| &invariant.name)
    }
}

/// Rule 10 for states that may refuse an ending although they are declared to accept it.
pub(super) fn check(spec: &Spec, out: &mut Diagnostics<'_>) {
    let mut refusals = Refusals::of(spec);
    let states = States::of(&spec.states);
    let timed = spec.timeouts.iter().filter(|(_, timeout)| always_comes(spec, timeout));
    let timed = states.set(timed.map(|(state, _)| state.as_str()));
    for (integration, entered) in states.entered(spec) {
        let Some(integration) = spec.integrations.get(integration) else { continue };
        let untimed = entered.without(timed);
        let mut seen = BTreeSet::new();
        let mut refusable = Vec::new();
        for (ending, action) in integration.endings().filter(|_| !untimed.is_empty()) {
            let declared = spec.actions.get(action.as_str());
            let why = declared.and_then(|declared| refusals.why(ending, declared));
            let why = why.filter(|_| seen.insert(action.as_str()));
            refusable.extend(why.map(|why| (ending, action, why)));
        }
        for state in states.names(untimed) {
            if out.is_full() {
                return;
            }
            for (ending, action, why) in &refusable {
                refused_for_ever(integration, ending, action, state, why, out);
            }
        }
    }
}

/// The parameters that the effects of `action` use, and the types they must have if they are given.
fn used<'s>(spec: &'s Spec, action: &'s Action) -> impl Iterator<Item = (&'s Name, VariableKind)> {
    action.effects.iter().filter_map(|effect| match effect.changes() {
        Some((variable, Assigned::Param(param))) => {
            let declared = spec.variables.get(variable.as_str());
            declared.map(|variable| (param, effect.uses(variable.kind)))
        }
        _ => None,
    })
}

/// Whether `ending` can have `param` with a value that does not become `kind`.
fn is_unfit(ending: &str, param: &str, kind: VariableKind) -> bool {
    let is_failure = ending == failure_route::KEY && param == failure_route::PARAM;
    let of_timeout = ending == "on_timeout";
    let is_number = of_timeout && TIMEOUT_NUMBERS.contains(&param);
    let is_given = is_number
        || is_failure
        || ERROR_PARAMS.contains(&param)
        || ENDING_PARAMS.contains(&param)
        || (of_timeout && (TIMEOUT_PARAMS.contains(&param) || param == DYING_CALL));
    let fits = match kind {
        // A text variable accepts any value: as JSON, if it is not text.
        VariableKind::String => true,
        VariableKind::Counter | VariableKind::Number => is_number,
        VariableKind::Bool | VariableKind::List => false,
    };
    is_given && !fits
}

/// Whether a timer fires as often as it takes, with what its action needs.
fn always_comes(spec: &Spec, timeout: &StateTimeout) -> bool {
    let action = spec.actions.get(timeout.on_timeout.as_str());
    timeout.max_occurrences.is_none()
        && action.is_some_and(|action| unfit_param(spec, timeout, action).is_none())
}

/// A parameter of the timer that does not fit what its action uses it for.
pub(super) fn unfit_param<'s>(
    spec: &'s Spec,
    timeout: &StateTimeout,
    action: &'s Action,
) -> Option<&'s Name> {
    let is_unfit = |param: &Name, kind: VariableKind| {
        let given: Option<&Value> = timeout.params.get(param.as_str());
        given.is_some_and(|value| kind.hold(value).is_none())
    };
    used(spec, action).find(|(param, kind)| is_unfit(param, *kind)).map(|(param, _)| param)
}

fn refused_for_ever(
    integration: &Integration,
    ending: &str,
    action: &Name,
    state: &str,
    why: &Why<'_>,
    out: &mut Diagnostics<'_>,
) {
    let (refused, fix) = match why {
        Why::Guard => {
            ("whose guard may refuse it".to_owned(), format!("take the guard off `{action}`"))
        }
        Why::Param(param) => (
            format!("whose parameter `{param}` this ending gives with another type"),
            format!("give the variable that `{param}` sets another type"),
        ),
        Why::Invariant(invariant) => (
            format!("which may break the invariant `{invariant}`"),
            format!("take the state that `{action}` leads to out of the invariant"),
        ),
    };
    let message = format!(
        "integration `{}`: `{ending}` is `{action}`, {refused}, and state `{state}` has no timer \
         that always ends it: the entity could stay there for ever",
        integration.name
    );
    let help = format!(
        "{fix}, name another action in `{ending}`, or give `{state}` a [[state_timeout]] without \
         `max_occurrences`, and with the `params` that its action needs"
    );
    out.report_default(action.span(), message, help);
}
