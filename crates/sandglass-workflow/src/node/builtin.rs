//! The node types that every host has and that need only their inputs.

use serde_json::{Map, Value};

use super::{End, FAIL, IDENTITY, NOOP};
use crate::definition::Node;
use crate::error::{ErrorCode, RunError};

/// The longest wait of a node, in milliseconds: as long as a handler's budget can be.
const DELAY_MAX_MS: u64 = sandglass_model::limit::MAX_BUDGET_MS;

/// The end of a node whose type is a pure function; `None` for other types.
pub fn pure(node: &Node, inputs: &Map<String, Value>) -> Option<End> {
    Some(match node.type_id.as_str() {
        NOOP => End::Completed(Value::Object(Map::new())),
        IDENTITY => End::Completed(Value::Object(inputs.clone())),
        FAIL => {
            let text = |key: &str| inputs.get(key).or(node.config.get(key)).and_then(Value::as_str);
            let message = text("message").unwrap_or("this node always fails");
            End::Failed(RunError::new(text("code").unwrap_or("conformance_test_failure"), message))
        }
        _ => return None,
    })
}

/// How long a delay is, in milliseconds.
///
/// # Errors
/// The duration is missing or invalid.
pub fn delay_ms(node: &Node, inputs: &Map<String, Value>) -> Result<u64, RunError> {
    let given = inputs.get("delayMs").or_else(|| node.config.get("delayMs"));
    let Some(given) = given else {
        let message = "a delay needs `delayMs`, as an input or in its config";
        return Err(RunError::new(ErrorCode::InvalidInput, message));
    };
    let millis = given.as_f64().filter(|millis| (0.0..=DELAY_MAX_MS as f64).contains(millis));
    // The value is inside the range that was just checked.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    millis.map(|millis| millis.ceil() as u64).ok_or_else(|| {
        let message =
            format!("`delayMs` must be a number of milliseconds from 0 to {DELAY_MAX_MS}");
        RunError::new(ErrorCode::InvalidInput, message)
    })
}

/// The outputs of a delay.
pub fn delayed(millis: u64) -> Value {
    Value::Object(Map::from_iter([("delayedMs".to_owned(), millis.into())]))
}
