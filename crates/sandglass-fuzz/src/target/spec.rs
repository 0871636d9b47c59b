//! Spec files, and the guards in them.

use sandglass_liveness::session::{LimitSettings, Setting};
use sandglass_liveness::spec::{Scope, Strictness};
use sandglass_liveness::{Fields, Severity, Spec};
use sandglass_model::{Limit, Object, RulesVersion, RunLimits};
use serde_json::Value;

use crate::promise;

/// The text before the guard, in a spec with a variable of each type.
const BEFORE: &str = r#"
[automaton]
name = "Guarded"
states = ["Only"]
initial = "Only"
allow_indefinite_states = ["Only"]

[[state]]
name = "n"
type = "counter"
initial = 3

[[state]]
name = "s"
type = "string"
initial = "text"

[[state]]
name = "b"
type = "bool"
initial = true

[[action]]
name = "Act"
from = ["Only"]
guard = "#;

/// Checks that an accepted spec reads as an equal one, also by the rules for specs from a journal, and
/// that one that the strict rules accept is read as the same spec by them.
pub(crate) fn read(input: &[u8]) {
    let parsed = Spec::parse_bytes(input, Strictness::AsDeclared);
    let Ok(source) = str::from_utf8(input) else {
        assert!(parsed.spec.is_none(), "it is no text");
        return parsed.diagnostics.iter().for_each(|one| promise::check_text(&one.message));
    };
    promise::check_diagnostics(source, &parsed.diagnostics);
    let recorded = Spec::parse_recorded(source, RulesVersion::CURRENT);
    promise::check_diagnostics(source, &recorded.diagnostics);
    let Some(spec) = parsed.spec else {
        let is_error = |severity| severity == Severity::Error;
        let has_error = parsed.diagnostics.iter().any(|one| is_error(one.severity));
        return assert!(has_error, "refused without a message");
    };
    let again = recorded.spec.expect("what is accepted is accepted from a journal");
    assert_eq!(format!("{again:?}"), format!("{spec:?}"));
    if let Some(strict) = Spec::parse_with(source, Strictness::Strict).spec {
        assert_eq!(format!("{strict:?}"), format!("{spec:?}"));
    }
    evaluate(&spec);
    limit(&spec);
}

/// Checks that the effective limits of a run never exceed the host's ceiling, and that limits on
/// inactivity and progress never exceed the timeout of the run.
fn limit(spec: &Spec) {
    let Some(limits) = &spec.limits else { return };
    let unsaid = LimitSettings::default();
    let mut ceiling = LimitSettings::default();
    ceiling.set(Limit::RunTimeout, Setting::At(1_000));
    for ceiling in [unsaid, ceiling] {
        let held = limits.settings.effective(&unsaid, &ceiling);
        let most = held.run_timeout_ms.unwrap_or(u64::MAX);
        for inner in [held.inactivity_timeout_ms, held.progress_timeout_ms] {
            assert!(inner.is_none_or(|inner| inner <= most), "{held:?}");
        }
        if let Some(Setting::At(allowed)) = ceiling.of(Limit::RunTimeout) {
            assert!(most <= allowed, "{held:?}");
        }
        let text = serde_json::to_string(&held).expect("plain data");
        assert_eq!(serde_json::from_str::<RunLimits>(&text).ok(), Some(held));
    }
}

/// Checks that a guard can be read, and evaluates to the same value each time.
pub(crate) fn guard(input: &[u8]) {
    let Ok(guard) = str::from_utf8(input) else { return };
    read(format!("{BEFORE}{}\n", Value::from(guard)).as_bytes());
}

fn evaluate(spec: &Spec) {
    let (variables, nothing) = (spec.initial_variables(), Object::new());
    let guards = spec.actions.values().filter_map(|action| action.guard.as_ref());
    let invariants = spec.invariants.iter().map(|invariant| &invariant.condition);
    for condition in guards.chain(invariants) {
        // The variables of a new entity, and those of an entity that another version left without
        // any.
        for variables in [&variables, &nothing] {
            let fields = &Fields::default();
            let scope =
                Scope { id: Some("1"), state: &spec.initial, variables, fields, observed: &[] };
            assert_eq!(condition.holds(scope), condition.holds(scope), "it says yes or no");
        }
    }
}
