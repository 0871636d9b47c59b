//! What a node is invoked with.

use serde_json::{Map, Value};

/// What a node is invoked with. An input that is null is as if it weren't there.
#[derive(Debug)]
pub struct Request {
    /// The run.
    pub run_id: String,
    /// The node of the workflow, not its type.
    pub node_id: String,
    /// What the workflow connects to the node's ports.
    pub inputs: Map<String, Value>,
}

impl Request {
    pub(crate) fn parse(request: &[u8]) -> Result<Self, String> {
        let mut request: Value = serde_json::from_slice(request)
            .map_err(|error| format!("the request is no JSON: {error}"))?;
        let Value::Object(inputs) = request["inputs"].take() else {
            return Err("the request has no object `inputs`".to_owned());
        };
        let of_context = |key: &str| match &request["nodeContext"][key] {
            Value::String(id) => Ok(id.clone()),
            _ => Err(format!("the request has no text `nodeContext.{key}`")),
        };
        Ok(Self { run_id: of_context("runId")?, node_id: of_context("nodeId")?, inputs })
    }

    /// The input, if it is there.
    #[must_use]
    pub fn input(&self, name: &str) -> Option<&Value> {
        self.inputs.get(name).filter(|value| !value.is_null())
    }

    /// The input as text.
    ///
    /// # Errors
    /// It is there, and no text.
    pub fn text(&self, name: &str) -> Result<Option<&str>, String> {
        self.typed(name, "a string", Value::as_str)
    }

    /// The input as a whole number that isn't negative.
    ///
    /// # Errors
    /// It is there, and no such number.
    pub fn count(&self, name: &str) -> Result<Option<u64>, String> {
        self.typed(name, "a whole number that isn't negative", Value::as_u64)
    }

    /// The input as true or false.
    ///
    /// # Errors
    /// It is there, and neither.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    fn typed<'a, T>(
        &'a self,
        name: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        match self.input(name) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(typed) => Ok(Some(typed)),
                None => Err(format!("input `{name}` is {value}, and should be {what}")),
            },
        }
    }
}
