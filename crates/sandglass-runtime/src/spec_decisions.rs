//! Decides actions of specs that guests pass to `host_evaluate_spec`, by the rules of this runtime.

use sandglass_host::{SpecEvaluator, SpecQuery};
use sandglass_liveness::{Decided, Input, Refusal, Severity, Spec, Terms, decide};
use sandglass_model::{EntityRef, Incarnation, Object, TraceContext, WallTime};
use serde_json::{Value, json};

/// Decides actions of specs for a host
/// ([`Builder::spec_evaluator`](sandglass_host::Builder::spec_evaluator)): whether a new entity would
/// take the action if it were in the given state. The result is an object:
///
/// - `success`: whether it would;
/// - `new_state`: the state after the action, or the given one if the state or the guard refuses it;
///   null if there is no such action, or if it cannot be decided;
/// - `error`: why there is no `new_state`; else null.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecDecisions;

impl SpecEvaluator for SpecDecisions {
    fn evaluate(&self, query: &SpecQuery) -> Value {
        match new_state(query) {
            Ok((success, state)) => {
                json!({ "success": success, "new_state": state, "error": null })
            }
            Err(why) => json!({ "success": false, "new_state": null, "error": why }),
        }
    }
}

/// Whether the action is taken, and the state afterwards.
fn new_state(query: &SpecQuery) -> Result<(bool, String), String> {
    let SpecQuery { spec, state, action, params } = query;
    let spec = parse(spec)?;
    let params = read_params(params)?;
    let refused = |refusal: Refusal| refusal.to_string();
    // Nothing is recorded, so the names of the entity do not matter.
    let name: EntityRef = format!("{}/evaluated", spec.name)
        .parse()
        .map_err(|_| "the automaton has no valid name")?;
    let incarnation = Incarnation::from_bytes([0; 16]);
    let create = Input::Create { name, incarnation, tenant: None, spawned_by: None };
    let now = WallTime::from_millis(0);
    let Decided { after: mut entity, .. } = decide(&spec, None, &create, now).map_err(refused)?;
    entity.state.clone_from(state);
    let trace = TraceContext::root([0; 24]);
    let input = Input::Action {
        action: action.clone(),
        params,
        trace,
        asked: None,
        terms: Terms::default(),
    };
    match decide(&spec, Some(&entity), &input, now) {
        Ok(decided) => Ok((true, decided.after.state)),
        // For a guard that reads other entities, no other entity exists.
        Err(Refusal::NotTaken { .. } | Refusal::GuardRefused(_) | Refusal::TooManyReads { .. }) => {
            Ok((false, state.clone()))
        }
        Err(Refusal::UnknownAction { .. }) => {
            Err(format!("unknown action '{action}' in state '{state}'"))
        }
        Err(refusal) => Err(refused(refusal)),
    }
}

fn parse(spec: &str) -> Result<Spec, String> {
    let parsed = Spec::parse(spec);
    parsed.spec.ok_or_else(|| {
        let errors = parsed.diagnostics.iter().filter(|one| one.severity == Severity::Error);
        let first = errors.map(ToString::to_string).next().unwrap_or_default();
        format!("failed to parse IOA spec: {first}")
    })
}

/// The parameters in `text`; none if it is empty or null.
fn read_params(text: &str) -> Result<Object, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Object::new());
    }
    let params: Option<Object> = sandglass_source::json::read(text)
        .map_err(|error| format!("the params are no JSON object: {error}"))?;
    Ok(params.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: &str = r#"
        [automaton]
        name = "Letter"
        states = ["Written", "Sent"]
        initial = "Written"
        terminal = ["Sent"]
        allow_indefinite_states = ["Written"]
        [[state]]
        name = "stamps"
        type = "counter"
        initial = 1
        [[action]]
        name = "Send"
        from = ["Written"]
        to = "Sent"
        guard = "stamps >= 1"
        [[action]]
        name = "Register"
        from = ["Written"]
        guard = "stamps >= 2"
    "#;

    fn evaluate(spec: &str, state: &str, action: &str, params: &str) -> Value {
        let [spec, state, action, params] = [spec, state, action, params].map(str::to_owned);
        SpecDecisions.evaluate(&SpecQuery { spec, state, action, params })
    }

    #[test]
    fn an_action_is_decided_in_the_given_state_of_a_new_entity() {
        for (state, action, success, new_state) in [
            ("Written", "Send", true, "Sent"),
            ("Written", "Register", false, "Written"),
            ("Sent", "Send", false, "Sent"),
            ("Elsewhere", "Send", false, "Elsewhere"),
        ] {
            for params in ["", " ", "{}", "null", r#"{"a":1}"#] {
                let expected = json!({ "success": success, "new_state": new_state, "error": null });
                assert_eq!(evaluate(SPEC, state, action, params), expected);
            }
        }
    }

    #[test]
    fn what_cannot_be_decided_has_no_state_and_says_why() {
        let broken = SPEC.replace("[[action]]", "[[action]");
        for (spec, action, params, why) in [
            (SPEC, "Frobnicate", "", "unknown action 'Frobnicate' in state 'Written'"),
            (SPEC, "Send", "[1]", "the params are no JSON object"),
            (SPEC, "Send", "{", "the params are no JSON object"),
            (&broken, "Send", "", "failed to parse IOA spec: "),
            ("", "Send", "", "failed to parse IOA spec: "),
        ] {
            let result = evaluate(spec, "Written", action, params);
            assert_eq!((&result["success"], &result["new_state"]), (&json!(false), &Value::Null));
            let error = result["error"].as_str().expect("a text");
            assert!(error.starts_with(why), "{error}");
        }
    }
}
