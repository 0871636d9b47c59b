//! The variables that a run begins with: from its inputs and its definition.

use sandglass_model::Object;
use serde_json::Value;

use crate::definition::{ID_MAX_BYTES, Variable};
use crate::fields::{is_name, kind};
use crate::problem::{Problem, Problems, quoted, under};

/// Most inputs of a run.
pub const INPUTS_MAX: usize = 1_000;

/// Largest variables that a run begins with, in bytes of JSON: an entity of the runtime holds no more.
pub const VARIABLES_MAX_BYTES: usize = 1 << 20;

/// The variables that a run with these inputs begins with.
///
/// Each declared variable has the value of its input, or else its default; without both it is absent. An
/// input that is null counts as absent. Inputs that are not declared become variables, too.
///
/// # Errors
/// The inputs are invalid, with pointers that begin with `/inputs`: an input is missing or of another type
/// than its variable, or the inputs are not an object, too many or too large.
pub fn initial(declared: &[Variable], inputs: Option<&Value>) -> Result<Object, Vec<Problem>> {
    let mut variables = given(inputs)?;
    let out = Problems::default();
    for variable in declared {
        let given = variables.get(&variable.name).filter(|value| !value.is_null());
        let path = || under("/inputs", &variable.name);
        let (name, wanted) = (quoted(&variable.name), variable.kind.shown());
        match (given, &variable.default) {
            (Some(value), _) if variable.kind.takes(value) => {}
            (Some(value), _) => {
                let what = format!("the input {name} must be {wanted}, and is {}", kind(value));
                out.add(path(), what);
            }
            (None, Some(default)) => {
                variables.insert(variable.name.clone(), default.clone());
            }
            (None, None) if variable.required => {
                out.add(path(), format!("the input {name} is missing; give {wanted}"));
            }
            (None, None) => drop(variables.remove(&variable.name)),
        }
    }
    if out.is_empty() && !fits(&variables) {
        let what = format!(
            "the variables are larger than {VARIABLES_MAX_BYTES} bytes as JSON; give smaller inputs"
        );
        out.add("/inputs", what);
    }
    out.check(Some(variables))
}

fn given(inputs: Option<&Value>) -> Result<Object, Vec<Problem>> {
    let wrong = |what: String| Err(vec![Problem::new("/inputs", what)]);
    let fields = match inputs {
        None | Some(Value::Null) => return Ok(Object::new()),
        Some(Value::Object(fields)) => fields,
        Some(other) => {
            return wrong(format!("`inputs` must be an object, and is {}", kind(other)));
        }
    };
    if fields.len() > INPUTS_MAX {
        return wrong(format!("there are {} inputs, and {INPUTS_MAX} are allowed", fields.len()));
    }
    let out = Problems::default();
    for name in fields.keys().filter(|name| !is_name(name, ID_MAX_BYTES)) {
        let what = format!(
            "the input {} can't be a variable: a name has 1 to {ID_MAX_BYTES} bytes, none a control",
            quoted(name)
        );
        out.add("/inputs", what);
    }
    out.check(Some(fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect()))
}

fn fits(variables: &Object) -> bool {
    serde_json::to_string(variables).is_ok_and(|json| json.len() <= VARIABLES_MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition;
    use crate::definition::tests::with;
    use serde_json::json;

    fn declared(variables: Value) -> Vec<Variable> {
        let text = with("/variables", variables);
        Definition::parse(&text).expect("a definition").variables
    }

    fn some() -> Vec<Variable> {
        declared(json!([
            {"name": "n", "type": "number", "required": true},
            {"name": "d", "type": "object", "required": true, "defaultValue": {"a": 1}},
            {"name": "o", "type": "array"},
        ]))
    }

    #[test]
    fn variables_have_their_inputs_or_else_their_defaults() {
        for (inputs, variables) in [
            (json!({"n": 1.5}), json!({"n": 1.5, "d": {"a": 1}})),
            (json!({"n": 1, "d": {}, "o": []}), json!({"n": 1, "d": {}, "o": []})),
            (json!({"n": 1, "d": null, "o": null}), json!({"n": 1, "d": {"a": 1}})),
            (json!({"n": 1, "x": null}), json!({"n": 1, "d": {"a": 1}, "x": null})),
        ] {
            let found = initial(&some(), Some(&inputs)).expect("they fit");
            assert_eq!(json!(found), variables, "{inputs}");
        }
    }

    #[test]
    fn undeclared_inputs_become_variables() {
        let inputs = json!({"anything": [1, {"a": null}]});
        assert_eq!(json!(initial(&[], Some(&inputs)).expect("they fit")), inputs);
        for nothing in [None, Some(&Value::Null), Some(&json!({}))] {
            assert!(initial(&[], nothing).expect("they fit").is_empty());
        }
    }

    #[test]
    fn all_invalid_inputs_are_reported() {
        let large = json!({"n": 1, "x": "x".repeat(VARIABLES_MAX_BYTES)});
        let many: Object = (0..=INPUTS_MAX).map(|n| (format!("i{n}"), json!(1))).collect();
        for (inputs, expected) in [
            (json!({}), vec![("/inputs/n", "`n` is missing; give a number")]),
            (json!({"n": null}), vec![("/inputs/n", "is missing")]),
            (
                json!({"n": "1", "d": []}),
                vec![("/inputs/n", "a number, and is a string"), ("/inputs/d", "and is a list")],
            ),
            (json!([1]), vec![("/inputs", "must be an object, and is a list")]),
            (json!({"n": 1, "": 2}), vec![("/inputs", "can't be a variable")]),
            (large, vec![("/inputs", "larger than 1048576 bytes")]),
            (json!(many), vec![("/inputs", "1001 inputs, and 1000 are allowed")]),
        ] {
            let problems = initial(&some(), Some(&inputs)).expect_err("they don't fit");
            assert_eq!(problems.len(), expected.len(), "{problems:?}");
            for (problem, (path, what)) in problems.iter().zip(expected) {
                assert_eq!(problem.path, path, "{problem}");
                assert!(problem.what.contains(what), "{problem}");
            }
        }
    }
}
