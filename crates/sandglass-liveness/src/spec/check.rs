//! Checks the sections of a spec file against each other. Each error would one day make an entity
//! hang or surprise its author.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::RulesVersion;
use sandglass_source::{DIAGNOSTICS_MAX, Diagnostics, did_you_mean, nearest};

use super::{
    Action, Assigned, Effect, Integration, IntegrationKind, Name, Spec, Variable, VariableKind,
    effect, endings, limits, spawn,
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
    endings::complete(spec, out);
    check_endings(spec, out);
    check_timeouts(spec, out);
    limits::check(spec, out);
}

fn check_actions(spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let mut actions = std::mem::take(&mut spec.actions);
    let names: BTreeSet<String> = actions.values().map(|action| action.name.to_string()).collect();
    complete_effects(spec, &mut actions, out);
    for action in actions.values_mut() {
        for state in action.from.iter().chain(&action.to) {
            known_state(&spec.states, state, out);
        }
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
    for action in actions.values() {
        declare_changed(spec, action, out);
    }
    // If it is declared as another type, or an effect shows that it is one, it counts nothing.
    let items = spec.variables.get(ITEMS).map_or(VariableKind::Counter, |items| items.kind);
    let items = matches!(items, VariableKind::Counter | VariableKind::Number);
    let counters: Vec<String> = items.then(|| ITEMS.to_owned()).into_iter().chain(others).collect();
    for action in actions.values_mut() {
        count_items(spec, &counters, action, out);
        declare_changed(spec, action, out);
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
pub(super) fn known_state(states: &[Name], state: &Name, out: &mut Diagnostics<'_>) {
    // If the states cannot be read, that is the mistake, not each use of one.
    if !states.is_empty() && !states.contains(state) {
        let help = did_you_mean(state, states.iter().map(Name::as_str));
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

/// Declares the variables that the effects of `action` change and no [[state]] declares, unless the file
/// is strict.
fn declare_changed(spec: &mut Spec, action: &Action, out: &mut Diagnostics<'_>) {
    for effect in &action.effects {
        let Some((variable, value)) = effect.changes() else { continue };
        if out.is_strict() || spec.variables.contains_key(variable.as_str()) {
            continue;
        }
        let kind = match (effect, value) {
            (Effect::Increment { .. } | Effect::Decrement { .. }, _) => VariableKind::Counter,
            (Effect::Append { .. } | Effect::RemoveAt { .. }, _) => VariableKind::List,
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
    for action in actions.values_mut() {
        let mut starts: Vec<&Integration> = Vec::new();
        for effect in &mut action.effects {
            if let Effect::Trigger { name } = effect {
                let triggered = triggered_by(spec, &action.name, name);
                if triggered.is_empty() {
                    if are_triggers_known {
                        let message = format!(
                            "no integration has the trigger `{name}`, so that an event of this name \
                             is emitted"
                        );
                        out.report_default(name.span(), message, trigger_help(spec, name));
                    }
                    *effect = Effect::Emit { event: name.clone() };
                }
                starts.extend(triggered);
            }
        }
        starts.extend(spec.integrations.values().filter(|one| match &one.declared_under {
            Some(under) => *under == action.name,
            None => one.trigger == action.name,
        }));
        let mut seen = BTreeSet::new();
        let names = starts.iter().map(|one| one.name.as_str());
        action.dispatches = names.filter(|name| seen.insert(*name)).map(str::to_owned).collect();
    }
    spec.actions = actions;
}

/// What to do about a trigger that no integration has.
fn trigger_help(spec: &Spec, trigger: &Name) -> String {
    let triggers = spec.integrations.values().map(|one| one.trigger.as_str());
    let meant =
        nearest(trigger, triggers).map(|meant| format!("did you mean `{meant}`? Otherwise "));
    let meant = meant.unwrap_or_default();
    format!("{meant}declare the integration, or write \"emit {trigger}\" if that is intended")
}

fn triggered_by<'s>(spec: &'s Spec, action: &Name, trigger: &Name) -> Vec<&'s Integration> {
    let all = || spec.integrations.values().filter(|one| one.trigger == *trigger);
    let own: Vec<_> = all().filter(|one| one.declared_under.as_ref() == Some(action)).collect();
    if own.is_empty() { all().collect() } else { own }
}

/// Each integration with each state that is entered when it starts.
pub(super) fn entered(spec: &Spec) -> BTreeSet<(&str, &str)> {
    let mut entered = BTreeSet::new();
    for action in spec.actions.values() {
        for integration in &action.dispatches {
            let states = action.from.iter().map(|from| action.leads_to(from));
            entered.extend(states.map(|state| (integration.as_str(), state)));
        }
    }
    entered
}

/// Rule 10: the state in which a handler executes accepts every ending of it.
fn check_endings(spec: &Spec, out: &mut Diagnostics<'_>) {
    let mut undeclared = BTreeSet::new();
    let mut not_taken = BTreeSet::new();
    let states: BTreeSet<&str> = spec.states.iter().map(Name::as_str).collect();
    for (integration, state) in entered(spec) {
        let Some(integration) = spec.integrations.get(integration) else { continue };
        if spec.is_terminal(state) {
            // A message has no end that anything could wait for.
            if integration.endings().next().is_some() || integration.kind == IntegrationKind::Wasm {
                ends_in_terminal(integration, state, out);
            }
            continue;
        }
        for (ending, action) in integration.endings() {
            match spec.actions.get(action.as_str()) {
                Some(declared) if !declared.is_taken_from(state) => {
                    // One action may be several endings. An undeclared state was reported.
                    let key = (&integration.name as &str, action.as_str(), state);
                    if states.contains(state)
                        && not_taken.insert(key)
                        && declared.from.iter().all(|from| states.contains(from.as_str()))
                    {
                        report_not_taken(integration, ending, action, state, out);
                    }
                }
                Some(_) => {}
                None if spec.unread.has_action
                    || !undeclared.insert((&integration.name as &str, action.as_str())) => {}
                None => {
                    let message = format!(
                        "integration `{}`: `{ending}` is `{action}`, which is not declared",
                        integration.name
                    );
                    let meant = spec.nearest_action(action);
                    let meant = meant.map(|meant| format!("did you mean `{meant}`? Otherwise, "));
                    let help = format!(
                        "{}add an [[action]] `{action}` from `{state}`, or name another one in \
                         `{ending}`",
                        meant.unwrap_or_default()
                    );
                    out.error_with_help(action.span(), message, help);
                }
            }
        }
    }
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
    for timeout in spec.timeouts.values() {
        let (state, action) = (&timeout.state, &timeout.on_timeout);
        known_state(&spec.states, state, out);
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
        let message = format!("state `{state}` may last for ever");
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
