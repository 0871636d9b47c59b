//! Adds the endings that an integration leaves out, so that every end of a handler becomes an action
//! of its entity.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_source::Diagnostics;

use super::check::entered;
use super::{Integration, IntegrationKind, Name, Spec, failure_route};

/// The action of a passed deadline, if the spec declares it.
const ON_TIMEOUT: &str = "HandlerTimedOut";

/// Completes the endings of all integrations. What they start is known.
pub(super) fn complete(spec: &mut Spec, out: &mut Diagnostics<'_>) {
    let mut states: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (integration, state) in entered(spec) {
        states.entry(integration.to_owned()).or_default().insert(state.to_owned());
    }
    let mut integrations = std::mem::take(&mut spec.integrations);
    for integration in integrations.values_mut() {
        let states = states.remove(integration.name.as_str()).unwrap_or_default();
        // The states in which its handlers execute and can end.
        let states: Vec<&str> =
            states.iter().map(String::as_str).filter(|state| !spec.is_terminal(state)).collect();
        let on_failure = on_failure(spec, integration, &states, out);
        let on_timeout = on_timeout(spec, integration, &on_failure, &states, out);
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

/// The action of a failure: the declared one, or the only one of its states that is a failure by its
/// name. `None` if nothing waits for the handler.
fn on_failure(
    spec: &Spec,
    integration: &Integration,
    states: &[&str],
    out: &mut Diagnostics<'_>,
) -> Option<Name> {
    if integration.on_failure.is_some() {
        return integration.on_failure.clone();
    }
    if states.is_empty() && !out.is_strict() {
        return None;
    }
    // A message of the platform, for which its entity does not wait.
    if integration.kind != IntegrationKind::Wasm && integration.endings().next().is_none() {
        return None;
    }
    let (name, span) = (&integration.name, integration.name.span());
    let mut failures = spec.actions.values().filter(|action| {
        is_failure(&action.name) && states.iter().all(|state| action.is_taken_from(state))
    });
    let routed = failure_route::fallback(&integration.failure_routes);
    let message = format!("integration `{name}` has no `on_failure`");
    match (failures.next(), failures.next(), routed) {
        (Some(only), None, _) => Some(assume(&message, &only.name, span, out)),
        (_, _, Some(routed)) => Some(assume(&message, routed, span, out)),
        (first, _, None) => {
            let state = states.first().copied().unwrap_or("STATE");
            let why = if first.is_none() {
                format!("no action of state `{state}` is called `Fail...` or `...Failed`")
            } else {
                format!(
                    "more than one action of state `{state}` is called `Fail...` or `...Failed`"
                )
            };
            let help = format!(
                "add `on_failure = \"ACTION\"` to it, with an action that `{state}` takes: it is \
                 taken when the handler fails, traps, hits a limit or cannot be executed"
            );
            out.error_with_help(span, format!("{message}, and {why}"), help);
            None
        }
    }
}

/// Reports that the failure action `action` is assumed.
fn assume(
    message: &str,
    action: &Name,
    span: &std::ops::Range<usize>,
    out: &mut Diagnostics<'_>,
) -> Name {
    let help = format!("add `on_failure = \"{action}\"`");
    out.report_default(span, format!("{message}; it takes `{action}`"), help);
    Name::new(action.as_str(), span.clone())
}

fn is_failure(action: &str) -> bool {
    action.starts_with("Fail") || action.ends_with("Failed")
}

/// The action of a passed deadline.
fn on_timeout(
    spec: &Spec,
    integration: &Integration,
    on_failure: &Option<Name>,
    states: &[&str],
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
    let fallback = on_failure.clone()?;
    let message = format!(
        "integration `{}` has no `on_timeout`; if its deadline passes, it takes `{fallback}`",
        integration.name
    );
    let help = format!("add `on_timeout = \"{fallback}\"`, or declare an action `{ON_TIMEOUT}`");
    out.report_default(span, message, help);
    Some(fallback)
}
