//! Checks the sections of a spec file against each other. Each error would one day make an entity
//! hang or surprise its author.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::RulesVersion;
use sandglass_source::{DIAGNOSTICS_MAX, Diagnostics, Help, did_you_mean, nearest};
use serde_json::Value;

use super::guard::DECISION_TERMS_MAX;
use super::states::States;
use super::{
    Action, Assigned, DISPATCHES_MAX, EFFECTS_MAX, Effect, Guard, Integration, IntegrationKind,
    Name, Spec, VARIABLES_MAX, Variable, VariableKind, effect, endings, limits, spawn,
};

/// The counter of actions that add or remove items.
const ITEMS: &str = "items";

/// Checks `spec`, and fills in what follows from several sections. If it could not be read what
/// triggers an integration, no trigger is said to be one that no integration has.
pub(super) fn check(spec: &mut Spec, are_triggers_known: bool, out: &mut Diagnostics<'_>) {
    check_actions(spec, out);
    add_timed_states(spec, out);
    if spec.rules >= RulesVersion::V3 {
        add_terminal_states(spec);
    }
    resolve_dispatches(spec, are_triggers_known, out);
    if spec.rules >= RulesVersion::V3 {
        check_terms(spec, out);
    }
    endings::complete(spec, out);
    check_endings(spec, out);
    check_timeouts(spec, out);
    limits::check(spec, out);
}

fn check_actions(spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let mut actions = std::mem::take(&mut spec.actions);
    let names: BTreeSet<String> = actions.values().map(|action| action.name.to_string()).collect();
    complete_effects(spec, &mut actions, out);
    let states = States::of(&spec.states);
    for action in actions.values_mut() {
        for state in action.from.iter().chain(&action.to) {
            known_state(&states, state, out);
        }
        let mut seen = BTreeSet::new();
        action.from.retain(|from| seen.insert(from.to_string()));
        if let Some(terminal) = action.from.iter().find(|from| spec.is_terminal(from)) {
            let message = format!("action `{}` is taken from a terminal state", action.name);
            let help = format!("take `{terminal}` out of `from` or out of `terminal`");
            out.error_with_help(terminal.span(), message, help);
        }
        let are_known = !spec.unread.params.contains(action.name.as_str());
        let params = are_known.then_some(&action.params[..]);
        for effect in &mut action.effects {
            check_effect(spec, &names, params, effect, out);
        }
        set_by_params(spec, action);
        spawn::check(spec, action, &names, out);
    }
    spec.actions = actions;
    if let Some(variable) = spec.conversation.clone() {
        kind_of(spec, &variable, out);
    }
}

/// Adds the effects and the variables that a lenient file implies.
fn complete_effects(
    spec: &mut Spec,
    actions: &mut BTreeMap<String, Action>,
    out: &mut Diagnostics<'_>,
) {
    let is_other =
        |variable: &&Variable| variable.kind == VariableKind::Counter && variable.name != *ITEMS;
    let others = spec.variables.values().filter(is_other);
    let others: Vec<String> = others.map(|variable| variable.name.to_string()).collect();
    let numbers = compared_as_numbers(spec, actions);
    for action in actions.values() {
        declare_changed(spec, action, &numbers, out);
    }
    // If it is declared as another type, or an effect shows that it is one, it counts nothing.
    let items = spec.variables.get(ITEMS).map_or(VariableKind::Counter, |items| items.kind);
    let items = matches!(items, VariableKind::Counter | VariableKind::Number);
    let counters: Vec<String> = items.then(|| ITEMS.to_owned()).into_iter().chain(others).collect();
    for action in actions.values_mut() {
        count_items(spec, &counters, action, out);
        declare_changed(spec, action, &numbers, out);
    }
}

