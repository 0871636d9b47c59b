//! The variables that a run begins with, from its inputs and what its definition declares.

use sandglass_model::Object;
use serde_json::Value;

use crate::definition::{ID_MAX_BYTES, Variable};
use crate::fields::kind;
use crate::problem::{Problem, Problems, quoted, under};

/// Most inputs of a run.
pub const INPUTS_MAX: usize = 1_000;

/// Most bytes of a run's first variables, as JSON: what an entity of the runtime holds.
pub const VARIABLES_MAX_BYTES: usize = 1 << 20;

/// The variables that a run with these inputs begins with.
///
/// Each declared variable is what its input says, or else its default; without both it is
/// absent. An input that is null counts as none. What no variable declares is kept as a
/// variable, too.
///
/// # Errors
/// What is wrong with the inputs, with pointers that begin with `/inputs`: an input is
/// missing or of another type than its variable, they are no object, or they are too many or
/// too large.
pub fn initial(declared: &[Variable], inputs: Option<&Value>) -> Result<Object, Vec<Problem>> {
    let mut out = Problems::default();
    let mut variables = given(inputs, &mut out);
    if !out.is_empty() {
        return Err(out.into_vec());
    }
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
    if out.is_empty() { Ok(variables) } else { Err(out.into_vec()) }
}

fn given(inputs: Option<&Value>, out: &mut Problems) -> Object {
    let fields = match inputs {
        None | Some(Value::Null) => return Object::new(),
        Some(Value::Object(fields)) => fields,
        Some(other) => {
            out.add("/inputs", format!("`inputs` must be an object, and is {}", kind(other)));
            return Object::new();
        }
    };
    if fields.len() > INPUTS_MAX {
        let what = format!("there are {} inputs, and {INPUTS_MAX} are allowed", fields.len());
        out.add("/inputs", what);
        return Object::new();
    }
    for name in fields.keys() {
        if name.is_empty() || name.len() > ID_MAX_BYTES || name.chars().any(char::is_control) {
            let what = format!(
                "the input {} can't be a variable: a name has 1 to {ID_MAX_BYTES} bytes, none a \
                 control",
                quoted(name)
            );
            out.add("/inputs", what);
        }
    }
    fields.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Whether the variables are within [`VARIABLES_MAX_BYTES`]; nothing is kept to find out.
fn fits(variables: &Object) -> bool {
    struct Left(usize);
    impl std::io::Write for Left {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let left = self.0.checked_sub(bytes.len());
            self.0 = left.ok_or(std::io::ErrorKind::FileTooLarge)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    serde_json::to_writer(Left(VARIABLES_MAX_BYTES), variables).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition;
    use serde_json::json;

    fn declared(variables: Value) -> Vec<Variable> {
        let node = json!({
            "id": "n", "typeId": "core.noop", "name": "N", "position": {"x": 0, "y": 0},
            "config": {}, "inputs": {},
        });
        let definition = json!({
            "id": "d", "name": "D", "version": "1", "nodes": [node], "edges": [], "triggers": [],
            "variables": variables, "metadata": {}, "settings": {},
        });
        Definition::parse(&definition.to_string()).expect("a definition").variables
    }

    fn some() -> Vec<Variable> {
        declared(json!([
            {"name": "n", "type": "number", "required": true},
            {"name": "d", "type": "object", "required": true, "defaultValue": {"a": 1}},
            {"name": "o", "type": "array"},
        ]))
    }

    #[test]
    fn variables_are_their_inputs_or_else_their_defaults() {
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
    fn inputs_pass_through_where_nothing_is_declared() {
        let inputs = json!({"anything": [1, {"a": null}]});
        assert_eq!(json!(initial(&[], Some(&inputs)).expect("they fit")), inputs);
        for nothing in [None, Some(&Value::Null), Some(&json!({}))] {
            assert!(initial(&[], nothing).expect("they fit").is_empty());
        }
    }

    #[test]
    fn inputs_that_do_not_fit_are_all_told() {
        let large = json!({"n": 1, "x": "x".repeat(VARIABLES_MAX_BYTES)});
        let many: Object = (0..=INPUTS_MAX).map(|n| (format!("i{n}"), json!(1))).collect();
        for (inputs, told) in [
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
            assert_eq!(problems.len(), told.len(), "{problems:?}");
            for (problem, (path, what)) in problems.iter().zip(told) {
                assert_eq!(problem.path, path, "{problem}");
                assert!(problem.what.contains(what), "{problem}");
            }
        }
    }
}
