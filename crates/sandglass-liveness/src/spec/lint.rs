//! Warns of what is valid in a spec file but probably a mistake.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::Object;
use sandglass_source::{Diagnostics, nearest};

use super::check::entered;
use super::refusable::Given;
use super::{Action, Effect, Spec, StateTimeout, refusable};

/// Most emitted names that are compared with triggers.
const EMITTED_MAX: usize = 100;

/// Warns of what is valid in `spec` but doubtful.
pub(super) fn lint(spec: &Spec, out: &mut Diagnostics<'_>) {
    obsolete_resets(spec, out);
    timers_that_end_nothing(spec, out);
    endless_schedules(spec, out);
    if refusable::are_invariants_checked(spec) {
        timers_that_break_invariants(spec, out);
        schedules_that_break_invariants(spec, out);
    }
    unreachable_states(spec, out);
    idle_integrations(spec, out);
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

/// Timers after which an entity may still be in their state. They fire again, so that it is not
/// forgotten; but unless something else ends the state, it goes on forever.
fn timers_that_end_nothing(spec: &Spec, out: &mut Diagnostics<'_>) {
    for timeout in spec.timeouts.values() {
        let (state, name) = (&timeout.state, &timeout.on_timeout);
        let declared = spec.actions.get(name.as_str());
        let declared = declared.filter(|action| action.is_taken_from(state));
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

/// Timers whose actions may break an invariant. They are taken nevertheless, because they have to end the
/// state.
fn timers_that_break_invariants(spec: &Spec, out: &mut Diagnostics<'_>) {
    for timeout in spec.timeouts.values() {
        let (state, name) = (&timeout.state, &timeout.on_timeout);
        let declared = spec.actions.get(name.as_str());
        let Some(action) = declared.filter(|action| action.is_taken_from(state)) else { continue };
        let given = Given::Params(&timeout.params);
        if let Some(broken) = refusable::may_break(spec, action, state, given) {
            let message = format!(
                "the timer of state `{state}` takes `{name}`, which may break the invariant \
                 `{broken}`"
            );
            let help = format!(
                "it is taken nevertheless, because it has to end the state; let `{name}` set what \
                 the invariant asserts, or name another action"
            );
            out.warning(name.span(), message, help);
        }
    }
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

/// Scheduled actions that may break an invariant. If they would, they are dropped.
fn schedules_that_break_invariants(spec: &Spec, out: &mut Diagnostics<'_>) {
    let (nothing, mut found) = (Object::new(), BTreeMap::new());
    for action in spec.actions.values() {
        for effect in &action.effects {
            let (Effect::Schedule { action: name, .. } | Effect::ScheduleAt { action: name, .. }) =
                effect
            else {
                continue;
            };
            let Some(sent) = spec.actions.get(name.as_str()) else { continue };
            let broken = *found.entry(name.as_str()).or_insert_with(|| {
                let given = Given::Params(&nothing);
                sent.from.iter().find_map(|from| refusable::may_break(spec, sent, from, given))
            });
            if let Some(broken) = broken {
                let message = format!(
                    "`{}` schedules `{name}`, which may break the invariant `{broken}`",
                    action.name
                );
                let help = format!(
                    "then it is refused, and not sent again; let `{name}` set what the invariant \
                     asserts, or schedule another action"
                );
                out.warning(name.span(), message, help);
            }
        }
    }
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
    // The first names that are emitted: a trigger that no integration has may mean this one, which was
    // reported.
    let effects = spec.actions.values().flat_map(|action| &action.effects);
    let emitted = effects.filter_map(|effect| match effect {
        Effect::Emit { event } => Some(event.as_str()),
        _ => None,
    });
    let emitted: BTreeSet<&str> = emitted.take(EMITTED_MAX).collect();
    for integration in spec.integrations.values() {
        let is_meant = || nearest(&integration.trigger, emitted.iter().copied()).is_some();
        if !started.contains(integration.name.as_str()) && !is_meant() {
            let message = format!("integration `{}` is never started", integration.name);
            let help = format!(
                "give an action the effect {{ type = \"trigger\", name = \"{}\" }}",
                integration.trigger
            );
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