/// Gives an action without effects those that its name implies for other runtimes, unless the file is
/// strict.
fn count_items(spec: &Spec, counters: &[String], action: &mut Action, out: &mut Diagnostics<'_>) {
    /// Most counters that a message names.
    const NAMED_MAX: usize = 8;
    let is_output = action.kind.as_deref() == Some("output");
    if spec.rules < RulesVersion::V3
        || spec.is_strict
        || is_output
        || counters.is_empty()
        || !action.effects.is_empty()
    {
        return;
    }
    let called = action.name.to_lowercase();
    let is_called = |names: [&str; 2]| names.iter().any(|name| called.contains(name));
    let verb = if is_called(["additem", "add_item"]) {
        "increment"
    } else if is_called(["removeitem", "remove_item"]) {
        "decrement"
    } else {
        return;
    };
    let span = action.name.span().clone();
    if counters.len() > EFFECTS_MAX {
        let message = format!(
            "action `{}` has no `effect`, and would {verb} {} counters; an action may have \
             {EFFECTS_MAX} effects at most",
            action.name,
            counters.len()
        );
        let help = format!("add `effect = \"emit {}\"` if it counts nothing", action.name);
        out.error_with_help(&span, message, help);
        return;
    }
    let shown = |format: &dyn Fn(&String) -> String| {
        let mut shown: Vec<String> = counters.iter().take(NAMED_MAX).map(format).collect();
        shown.extend((counters.len() > NAMED_MAX).then(|| "..".to_owned()));
        shown.join(", ")
    };
    let message = format!(
        "action `{}` has no `effect`, so it {verb}s {}",
        action.name,
        shown(&|name| format!("`{name}`"))
    );
    let help = format!(
        "add `effect = [{}]`, or `effect = \"emit {}\"` if it counts nothing",
        shown(&|name| format!("\"{verb} {name}\"")),
        action.name
    );
    out.report_default(&span, message, help);
    if !out.is_strict() {
        let names = counters.iter().map(|name| Name::new(name.as_str(), span.clone()));
        action.effects =
            names.map(|name| effect::count_effect(verb, name, effect::one_more())).collect();
    }
}

/// A state without any outgoing action is terminal.
fn add_terminal_states(spec: &mut Spec) {
    let left: BTreeSet<&str> =
        spec.actions.values().flat_map(|action| &action.from).map(Name::as_str).collect();
    let ends = spec.states.iter().filter(|state| !left.contains(state.as_str()));
    let ends: Vec<String> = ends.map(Name::to_string).collect();
    spec.terminal.extend(ends);
}

/// The action of a timer is taken from the timer's state.
fn add_timed_states(spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let Spec { timeouts, actions, terminal, states, .. } = spec;
    let declared: BTreeSet<&str> = states.iter().map(Name::as_str).collect();
    for timeout in timeouts.values().filter(|timeout| !terminal.contains(timeout.state.as_str())) {
        let (state, name) = (&timeout.state, &timeout.on_timeout);
        let Some(action) = actions.get_mut(name.as_str()) else { continue };
        // An undeclared state was reported.
        let is_declared = |state: &Name| declared.contains(state.as_str());
        if !action.is_taken_from(state) && is_declared(state) && action.from.iter().all(is_declared)
        {
            let message =
                format!("state `{state}` does not accept `{name}`, which its timer takes");
            out.report_default(
                name.span(),
                message,
                format!("add `{state}` to `from` of `{name}`"),
            );
            action.from.push(state.clone());
        }
    }
}

/// Reports `state` if it is not among the declared `states`.
pub(super) fn known_state(states: &States<'_>, state: &Name, out: &mut Diagnostics<'_>) {
    // If the states cannot be read, that is the mistake, not each use of one.
    if !states.declared.is_empty() && states.number(state).is_none() {
        let help = did_you_mean(state, states.declared.iter().map(Name::as_str));
        out.error_with_help(state.span(), format!("`{state}` is no declared state"), help);
    }
}

fn check_effect(
    spec: &Spec,
    actions: &BTreeSet<String>,
    params: Option<&[Name]>,
    effect: &mut Effect,
    out: &mut Diagnostics<'_>,
) {
    if let Effect::Schedule { action, .. } | Effect::ScheduleAt { action, .. } = effect
        && !actions.contains(action.as_str())
        && !spec.unread.has_action
    {
        let help = did_you_mean(action, actions.iter().map(String::as_str));
        out.error_with_help(action.span(), format!("no action is named `{action}`"), help);
    }
    let Some((variable, _)) = effect.changes() else { return };
    let Some(kind) = kind_of(spec, variable, out) else { return };
    if let Some((called, only)) = misused(effect, kind) {
        let help = format!("it is a {}; {only}", kind.as_str());
        out.error_with_help(variable.span(), format!("`{variable}` is no {called}"), help);
        return;
    }
    let used_in = match effect {
        Effect::Append { .. } => "an item of ",
        Effect::RemoveAt { .. } => "an index of ",
        _ => "",
    };
    let (variable, used_as) = (variable.clone(), effect.uses(kind));
    match effect {
        Effect::Increment { by: value, .. }
        | Effect::Decrement { by: value, .. }
        | Effect::Set { value, .. }
        | Effect::Append { value, .. }
        | Effect::RemoveAt { index: value, .. } => {
            check_assigned(spec, params, (&variable, used_in), used_as, value, out);
        }
        Effect::Trigger { .. }
        | Effect::Schedule { .. }
        | Effect::ScheduleAt { .. }
        | Effect::Emit { .. }
        | Effect::Spawn(_) => {}
    }
}

