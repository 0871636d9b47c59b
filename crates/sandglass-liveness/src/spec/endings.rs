//! Adds the endings that an integration leaves out, so that every end of a handler becomes an action
//! of its entity.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_source::Diagnostics;

use super::check::entered;
use super::{Action, Integration, IntegrationKind, Name, Spec, failure_route};

/// The action of a passed deadline, if the spec declares it.
const ON_TIMEOUT: &str = "HandlerTimedOut";

/// Most actions that a message names.
const NAMED_MAX: usize = 8;

/// Completes the endings of all integrations. What they start is known.
pub(super) fn complete(spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let mut states: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let declared: BTreeSet<&str> = spec.states.iter().map(Name::as_str).collect();
    for (integration, state) in entered(spec) {
        // Only in these states can its handlers end. One that is not declared was reported.
        if !spec.is_terminal(state) && declared.contains(state) {
            states.entry(integration.to_owned()).or_default().insert(state.to_owned());
        }
    }
    let mut integrations = std::mem::take(&mut spec.integrations);
    let mut failures = Failures::of(spec);
    for integration in integrations.values_mut() {
        // A message of the platform, for which its entity does not wait.
        if integration.kind != IntegrationKind::Wasm && integration.endings().next().is_none() {
            continue;
        }
        let states = states.remove(integration.name.as_str()).unwrap_or_default();
        let on_failure = on_failure(integration, &states, &mut failures, out);
        let on_timeout = on_timeout(spec, integration, on_failure.as_ref(), &states, out);
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

/// The actions that are failures by their names.
struct Failures<'s> {
    /// Each with the states that take it.
    all: Vec<(&'s Name, BTreeSet<&'s str>)>,
    /// Those that all states of a set take. Many integrations may start in one large set.
    taken: BTreeMap<BTreeSet<String>, Vec<&'s Name>>,
    /// Whether there may be further ones, because an action or its states could not be read.
    may_be_more: bool,
}

impl<'s> Failures<'s> {
    fn of(spec: &'s Spec) -> Self {
        let is_failure = |name: &str| name.starts_with("Fail") || name.ends_with("Failed");
        let all = spec.actions.values().filter(|action| is_failure(&action.name));
        let declared: BTreeSet<&str> = spec.states.iter().map(Name::as_str).collect();
        let is_unknown = |from: &Name| !declared.contains(from.as_str());
        let may_be_more =
            spec.unread.has_action || all.clone().any(|action| action.from.iter().any(is_unknown));
        let from = |action: &'s Action| action.from.iter().map(Name::as_str).collect();
        let all = all.map(|action| (&action.name, from(action))).collect();
        Self { all, taken: BTreeMap::new(), may_be_more }
    }

    fn taken_by(&mut self, states: &BTreeSet<String>) -> &[&'s Name] {
        let all = &self.all;
        self.taken.entry(states.clone()).or_insert_with(|| {
            let is_taken = |from: &BTreeSet<&str>| states.iter().all(|one| from.contains(&**one));
            all.iter().filter(|(_, from)| is_taken(from)).map(|(name, _)| *name).collect()
        })
    }
}

/// The action of a failure: the declared one, or the only one of its states that is a failure by its
/// name. `None` if nothing waits for the handler.
fn on_failure(
    integration: &Integration,
    states: &BTreeSet<String>,
    failures: &mut Failures<'_>,
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    if integration.on_failure.is_some() {
        return integration.on_failure.clone();
    }
    if states.is_empty() && !out.is_strict() {
        return None;
    }
    let span = integration.name.span();
    let may_be_more = failures.may_be_more;
    let failures = failures.taken_by(states);
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
    let state = states.first().map_or("STATE", String::as_str);
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
    spec: &Spec,
    integration: &Integration,
    on_failure: Option<&Name>,
    states: &BTreeSet<String>,
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    if integration.on_timeout.is_some() {
        return integration.on_timeout.clone();
    }
    let span = integration.name.span();
    let declared = spec.actions.get(ON_TIMEOUT);
    let is_taken = declared.is_some_and(|action| {
        out.is_strict() || states.iter().all(|state| action.is_taken_from(state))
    });
    if is_taken {
        return Some(Name::new(ON_TIMEOUT, span.clone()));
    }
    let fallback = on_failure?.clone();
    let message = format!(
        "integration `{}` has no `on_timeout`; if its deadline passes, it takes `{fallback}`",
        integration.name
    );
    let refusing = |action: &Action| {
        let mut states = states.iter().filter(|state| !action.is_taken_from(state));
        states.next().map(|state| format!("add `{state}` to `from` of `{ON_TIMEOUT}`"))
    };
    let other = declared.and_then(refusing);
    let other = other.unwrap_or_else(|| format!("declare an action `{ON_TIMEOUT}`"));
    let help = format!("add `on_timeout = \"{fallback}\"`, or {other}");
    out.report_default(span, message, help);
    Some(fallback)
}
