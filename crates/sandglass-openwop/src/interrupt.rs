//! Answers to interrupts: what the protocol and the interrupt itself say of them.

use serde_json::Value;

use crate::http::error::{Code, Error};

/// Whether `answer` is one to the interrupt with this payload.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn check(payload: &Value, answer: &Value) -> Result<(), Error> {
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