/// What the variable of an effect, which is a `kind`, would have to be.
const fn misused(effect: &Effect, kind: VariableKind) -> Option<(&'static str, &'static str)> {
    match (effect, kind) {
        (
            Effect::Increment { .. } | Effect::Decrement { .. },
            VariableKind::String | VariableKind::Bool | VariableKind::List,
        ) => Some(("counter", "only counters and numbers are counted")),
        (Effect::Append { .. } | Effect::RemoveAt { .. }, VariableKind::List) => None,
        (Effect::Append { .. } | Effect::RemoveAt { .. }, _) => {
            Some(("list", "only lists have items"))
        }
        _ => None,
    }
}

/// Checks what an effect uses in its variable, which has to become a `kind`, and converts a literal to
/// that.
fn check_assigned(
    spec: &Spec,
    params: Option<&[Name]>,
    (variable, used_in): (&Name, &str),
    kind: VariableKind,
    value: &mut Assigned,
    out: &mut Diagnostics<'_>,
) {
    match value {
        Assigned::Literal(literal) => match kind.hold(literal) {
            Some(held) => *literal = held,
            None => {
                let message = format!("{used_in}`{variable}` is a {}", kind.as_str());
                let help = format!("it cannot be {literal}; write {}", kind.holds());
                out.error_with_help(variable.span(), message, help);
            }
        },
        Assigned::Param(param) => {
            let Some(params) = params.filter(|params| !params.contains(param)) else { return };
            let near = nearest(param, params.iter().map(Name::as_str));
            let near = near.map(|near| format!("did you mean `{near}`? Otherwise, "));
            let help = format!("{}add it to `params` of the action", near.unwrap_or_default());
            let message = format!("the action has no parameter `{param}`");
            out.report_default(param.span(), message, help);
        }
        Assigned::Variable(from) => {
            let from_kind = kind_of(spec, from, out);
            if let Some(from_kind) = from_kind.filter(|from| kind.hold(&from.zero()).is_none()) {
                let (is, from_is) = (kind.as_str(), from_kind.as_str());
                let message =
                    format!("{used_in}`{variable}` is a {is}, and `{from}` is a {from_is}");
                out.error_with_help(from.span(), message, "both must have one type");
            }
        }
    }
}

/// The names that conditions compare as numbers, and that no effect sets to anything else.
fn compared_as_numbers(spec: &Spec, actions: &BTreeMap<String, Action>) -> BTreeSet<String> {
    let of_actions = actions.values().filter_map(|action| action.guard.as_ref());
    let of_triggers = spec.integrations.values().filter_map(|one| one.guard.as_ref());
    let of_invariants = spec.invariants.iter().map(|one| &one.condition);
    let mut names = BTreeSet::new();
    for condition in of_actions.chain(of_triggers).chain(of_invariants) {
        condition.numbers(&mut names);
    }
    let may_be_number = |value: &Assigned| match value {
        Assigned::Literal(value) => VariableKind::Number.hold(value).is_some(),
        Assigned::Variable(from) => spec
            .variables
            .get(from.as_str())
            .is_some_and(|from| matches!(from.kind, VariableKind::Counter | VariableKind::Number)),
        Assigned::Param(_) => true,
    };
    let effects = actions.values().flat_map(|action| &action.effects);
    for (variable, value) in effects.filter_map(Effect::changes) {
        if !may_be_number(value) {
            names.remove(variable.as_str());
        }
    }
    names.into_iter().map(str::to_owned).collect()
}

