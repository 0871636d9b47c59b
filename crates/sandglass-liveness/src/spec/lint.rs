//! Warns of what is valid in a spec file but probably a mistake.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::Object;
use sandglass_source::{Diagnostics, Help, nearest};

use super::endless::endless;
use super::refusable::{self, Given};
use super::states::{StateSet, States};
use super::{Action, Effect, IntegrationKind, Name, Spec, StateTimeout, spawn_cycles};

/// Most emitted names that are compared with triggers.
const EMITTED_MAX: usize = 100;

/// Warns of what is valid in `spec` but doubtful.
pub(super) fn lint(spec: &Spec, out: &mut Diagnostics<'_>) {
    let states = States::of(&spec.states);
    let entered = states.entered(spec);
    obsolete_resets(spec, &states, &entered, out);
    timers_that_end_nothing(spec, out);
    endless_schedules(spec, &states, out);
    spawn_cycles::lint(spec, out);
    if refusable::are_invariants_checked(spec) {
        timers_that_break_invariants(spec, out);
        schedules_that_break_invariants(spec, out);
    }
    unreachable_states(spec, out);
    idle_integrations(spec, &entered, out);
    successes_that_end_nothing(spec, &states, &entered, out);
    timed_and_indefinite(spec, out);
}

/// The states that are entered when each integration starts.
type Entered<'s> = BTreeMap<&'s str, StateSet>;

/// The deadline of a handler makes a `reset_on` obsolete that lists signals of the state's own
/// handlers: the timer does not run while they do.
fn obsolete_resets(
    spec: &Spec,
    states: &States<'_>,
    entered: &Entered<'_>,
    out: &mut Diagnostics<'_>,
) {
    let taking = states.taking_each(spec);
    let (mut with_handlers, mut ends) = (StateSet::default(), BTreeMap::new());
    for (name, entered) in entered {
        with_handlers.join(*entered);
        for (_, action) in spec.integrations.get(*name).iter().flat_map(|one| one.endings()) {
            ends.entry(action.as_str()).or_insert_with(StateSet::default).join(*entered);
        }
    }
    for timeout in spec.timeouts.values() {
        let Some(number) = states.number(&timeout.state) else { continue };
        let in_state = |sets: &BTreeMap<&str, StateSet>, of: &str| {
            sets.get(of).is_some_and(|set| set.contains(number))
        };
        for reset in timeout.reset_on.iter().filter(|_| with_handlers.contains(number)) {
            let stays = in_state(&taking, reset)
                && spec.actions[reset.as_str()].leads_to(&timeout.state) == timeout.state.as_str();
            if in_state(&ends, reset) || stays {
                warn_of_reset(timeout, reset, number, entered, out);
            }
        }
    }
}

fn warn_of_reset(
    timeout: &StateTimeout,
    reset: &Name,
    state: usize,
    entered: &Entered<'_>,
    out: &mut Diagnostics<'_>,
) {
    let message = format!(
        "obsolete: `{reset}` in `reset_on` of `{}` is sent by the state's own handlers",
        timeout.state
    );
    let help = Help(|| {
        let first = entered.iter().find(|(_, states)| states.contains(state));
        format!(
            "remove it: the timer stands still while `{}` is in flight, and any action \
             restarts it; `reset_on` is for signals of other entities and from outside",
            first.map_or("a handler", |(name, _)| name)
        )
    });
    out.warning(reset.span(), message, help);
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
fn endless_schedules(spec: &Spec, states: &States<'_>, out: &mut Diagnostics<'_>) {
    for action in endless(spec, states) {
        let message = format!("`{}` is sent again at once, forever", action.name);
        let help = "give the `schedule` a delay, or one of the actions on the way a guard";
        out.warning(action.name.span(), message, help);
    }
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

fn idle_integrations(spec: &Spec, entered: &Entered<'_>, out: &mut Diagnostics<'_>) {
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
        if !entered.contains_key(integration.name.as_str()) && !is_meant() {
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
fn successes_that_end_nothing(
    spec: &Spec,
    states: &States<'_>,
    entered: &Entered<'_>,
    out: &mut Diagnostics<'_>,
) {
    if spec.is_strict || out.is_strict() {
        return;
    }
    let timed = spec.timeouts.values().map(|one| one.state.as_str());
    let may_last = spec.terminal.iter().chain(&spec.indefinite).map(String::as_str);
    let ended = states.set(timed.chain(may_last));
    for (name, entered) in entered {
        let Some(integration) = spec.integrations.get(*name) else { continue };
        let picks = integration.kind == IntegrationKind::Wasm && integration.on_success.is_none();
        let stays_in = states.names(entered.without(ended)).next();
        if let Some(state) = stays_in.filter(|_| picks) {
            let message = format!(
                "integration `{name}` has no `on_success`; if its guest returns an empty action, the \
                 entity may stay in `{state}` forever, because the state has no timer"
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
