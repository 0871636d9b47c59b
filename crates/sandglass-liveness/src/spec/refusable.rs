//! Finds endings that may be refused, although nothing else might end the handler's state, and actions
//! that may break an invariant. Only files are checked: a spec in a journal is obeyed as it is.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::Object;
use sandglass_source::Diagnostics;
use serde_json::Value;

use super::states::{StateSet, States};
use super::{
    Action, Assigned, Effect, Guard, Integration, Name, Scope, Spec, StateTimeout, VariableKind,
    failure_route,
};
use crate::entity::STATUS;

/// The parameters of every ending but a success.
const ENDING_PARAMS: [&str; 4] = ["cause", "dispatch_id", "error", "integration"];
/// Further parameters of endings other than a success. Version 3 of the rules has added them.
const ERROR_PARAMS: [&str; 3] = ["error_kind", "error_message", "hint"];
/// Further parameters of a passed deadline: the fields of
/// [`sandglass_model::HandlerDeadlineExceeded`] that are not numbers.
const TIMEOUT_PARAMS: [&str; 9] = [
    "action",
    "backtrace",
    "dying_call",
    "dying_span",
    "entity_id",
    "entity_type",
    "owner",
    "time_split_us",
    "trace_id",
];
/// The fields that a counter can have as values.
const TIMEOUT_NUMBERS: [&str; 5] =
    ["attempt", "budget_ms", "elapsed_ms", "host_calls", "overrun_us"];

/// The parameter of an action that is taken although it, or another ending, was refused: why.
pub(crate) const REFUSED: &str = "refused";

/// Most bytes of a file, times the places in it where an action may break an invariant, for which that is
/// checked: a warning is not worth more time.
const INVARIANTS_CHECKED_MAX: usize = 1 << 28;
/// Most endings of an integration: one for each kind, and failure routes.
const ENDINGS_MAX: usize = 11;

/// Whether `params` are those of an ending other than a success.
pub(crate) fn are_of_ending(params: &Object) -> bool {
    ENDING_PARAMS.iter().all(|name| params.contains_key(*name))
}

/// Whether endings have a parameter of this name.
pub(crate) fn is_of_ending(name: &str) -> bool {
    ending_params().any(|param| param == name)
}

fn ending_params() -> impl Iterator<Item = &'static str> {
    let all = [&ENDING_PARAMS[..], &ERROR_PARAMS, &TIMEOUT_PARAMS, &TIMEOUT_NUMBERS];
    all.into_iter().flatten().copied()
}