/// Declares the variables that the effects of `action` change and no [[state]] declares, unless the file
/// is strict. Those that `numbers` names are numbers.
fn declare_changed(
    spec: &mut Spec,
    action: &Action,
    numbers: &BTreeSet<String>,
    out: &mut Diagnostics<'_>,
) {
    for effect in &action.effects {
        let Some((variable, value)) = effect.changes() else { continue };
        if out.is_strict() || spec.variables.contains_key(variable.as_str()) {
            continue;
        }
        let is_number = numbers.contains(variable.as_str());
        let kind = match (effect, value) {
            (Effect::Increment { .. } | Effect::Decrement { .. }, _) => VariableKind::Counter,
            (Effect::Append { .. } | Effect::RemoveAt { .. }, _) => VariableKind::List,
            (_, Assigned::Literal(Value::Number(_))) => VariableKind::Counter,
            _ if is_number => VariableKind::Number,
            (_, Assigned::Literal(value)) => VariableKind::of(value),
            _ => VariableKind::String,
        };
        let known = spec.variables.keys().map(String::as_str);
        let near =
            nearest(variable, known).map(|near| format!("did you mean `{near}`? Otherwise, "));
        let help = format!("{}declare it in a [[state]]", near.unwrap_or_default());
        if !spec.unread.may_be_variable(variable) {
            let message =
                format!("no variable is named `{variable}`, so it is a {}", kind.as_str());
            out.report_default(variable.span(), message, help);
        }
        let name = variable.clone();
        let declared = Variable { name, kind, initial: kind.zero() };
        spec.variables.insert(variable.to_string(), declared);
        if spec.variables.len() == VARIABLES_MAX + 1 && spec.rules >= RulesVersion::V3 {
            let message = format!("an automaton may have {VARIABLES_MAX} variables at most");
            out.error(variable.span(), message);
        }
    }
}

/// Lets each parameter set the variable of its name, unless an effect changes that.
fn set_by_params(spec: &Spec, action: &mut Action) {
    if spec.rules < RulesVersion::V3 {
        return;
    }
    let effects = action.effects.iter().filter_map(Effect::changes);
    let mut changed: BTreeSet<&str> = effects.map(|(variable, _)| variable.as_str()).collect();
    let unchanged = action.params.iter().filter(|param| {
        spec.variables.contains_key(param.as_str()) && changed.insert(param.as_str())
    });
    let set = |param: &Name| Effect::Set {
        variable: param.clone(),
        value: Assigned::Param(param.clone()),
    };
    let set: Vec<Effect> = unchanged.map(set).collect();
    action.effects.splice(0..0, set);
}

fn kind_of(spec: &Spec, variable: &Name, out: &mut Diagnostics<'_>) -> Option<VariableKind> {
    let found = spec.variables.get(variable.as_str());
    if found.is_none() && !spec.unread.may_be_variable(variable) {
        let help = did_you_mean(variable, spec.variables.keys().map(String::as_str));
        out.error_with_help(variable.span(), format!("no variable is named `{variable}`"), help);
    }
    found.map(|variable| variable.kind)
}

/// Finds the integrations that each action starts: those that its trigger effects
/// name (its own first), those declared under it, and those that wait for it. A trigger that no
/// integration has names an action of another platform, and becomes an event.
fn resolve_dispatches(spec: &mut Spec, are_triggers_known: bool, out: &mut Diagnostics<'_>) {
    let mut actions = std::mem::take(&mut spec.actions);
    let starts = Starts::of(spec);
    for action in actions.values_mut() {
        let mut started: Vec<&Integration> = Vec::new();
        let mut triggers: BTreeMap<String, bool> = BTreeMap::new();
        for effect in &mut action.effects {
            let Effect::Trigger { name } = effect else { continue };
            let is_known = *triggers.entry(name.to_string()).or_insert_with(|| {
                let triggered = starts.triggered_by(&action.name, name);
                started.extend(&triggered);
                !triggered.is_empty()
            });
            if is_known {
                continue;
            }
            if are_triggers_known {
                let message = format!(
                    "no integration has the trigger `{name}`, so that an event of this name is \
                     emitted"
                );
                let help = Help(|| trigger_help(spec, name));
                out.report_default(name.span(), message, help);
            }
            *effect = Effect::Emit { event: name.clone() };
        }
        started.extend(starts.of_actions.get(action.name.as_str()).into_iter().flatten());
        let mut seen = BTreeSet::new();
        let names = started.iter().map(|one| one.name.as_str());
        action.dispatches = names.filter(|name| seen.insert(*name)).map(str::to_owned).collect();
        if action.dispatches.len() > DISPATCHES_MAX && spec.rules >= RulesVersion::V3 {
            let message = format!("an action may start {DISPATCHES_MAX} integrations at most");
            out.error(action.name.span(), message);
            action.dispatches.truncate(DISPATCHES_MAX);
        }
    }
    spec.actions = actions;
}

