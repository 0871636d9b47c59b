//! The inputs of a node: the values of its ports.

use serde_json::{Map, Value};

use crate::definition::{Definition, Node, Port};
use crate::error::{ErrorCode, RunError};
use crate::json_size;
use crate::plan::scope;
use crate::state::RunState;

/// Largest inputs of a node, in bytes of JSON: several ports may have the same large value.
const INPUTS_MAX_BYTES: usize = 4 << 20;

/// The values of the ports of the node at `index`, and the outputs that edges pass to undeclared ports.
pub fn resolve(
    definition: &Definition,
    state: &RunState,
    index: usize,
) -> Result<Map<String, Value>, RunError> {
    let node = &definition.nodes[index];
    let mut inputs = Map::new();
    let mut bytes = 0_usize;
    let mut all_outputs = None;
    for (name, port) in &node.inputs {
        let value = match port {
            Port::Static(value) => Some(value.clone()),
            Port::Variable { name: variable, optional } => {
                let value = state.variables.get(variable).cloned();
                present(node, name, value, *optional, || format!("variable `{variable}`"))?
            }
            Port::Connection { node: from, output, optional } => {
                let from = &definition.nodes[*from].id;
                let value = state.outputs(definition, from).and_then(|all| all.get(output));
                let value = value.cloned();
                present(node, name, value, *optional, || format!("output `{output}` of `{from}`"))?
            }
            Port::Expression(expression) => {
                let outputs = all_outputs.get_or_insert_with(|| {
                    let of = |node: &Node| {
                        Some((node.id.clone(), state.outputs(definition, &node.id)?.clone()))
                    };
                    let outputs = definition.nodes.iter().filter_map(of).collect();
                    scope(state, "running", &Value::Object(outputs))
                });
                Some(expression.value(outputs).into_owned())
            }
        };
        if let Some(value) = value {
            bytes = bounded(bytes, &value)?;
            inputs.insert(name.clone(), value);
        }
    }
    for edge in definition.graph.incoming(index).iter().map(|edge| &definition.edges[*edge]) {
        let from = &definition.nodes[edge.source].id;
        let brought = state.outputs(definition, from).and_then(|all| all.get(&edge.source_output));
        if let (Some(value), false) = (brought, inputs.contains_key(&edge.target_input)) {
            bytes = bounded(bytes, value)?;
            inputs.insert(edge.target_input.clone(), value.clone());
        }
    }
    Ok(inputs)
}

/// The size of all inputs with `value` added; an error if it is too large.
fn bounded(bytes: usize, value: &Value) -> Result<usize, RunError> {
    let bytes = bytes.saturating_add(json_size(value));
    if bytes > INPUTS_MAX_BYTES {
        let message = format!("the inputs of a node are {INPUTS_MAX_BYTES} bytes at most");
        return Err(RunError::new(ErrorCode::InputTooLarge, message));
    }
    Ok(bytes)
}

fn present(
    node: &Node,
    port: &str,
    value: Option<Value>,
    optional: bool,
    what: impl Fn() -> String,
) -> Result<Option<Value>, RunError> {
    if value.is_none() && !optional {
        let id = &node.id;
        let message = format!(
            "port `{port}` of node `{id}` needs {}, which isn't there; give it, or make the port \
             `optional`",
            what()
        );
        return Err(RunError::new(ErrorCode::InputMissing, message));
    }
    Ok(value)
}