/// Why an ending may be refused by a state that is declared to accept it.
#[derive(Clone, Copy)]
enum Why<'s> {
    /// Its guard may not hold.
    Guard,
    /// It uses this parameter, which the ending has with another type.
    Param(&'s Name),
    /// It may break this invariant. If every ending would break one, it is taken nevertheless.
    Invariant(&'s Name),
}

/// Why `action` may be refused as `ending` in any state; `None` if the spec gives no such reason. A success
/// has its own parameters, and becomes a failure if it is refused.
fn why<'s>(spec: &'s Spec, ending: &str, action: &'s Action) -> Option<Why<'s>> {
    if ending == "on_success" {
        return None;
    }
    if action.guard.is_some() {
        return Some(Why::Guard);
    }
    let mut used = used(spec, action);
    let unfit = used.find(|(param, kind)| is_unfit(ending, param, *kind));
    unfit.map(|(param, _)| Why::Param(param))
}

/// The parameters with which an action is taken.
#[derive(Clone, Copy)]
pub(super) enum Given<'a> {
    /// Those of this ending, with any values.
    ByEnding(&'a str),
    /// These.
    Params(&'a Object),
}

impl<'a> Given<'a> {
    /// A parameter of this name: its value if that is known. `None` if there is no such parameter.
    fn param(self, name: &str) -> Option<Option<&'a Value>> {
        match self {
            Self::ByEnding(ending) => gives(ending, name).then_some(None),
            Self::Params(params) => params.get(name).map(Some),
        }
    }
}

/// The variables and fields that an action changes.
#[derive(Default)]
struct Changes {
    /// Those whose values the spec shows.
    variables: Object,
    fields: Object,
    /// The others.
    unknown: BTreeSet<String>,
}

impl Changes {
    fn of(spec: &Spec, action: &Action, given: Given<'_>) -> Self {
        let mut changes = Self::default();
        match given {
            Given::ByEnding(ending) => {
                let names = ending_params().chain([REFUSED, failure_route::PARAM]);
                let names = names.filter(|name| gives(ending, name));
                changes.unknown.extend(names.map(str::to_owned));
            }
            Given::Params(params) => changes.fields.clone_from(params),
        }
        // A variable hides the field of its name.
        changes.fields.retain(|name, _| !spec.variables.contains_key(name));
        changes.unknown.retain(|name| !spec.variables.contains_key(name));
        for effect in &action.effects {
            changes.add(spec, effect, given);
        }
        changes
    }

    fn add(&mut self, spec: &Spec, effect: &Effect, given: Given<'_>) {
        let stored = match effect {
            Effect::Spawn(spawn) => spawn.store_id_in.as_ref(),
            _ => None,
        };
        let changed = effect.changes().map(|(variable, value)| (variable, Some(value)));
        let Some((name, assigned)) = changed.or(stored.map(|name| (name, None))) else { return };
        let declared = spec.variables.get(name.as_str());
        let value = match assigned {
            None => None,
            Some(Assigned::Literal(value)) => Some(value.clone()),
            Some(Assigned::Variable(from)) => self.variables.get(from.as_str()).cloned(),
            Some(Assigned::Param(param)) => match given.param(param) {
                // Without its parameter, the effect does nothing.
                None => return,
                Some(value) => value.cloned(),
            },
        };
        let is_set = matches!(effect, Effect::Set { .. });
        let value = value.filter(|_| is_set).and_then(|value| declared?.kind.hold(&value));
        self.unknown.remove(name.as_str());
        self.fields.remove(name.as_str());
        self.variables.remove(name.as_str());
        match value {
            Some(value) => drop(self.variables.insert(name.to_string(), value)),
            None => drop(self.unknown.insert(name.to_string())),
        }
    }
}

/// An invariant that `action` may break, taken in `state` with the parameters that are `given`: because
/// of what it changes, or because the invariant requires more in the state that it leads to.
pub(super) fn may_break<'s>(
    spec: &'s Spec,
    action: &Action,
    state: &str,
    given: Given<'_>,
) -> Option<&'s Name> {
    let to = action.leads_to(state);
    let Changes { variables, mut fields, unknown } = Changes::of(spec, action, given);
    let (nothing, mut fields_before) = (Object::new(), Object::new());
    if !spec.variables.contains_key(STATUS) {
        fields.insert(STATUS.to_owned(), Value::from(to));
        fields_before.insert(STATUS.to_owned(), Value::from(state));
    }
    let (fields, fields_before) = (fields.into(), fields_before.into());
    let before =
        Scope { id: None, state, variables: &nothing, fields: &fields_before, observed: &[] };
    let after =
        Scope { id: None, state: to, variables: &variables, fields: &fields, observed: &[] };
    let may_break = |condition: &Guard| {
        let left = condition.reduced(after);
        if let Guard::Constant(holds) = left {
            return !holds;
        }
        let before = condition.reduced(before);
        left.reads(&|name| unknown.contains(name))
            || !left.parts().iter().all(|part| before.parts().contains(part))
    };
    let broken = spec.invariants.iter().find(|invariant| may_break(&invariant.condition));
    broken.map(|invariant| &invariant.name)
}

/// Whether there are few enough places where an action may break an invariant.
pub(super) fn are_invariants_checked(spec: &Spec) -> bool {
    let places = spec.actions.values().map(|action| {
        let started = action.dispatches.len().saturating_mul(ENDINGS_MAX);
        action.from.len().saturating_mul(started + 1)
    });
    let places: usize = places.fold(0, usize::saturating_add);
    places.saturating_mul(spec.source.len()) <= INVARIANTS_CHECKED_MAX
}

/// An ending that may be refused.
struct Doubt<'s> {
    integration: &'s Integration,
    ending: &'static str,
    action: &'s Name,
    why: Why<'s>,
    /// The states in which it could keep the entity forever.
    states: StateSet,
}