/// Which integrations are started by what.
struct Starts<'s> {
    /// By their triggers.
    triggered: BTreeMap<&'s str, Vec<&'s Integration>>,
    /// By the actions that start them without an effect.
    of_actions: BTreeMap<&'s str, Vec<&'s Integration>>,
}

impl<'s> Starts<'s> {
    fn of(spec: &'s Spec) -> Self {
        let mut starts = Self { triggered: BTreeMap::new(), of_actions: BTreeMap::new() };
        for one in spec.integrations.values() {
            starts.triggered.entry(&one.trigger).or_default().push(one);
            let action = one.declared_under.as_ref().unwrap_or(&one.trigger);
            starts.of_actions.entry(action).or_default().push(one);
        }
        starts
    }

    /// The integrations with this trigger: those that are declared under the action, or else all.
    fn triggered_by(&self, action: &Name, trigger: &Name) -> Vec<&'s Integration> {
        let all = self.triggered.get(trigger.as_str()).map(Vec::as_slice).unwrap_or_default();
        let is_own = |one: &&&Integration| one.declared_under.as_ref() == Some(action);
        let own: Vec<_> = all.iter().filter(is_own).copied().collect();
        if own.is_empty() { all.to_vec() } else { own }
    }
}

/// What to do about a trigger that no integration has.
fn trigger_help(spec: &Spec, trigger: &Name) -> String {
    let triggers = spec.integrations.values().map(|one| one.trigger.as_str());
    let meant =
        nearest(trigger, triggers).map(|meant| format!("did you mean `{meant}`? Otherwise "));
    let meant = meant.unwrap_or_default();
    format!("{meant}declare the integration, or write \"emit {trigger}\" if that is intended")
}

/// Checks how long the conditions take that the decision of each action evaluates.
fn check_terms(spec: &Spec, out: &mut Diagnostics<'_>) {
    let terms = |guard: Option<&Guard>| guard.map_or(0, Guard::terms);
    let of_invariants: usize = spec.invariants.iter().map(|one| one.condition.terms()).sum();
    let of_integrations: BTreeMap<&str, usize> =
        spec.integrations.iter().map(|(name, one)| (&**name, terms(one.guard.as_ref()))).collect();
    for action in spec.actions.values() {
        let started = action.dispatches.iter().filter_map(|name| of_integrations.get(&**name));
        let all = of_invariants + terms(action.guard.as_ref()) + started.sum::<usize>();
        if all > DECISION_TERMS_MAX {
            let message = format!(
                "action `{}` evaluates {all} terms, and may evaluate {DECISION_TERMS_MAX}: those of \
                 its guard, of the guards of its triggers, and of all invariants",
                action.name
            );
            let help = "a search in a list counts as 64; remove conditions, or shorten them";
            out.error_with_help(action.name.span(), message, help);
        }
    }
}

/// Rule 10: the state in which a handler executes accepts every ending of it.
fn check_endings(spec: &Spec, out: &mut Diagnostics<'_>) {
    let states = States::of(&spec.states);
    let taking = states.taking_each(spec);
    let terminal = states.set(spec.terminal.iter().map(String::as_str));
    for (integration, entered) in states.entered(spec) {
        let Some(integration) = spec.integrations.get(integration) else { continue };
        let waits_in = entered.without(terminal);
        let (mut seen, mut not_taken) = (BTreeSet::new(), Vec::new());
        // One action may be several endings.
        for (ending, action) in integration.endings().filter(|(_, one)| seen.insert(one.as_str())) {
            match taking.get(action.as_str()) {
                Some(taking) => not_taken.push((ending, action, waits_in.without(*taking))),
                None if spec.unread.has_action => {}
                None => {
                    if let Some(state) = states.names(waits_in).next() {
                        undeclared(spec, integration, (ending, action), state, out);
                    }
                }
            }
        }
        // A message has no end that anything could wait for.
        let is_awaited = !seen.is_empty() || integration.kind == IntegrationKind::Wasm;
        for state in states.names(entered) {
            if out.is_full() {
                break;
            }
            if spec.is_terminal(state) && is_awaited {
                ends_in_terminal(integration, state, out);
            }
            for (ending, action, missing) in &not_taken {
                if states.number(state).is_some_and(|number| missing.contains(number))
                    && !has_unknown_states(spec, &states, action)
                {
                    report_not_taken(integration, ending, action, state, out);
                }
            }
        }
    }
}

