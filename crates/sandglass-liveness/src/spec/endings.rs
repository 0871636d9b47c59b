//! Adds the endings that an integration leaves out, so that every end of a handler becomes an action
//! of its entity.

use std::collections::BTreeMap;

use sandglass_source::Diagnostics;

use super::states::{StateSet, States};
use super::{Integration, IntegrationKind, Name, Spec, failure_route};

/// The action of a passed deadline, if the spec declares it.
const ON_TIMEOUT: &str = "HandlerTimedOut";

/// Most actions that a message names.
const NAMED_MAX: usize = 8;

/// Completes the endings of all integrations. What they start is known.
pub(super) fn complete(spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let mut integrations = std::mem::take(&mut spec.integrations);
    let states = States::of(&spec.states);
    let terminal = states.set(spec.terminal.iter().map(String::as_str));
    let entered = states.entered(spec);
    let mut defaults = Defaults::of(spec, &states);
    for integration in integrations.values_mut() {
        // A message of the platform, for which its entity does not wait.
        if integration.kind != IntegrationKind::Wasm && integration.endings().next().is_none() {
            continue;
        }
        // Only in these states can its handlers end. One that is not declared was reported.
        let waits_in = entered.get(integration.name.as_str()).copied().unwrap_or_default();
        let waits_in = waits_in.without(terminal);
        let on_failure = on_failure(integration, waits_in, &mut defaults, out);
        let on_timeout = on_timeout(integration, on_failure.as_ref(), waits_in, &defaults, out);
        integration.on_failure = on_failure;
        for ending in [&mut integration.on_interrupted, &mut integration.on_cancelled] {
            if ending.is_none() {
                ending.clone_from(&on_timeout);
            }
        }
        integration.on_timeout = on_timeout;
    }
    spec.integrations = integrations;
}

/// The actions that are endings by their names.
struct Defaults<'s> {
    states: &'s States<'s>,
    /// The failures, each with the states that take it.
    failures: Vec<(&'s Name, StateSet)>,
    /// The failures that all states of a set take. Many integrations may start in one large set.
    taken: BTreeMap<StateSet, Vec<&'s Name>>,
    /// The states that take the action of a passed deadline, if the spec declares it.
    on_timeout: Option<StateSet>,
    /// Whether there may be further failures, because an action or its states could not be read.
    may_be_more: bool,
}

impl<'s> Defaults<'s> {
    fn of(spec: &'s Spec, states: &'s States<'s>) -> Self {
        let is_failure = |name: &str| name.starts_with("Fail") || name.ends_with("Failed");
        let failures = spec.actions.values().filter(|action| is_failure(&action.name));
        let is_unknown = |from: &Name| states.number(from).is_none();
        let may_be_more = spec.unread.has_action
            || failures.clone().any(|action| action.from.iter().any(is_unknown));
        let failures = failures.map(|action| (&action.name, states.taking(action))).collect();
        let on_timeout = spec.actions.get(ON_TIMEOUT).map(|action| states.taking(action));
        Self { states, failures, taken: BTreeMap::new(), on_timeout, may_be_more }
    }

    fn failures_taken_by(&mut self, states: StateSet) -> &[&'s Name] {
        let taken = self.failures.iter().filter(|(_, from)| states.is_within(*from));
        self.taken.entry(states).or_insert_with(|| taken.map(|(name, _)| *name).collect())
    }
}

/// The action of a failure: the declared one, or the only one of its states that is a failure by its
/// name. `None` if nothing waits for the handler.
fn on_failure(
    integration: &Integration,
    states: StateSet,
    defaults: &mut Defaults<'_>,
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    if integration.on_failure.is_some() {
        return integration.on_failure.clone();
    }
    if states.is_empty() && !out.is_strict() {
        return None;
    }
    let span = integration.name.span();
    let may_be_more = defaults.may_be_more;
    let state = defaults.states.names(states).next().unwrap_or("STATE");
    let failures = defaults.failures_taken_by(states);
    let message = format!("integration `{}` has no `on_failure`", integration.name);
    let only = if let [only] = failures { Some(*only) } else { None };
    if let Some(action) = only.or_else(|| failure_route::fallback(&integration.failure_routes)) {
        let help = format!("add `on_failure = \"{action}\"`");
        out.report_default(span, format!("{message}; it takes `{action}`"), help);
        return Some(Name::new(action.as_str(), span.clone()));
    }
    if failures.is_empty() && may_be_more {
        // What is wrong there was reported.
        return None;
    }
    let names: Vec<String> =
        failures.iter().take(NAMED_MAX).map(|name| format!("`{name}`")).collect();
    let why = if names.is_empty() {
        format!("no action of state `{state}` is called `Fail...` or `...Failed`")
    } else {
        format!("state `{state}` has several actions for failures: {}", names.join(", "))
    };
    let help = format!(
        "add `on_failure = \"ACTION\"` to it, with an action that `{state}` takes: it is taken when \
         the handler fails, traps, hits a limit or cannot be executed"
    );
    out.error_with_help(span, format!("{message}, and {why}"), help);
    None
}

/// The action of a passed deadline.
fn on_timeout(
    integration: &Integration,
    on_failure: Option<&Name>,
    states: StateSet,
    defaults: &Defaults<'_>,
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    if integration.on_timeout.is_some() {
        return integration.on_timeout.clone();
    }
    let span = integration.name.span();
    let is_taken = |by: StateSet| out.is_strict() || states.is_within(by);
    if defaults.on_timeout.is_some_and(is_taken) {
        return Some(Name::new(ON_TIMEOUT, span.clone()));
    }
    let fallback = on_failure?.clone();
    let message = format!(
        "integration `{}` has no `on_timeout`; if its deadline passes, it takes `{fallback}`",
        integration.name
    );
    let missing = defaults.on_timeout.map(|taking| states.without(taking));
    let missing = missing.and_then(|missing| defaults.states.names(missing).next());
    let other = missing.map(|state| format!("add `{state}` to `from` of `{ON_TIMEOUT}`"));
    let other = other.unwrap_or_else(|| format!("declare an action `{ON_TIMEOUT}`"));
    let help = format!("add `on_timeout = \"{fallback}\"`, or {other}");
    out.report_default(span, message, help);
    Some(fallback)
}