/// Rule 10 for states that may refuse an ending although they are declared to accept it. Unless that
/// could keep the entity in the state forever, it is only doubtful.
pub(super) fn check(spec: &Spec, out: &mut Diagnostics<'_>) {
    let states = States::of(&spec.states);
    let terminal = states.set(spec.terminal.iter().map(String::as_str));
    let timed = spec.timeouts.iter().filter(|(_, timeout)| always_comes(spec, timeout));
    let timed = states.set(timed.map(|(state, _)| state.as_str()));
    let with_invariants = are_invariants_checked(spec);
    let taking = states.taking_each(spec);
    // Many integrations may have one action as an ending.
    let mut whys = BTreeMap::new();
    let mut doubts = BTreeMap::new();
    for (integration, entered) in states.entered(spec) {
        let Some(integration) = spec.integrations.get(integration) else { continue };
        let waits_in = entered.without(terminal);
        for (ending, action) in integration.endings() {
            let Some(declared) = spec.actions.get(action.as_str()) else { continue };
            let taken = taking.get(action.as_str()).copied().unwrap_or_default();
            let taken_in = waits_in.without(waits_in.without(taken));
            let in_any = whys.entry((ending, action.as_str()));
            let in_any = *in_any.or_insert_with(|| why(spec, ending, declared));
            let breaks = |state| may_break(spec, declared, state, Given::ByEnding(ending));
            let in_one = || states.names(taken_in).find_map(breaks).map(Why::Invariant);
            let (why, endless) = match in_any {
                Some(_) if taken_in.is_empty() => continue,
                Some(why) => (why, taken_in.without(timed)),
                None if !with_invariants || ending == "on_success" => continue,
                None => match in_one() {
                    Some(why) => (why, StateSet::default()),
                    None => continue,
                },
            };
            let new = || Doubt { integration, ending, action, why, states: StateSet::default() };
            let key = (integration.name.as_str(), action.as_str());
            doubts.entry(key).or_insert_with(new).states.join(endless);
        }
    }
    let has_errors = out.has_errors();
    for doubt in doubts.values() {
        if !doubt.states.is_empty() {
            doubt.report_endless(&states, out);
        } else if !has_errors {
            doubt.warn(out);
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

/// Whether `ending` can have a parameter of this name.
fn gives(ending: &str, param: &str) -> bool {
    let is_of_timeout = TIMEOUT_PARAMS.contains(&param) || TIMEOUT_NUMBERS.contains(&param);
    match ending {
        failure_route::KEY if param == failure_route::PARAM => true,
        "on_timeout" if is_of_timeout => true,
        _ => {
            let of_all = [&ENDING_PARAMS[..], &ERROR_PARAMS, &[REFUSED]];
            of_all.iter().any(|names| names.contains(&param))
        }
    }
}

/// Whether `ending` can have `param` with a value that does not become `kind`.
fn is_unfit(ending: &str, param: &str, kind: VariableKind) -> bool {
    let fits = match kind {
        // A text variable accepts any value: as JSON, if it is not text.
        VariableKind::String => true,
        VariableKind::Counter | VariableKind::Number => TIMEOUT_NUMBERS.contains(&param),
        VariableKind::Bool | VariableKind::List => false,
    };
    gives(ending, param) && !fits
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

impl Doubt<'_> {
    /// What is doubtful about the ending.
    fn message(&self) -> String {
        let Self { integration, ending, action, why, .. } = self;
        let refused = match why {
            Why::Guard => "whose guard may refuse it".to_owned(),
            Why::Param(param) => {
                format!("whose parameter `{param}` this ending gives with another type")
            }
            Why::Invariant(invariant) => format!("which may break the invariant `{invariant}`"),
        };
        format!("integration `{}`: `{ending}` is `{action}`, {refused}", integration.name)
    }

    /// What makes sure that the action is taken.
    fn fix(&self) -> String {
        let action = self.action;
        match &self.why {
            Why::Guard => format!("take the guard off `{action}`"),
            Why::Param(param) => format!("give the variable that `{param}` sets another type"),
            Why::Invariant(_) => format!("let `{action}` set what the invariant asserts"),
        }
    }

    fn report_endless(&self, states: &States<'_>, out: &mut Diagnostics<'_>) {
        /// Most states that the message names.
        const NAMED_MAX: usize = 8;
        let mut names = states.names(self.states).map(|state| format!("`{state}`"));
        let named: Vec<String> = names.by_ref().take(NAMED_MAX).collect();
        let more = names.count();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (states, has) = if named.len() == 1 { ("state", "has") } else { ("states", "have") };
        let message = format!(
            "{}, and {states} {}{more} {has} no timer that always ends it: the entity could stay \
             there forever",
            self.message(),
            named.join(", ")
        );
        let help = format!(
            "{}, name another action in `{}`, or give {}{more} a [[state_timeout]] without \
             `max_occurrences`, and with the `params` that its action needs",
            self.fix(),
            self.ending,
            named.join(", ")
        );
        out.report_default(self.action.span(), message, help);
    }

    fn warn(&self, out: &mut Diagnostics<'_>) {
        let last = match self.why {
            Why::Invariant(_) => "this one nevertheless, which breaks the invariant",
            _ => "none, until the timer of the state ends it",
        };
        let help = format!(
            "then another ending is taken, or, if each is refused, {last}; {}, or name an action in \
             `{}` that is always taken",
            self.fix(),
            self.ending
        );
        out.warning(self.action.span(), self.message(), help);
    }
}