/// Whether an action is taken in a state that is not declared, which was reported.
fn has_unknown_states(spec: &Spec, states: &States<'_>, action: &Name) -> bool {
    let declared = spec.actions.get(action.as_str());
    declared.is_some_and(|one| one.from.iter().any(|from| states.number(from).is_none()))
}

/// Reports an ending that is no action.
fn undeclared(
    spec: &Spec,
    integration: &Integration,
    (ending, action): (&str, &Name),
    state: &str,
    out: &mut Diagnostics<'_>,
) {
    let message = format!(
        "integration `{}`: `{ending}` is `{action}`, which is not declared",
        integration.name
    );
    let help = Help(|| {
        let meant = spec.nearest_action(action);
        let meant = meant.map(|meant| format!("did you mean `{meant}`? Otherwise, "));
        format!(
            "{}add an [[action]] `{action}` from `{state}`, or name another one in `{ending}`",
            meant.unwrap_or_default()
        )
    });
    out.error_with_help(action.span(), message, help);
}

/// Reports a handler that starts in a state that takes no action.
fn ends_in_terminal(integration: &Integration, state: &str, out: &mut Diagnostics<'_>) {
    let message = format!(
        "integration `{}` starts in `{state}`, which is terminal: its end is only recorded",
        integration.name
    );
    let help = format!("start it elsewhere, or declare an action that leaves `{state}`");
    out.report_default(integration.name.span(), message, help);
}

fn report_not_taken(
    integration: &Integration,
    ending: &str,
    action: &Name,
    state: &str,
    out: &mut Diagnostics<'_>,
) {
    let message = format!(
        "integration `{}`: `{ending}` is `{action}`, which state `{state}` does not accept",
        integration.name
    );
    let help =
        format!("add `{state}` to `from` of `{action}`, or name another action in `{ending}`");
    out.report_default(action.span(), message, help);
}

fn check_timeouts(spec: &Spec, out: &mut Diagnostics<'_>) {
    let states = States::of(&spec.states);
    for timeout in spec.timeouts.values() {
        let (state, action) = (&timeout.state, &timeout.on_timeout);
        known_state(&states, state, out);
        match spec.actions.get(action.as_str()) {
            // If it has none, that was reported when it was read.
            None if action.is_empty() || spec.unread.has_action => {}
            None => {
                let names: BTreeSet<&str> =
                    spec.actions.values().map(|action| action.name.as_str()).collect();
                let help = did_you_mean(action, names.iter().copied());
                out.error_with_help(action.span(), format!("no action is named `{action}`"), help);
            }
            Some(_) if spec.is_terminal(state) => {
                let help = "take the timer away, or the state out of `terminal`";
                let message = format!("`{state}` is terminal and cannot have a timer");
                out.error_with_help(state.span(), message, help);
            }
            Some(_) => {}
        }
    }
    let meant = meant_states(spec);
    for state in &spec.states {
        let name = state.as_str();
        let ends = spec.is_terminal(name)
            || meant.contains(name)
            || spec.indefinite.contains(name)
            || spec.timeouts.contains_key(name);
        if ends {
            continue;
        }
        let message = format!("state `{state}` may last forever");
        let help = "give it a [[state_timeout]], or list it in `terminal` or \
                    `allow_indefinite_states`";
        // An entity that waits for its first action has no work yet.
        if *state == spec.initial {
            out.warning(state.span(), message, help);
        } else {
            out.report_default(state.span(), message, help);
        }
    }
}

/// The states that are probably meant by undeclared ones, which were reported, in what ends states.
fn meant_states(spec: &Spec) -> BTreeSet<&str> {
    let declared: BTreeSet<&str> = spec.states.iter().map(Name::as_str).collect();
    let named = spec.timeouts.keys().chain(&spec.terminal).chain(&spec.indefinite);
    let unknown = named.filter(|name| !declared.contains(name.as_str())).take(DIAGNOSTICS_MAX);
    unknown.filter_map(|name| nearest(name, declared.iter().copied())).collect()
}
