//! Warns of what is valid in a spec file but probably a mistake.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_source::Diagnostics;

use super::check::entered;
use super::{Action, Effect, IntegrationKind, Spec, StateTimeout, refusable};

/// Warns of what is valid in `spec` but doubtful.
pub(super) fn lint(spec: &Spec, out: &mut Diagnostics<'_>) {
    obsolete_resets(spec, out);
    refusable_endings(spec, out);
    timers_that_end_nothing(spec, out);
    endless_schedules(spec, out);
    unreachable_states(spec, out);
    idle_integrations(spec, out);
    successes_that_end_nothing(spec, out);
    timed_and_indefinite(spec, out);
}

/// The deadline of a handler makes a `reset_on` obsolete that lists signals of the state's own
/// handlers: the timer does not run while they do.
fn obsolete_resets(spec: &Spec, out: &mut Diagnostics<'_>) {
    let entered = entered(spec);
    for timeout in spec.timeouts.values() {
        let state = timeout.state.as_str();
        let handlers: Vec<&str> =
            entered.iter().filter(|(_, of)| *of == state).map(|(name, _)| *name).collect();
        if let Some(first) = handlers.first() {
            warn_of_resets(spec, timeout, &handlers, first, out);
        }
    }
}

fn warn_of_resets(
    spec: &Spec,
    timeout: &StateTimeout,
    handlers: &[&str],
    first: &str,
    out: &mut Diagnostics<'_>,
) {
    let state = timeout.state.as_str();
    for reset in &timeout.reset_on {
        let of_handlers = handlers.iter().filter_map(|name| spec.integrations.get(*name));
        let ends_one = of_handlers.flat_map(|one| one.endings()).any(|(_, action)| action == reset);
        let stays = spec
            .actions
            .get(reset.as_str())
            .is_some_and(|action| action.is_taken_from(state) && action.leads_to(state) == state);
        if ends_one || stays {
            let message = format!(
                "obsolete: `{reset}` in `reset_on` of `{state}` is sent by the state's own \
                 handlers"
            );
            let help = format!(
                "remove it: the timer stands still while `{first}` is in flight, and any action \
                 restarts it; `reset_on` is for signals of other entities and from outside"
            );
            out.warning(reset.span(), message, help);
        }
    }
}

fn refusable_endings(spec: &Spec, out: &mut Diagnostics<'_>) {
    let started: BTreeSet<&str> = entered(spec).into_iter().map(|(name, _)| name).collect();
    for integration in started.iter().filter_map(|name| spec.integrations.get(*name)) {
        let mut seen = BTreeSet::new();
        for (ending, action) in integration.endings() {
            let declared = spec.actions.get(action.as_str());
            let why = declared.and_then(|declared| refusable::why(spec, ending, declared));
            if why.is_some() && seen.insert(action.as_str()) {
                let name = &integration.name;
                let message = format!(
                    "integration `{name}`: `{ending}` is `{action}`, which may be refused by its \
                     guard, for the type of a parameter or by an invariant"
                );
                let help = "where it is refused, `on_failure` is taken instead, and where that is \
                            refused, too, the state's timer has to end it; name an action that is \
                            always taken";
                out.warning(action.span(), message, help);
            }
        }
    }
}

/// Timers after which an entity may still be in their state. They fire again, so that it is not
/// forgotten; but unless something else ends the state, it goes on forever.
fn timers_that_end_nothing(spec: &Spec, out: &mut Diagnostics<'_>) {
    for timeout in spec.timeouts.values() {
        let (state, name) = (&timeout.state, &timeout.on_timeout);
        let declared = spec.actions.get(name.as_str());
        if let Some((doubt, help)) = declared.and_then(|action| doubt(spec, timeout, action)) {
            let message = format!("the timer of state `{state}` takes `{name}`, {doubt}");
            out.warning(name.span(), message, help);
        }
    }
}

/// Why a timer that takes `action` may end nothing, and what to do about it.
fn doubt(spec: &Spec, timeout: &StateTimeout, action: &Action) -> Option<(String, &'static str)> {
    if let Some(param) = refusable::unfit_param(spec, timeout, action) {
        let doubt = format!("which refuses the parameter `{param}` for its type");
        return Some((doubt, "correct it in the `params` of the timer"));
    }
    if action.guard.is_some() {
        let help = "while the guard refuses it, the timer only starts again; name an action that \
                    is always taken";
        return Some(("whose guard may refuse it".to_owned(), help));
    }
    let stays = action.leads_to(&timeout.state) == timeout.state.as_str();
    (stays && timeout.max_occurrences.is_some()).then(|| {
        let doubt = "which stays in the state, and no more often than `max_occurrences`";
        (doubt.to_owned(), "take `max_occurrences` away, or name an action that leaves the state")
    })
}

