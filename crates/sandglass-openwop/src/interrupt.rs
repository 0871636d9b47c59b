//! Answers to interrupts: what the protocol and the interrupt itself say of them.

use serde_json::{Value, json};

use crate::http::error::{Code, Error};
use sandglass_workflow::schema::Schema;

/// Whether `answer` is one to the interrupt with this payload.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(payload: &Value, answer: &Value) -> Result<(), Error> {
    if let Some(schema) = payload.get("resumeSchema") {
        let schema = Schema::compile(schema).map_err(|why| {
            // A host that took it asked for this; it was another version.
            Error::new(
                Code::Validation,
                format!("`resumeSchema` of the interrupt can't be used: {why}"),
            )
        })?;
        refused("/resumeValue", "`resumeValue` isn't as the interrupt wants it", &schema, answer)?;
    }
    if payload["kind"] != "approval" {
        return Ok(());
    }
    let Some(actions) = payload["data"]["actions"].as_array() else { return Ok(()) };
    let action = answer.get("action").and_then(Value::as_str);
    if action.is_some_and(|action| actions.iter().any(|one| one.as_str() == Some(action))) {
        return Ok(());
    }
    let message = "`resumeValue.action` of an approval must be one of its actions";
    let error = Error::new(Code::Validation, message).detail("path", "/resumeValue/action");
    Err(error.detail("actions", actions.clone()))
}

/// Refuses what a schema doesn't take, with all differences.
pub(crate) fn refused(
    path: &str,
    message: &str,
    schema: &Schema,
    value: &Value,
) -> Result<(), Error> {
    let differences = schema.differences(value);
    let Some((_, first)) = differences.first() else { return Ok(()) };
    let all: Vec<Value> = differences
        .iter()
        .map(|(place, what)| json!({ "path": format!("{path}{place}"), "message": what }))
        .collect();
    Err(Error::new(Code::Validation, format!("{message}: {first}")).detail("problems", all))
}