/// Actions that send each other again at once forever, without a guard that may refuse them: each
/// round is a record.
fn endless_schedules(spec: &Spec, out: &mut Diagnostics<'_>) {
    for action in spec.actions.values() {
        let starts = action.from.iter().map(|from| (action.name.as_str(), from.as_str()));
        if starts.into_iter().any(|start| comes_back_at_once(spec, start)) {
            let message = format!("`{}` is sent again at once, for ever", action.name);
            let help = "give the `schedule` a delay, or one of the actions on the way a guard";
            out.warning(action.name.span(), message, help);
        }
    }
}

/// Whether `start`, taken in its state, is sent in that state again without a delay.
fn comes_back_at_once(spec: &Spec, start: (&str, &str)) -> bool {
    let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
    while let Some((name, state)) = open.pop() {
        let Some(action) = spec.actions.get(name).filter(|action| !action.may_be_refused()) else {
            continue;
        };
        let state = action.leads_to(state);
        for effect in &action.effects {
            let Effect::Schedule { action: next, delay_ms: 0 } = effect else { continue };
            let taken = spec.actions.get(next.as_str());
            let Some(taken) = taken.filter(|taken| taken.is_taken_from(state)) else { continue };
            let Some(state) = taken.from.iter().find(|from| *from == state) else { continue };
            let next = (taken.name.as_str(), state.as_str());
            if next == start {
                return true;
            }
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    false
}

fn unreachable_states(spec: &Spec, out: &mut Diagnostics<'_>) {
    let mut leads: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for action in spec.actions.values() {
        for from in &action.from {
            leads.entry(from).or_default().push(action.leads_to(from));
        }
    }
    let mut reached = BTreeSet::from([spec.initial.as_str()]);
    let mut open = vec![spec.initial.as_str()];
    while let Some(state) = open.pop() {
        for next in leads.get(state).into_iter().flatten() {
            if reached.insert(next) {
                open.push(next);
            }
        }
    }
    for state in spec.states.iter().filter(|state| !reached.contains(state.as_str())) {
        let message = format!("no action leads to state `{state}`");
        out.warning(state.span(), message, "remove it, or add the action that leads there");
    }
}

fn idle_integrations(spec: &Spec, out: &mut Diagnostics<'_>) {
    let started: BTreeSet<&str> = entered(spec).into_iter().map(|(name, _)| name).collect();
    for integration in spec.integrations.values() {
        if !started.contains(integration.name.as_str()) {
            let message = format!("integration `{}` is never started", integration.name);
            let help = format!(
                "give an action the effect {{ type = \"trigger\", name = \"{}\" }}",
                integration.trigger
            );
            out.warning(integration.name.span(), message, help);
        }
    }
}

/// In a spec that is not strict, a success with an empty action changes nothing. In a state without a timer,
/// nothing else may end the state then.
fn successes_that_end_nothing(spec: &Spec, out: &mut Diagnostics<'_>) {
    if spec.is_strict || out.is_strict() {
        return;
    }
    let timed: BTreeSet<&str> = spec.timeouts.values().map(|one| one.state.as_str()).collect();
    let mut seen = BTreeSet::new();
    for (name, state) in entered(spec) {
        let may_last = spec.indefinite.contains(state) || spec.is_terminal(state);
        let Some(integration) = spec.integrations.get(name) else { continue };
        let picks = integration.kind == IntegrationKind::Wasm && integration.on_success.is_none();
        if picks && !may_last && !timed.contains(state) && seen.insert(name) {
            let message = format!(
                "integration `{name}` has no `on_success`; if its guest returns an empty action, the \
                 entity stays in `{state}`, which has no timer"
            );
            let help = "add `on_success = \"ACTION\"`, or a `state_timeout` for the state";
            out.warning(integration.name.span(), message, help);
        }
    }
}

fn timed_and_indefinite(spec: &Spec, out: &mut Diagnostics<'_>) {
    for timeout in spec.timeouts.values() {
        if spec.indefinite.contains(timeout.state.as_str()) {
            let message = format!("state `{}` has a timer and may be indefinite", timeout.state);
            let help = "the timer holds; take the state out of `allow_indefinite_states`";
            out.warning(timeout.state.span(), message, help);
        }
    }
}
