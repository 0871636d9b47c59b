//! Reads the response of a node: JSON of one of three shapes, or a failure that states what is wrong
//! with it.

use sandglass_model::{Completion, Failure, FailureKind, Object, Outcome};
use serde_json::{Value, json};

use crate::abi::result::{MESSAGE_MAX_BYTES, check_size, invalid_shape, parse};
use sandglass_supervisor::argument::Unreadable;
use sandglass_supervisor::capability::log::cut;
use sandglass_supervisor::capability::result::violation;
use sandglass_supervisor::node::PackDescription;

/// The outcome of a node whose response is `bytes`.
pub(super) fn outcome(bytes: &[u8]) -> Outcome {
    parse("the response", bytes).and_then(read).map_or_else(Outcome::Failed, Outcome::Completed)
}

/// What messages call the payload of an interrupt.
pub(super) const PAYLOAD: &str = "the interrupt's payload";

/// The outcome of a node that is suspended until its interrupt is resolved, as if the node had
/// returned that response; or the failure of its payload.
pub(super) fn suspended(payload: Result<Value, Failure>) -> Outcome {
    payload.map_or_else(Outcome::Failed, |payload| {
        Outcome::Completed(completed(json!({ "outcome": "suspended", "interrupt": payload })))
    })
}

/// The payload of an interrupt, of at most `max_bytes`.
///
/// # Errors
/// It cannot be read, or is not an object.
pub(super) fn payload(bytes: Result<&[u8], Unreadable>, max_bytes: u64) -> Result<Value, Failure> {
    let bytes = bytes.map_err(|why| violation(FailureKind::ResultOutOfBounds, why.to_string()))?;
    check_size(PAYLOAD, bytes.len(), max_bytes)?;
    let payload = parse(PAYLOAD, bytes)?;
    if payload.is_object() {
        return Ok(payload);
    }
    let message = format!("{PAYLOAD} must be an object");
    Err(Failure { kind: FailureKind::InvalidShape, message, result: Some(payload) })
}

/// The outcome of a pack that has described itself.
pub(super) fn description(description: &PackDescription) -> Outcome {
    let described = serde_json::to_value(description).expect("plain data");
    Outcome::Completed(completed(described))
}

fn read(response: Value) -> Result<Completion, Failure> {
    match response.get("outcome").and_then(Value::as_str) {
        Some("completed") => Ok(completed(response)),
        Some("suspended") => match response.get("interrupt") {
            Some(Value::Object(_)) => Ok(completed(response)),
            _ => Err(shape(response, "a suspended one has an `interrupt`, which is an object")),
        },
        Some("failed") => Err(failed(response)),
        _ => Err(shape(
            response,
            "it must be an object whose `outcome` is \"completed\", \"suspended\" or \"failed\"",
        )),
    }
}

fn completed(response: Value) -> Completion {
    Completion { action: None, params: Object::new(), result: response }
}

fn failed(response: Value) -> Failure {
    let error = response.get("error");
    let part = |key| error.and_then(|error| error.get(key)).and_then(Value::as_str);
    let (Some(code), Some(message)) =
        (part("code").filter(|code| !code.is_empty()), part("message"))
    else {
        return shape(response, "a failed one has an `error` with a `code` and a `message`");
    };
    let message = cut(&format!("{code}: {message}"), MESSAGE_MAX_BYTES);
    Failure { kind: FailureKind::TypedFailure, message, result: Some(response) }
}

fn shape(response: Value, why: &str) -> Failure {
    invalid_shape("the response", response, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(response: &[u8]) -> Failure {
        match outcome(response) {
            Outcome::Failed(failure) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_shape_is_read() {
        for response in [
            json!({"outcome": "completed", "output": {"a": 1}}),
            // Many languages leave out a null.
            json!({"outcome": "completed"}),
            json!({"outcome": "suspended", "interrupt": {"kind": "approval"}}),
        ] {
            let Outcome::Completed(completion) = outcome(response.to_string().as_bytes()) else {
                panic!("{response}")
            };
            assert_eq!(completion, completed(response));
        }
        let response = json!({"outcome": "failed", "error": {"code": "E1", "message": "no"}});
        let failed = failure(response.to_string().as_bytes());
        assert_eq!((failed.kind, &*failed.message), (FailureKind::TypedFailure, "E1: no"));
        assert_eq!(failed.result, Some(response));
    }

    #[test]
    fn each_violation_has_its_own_kind() {
        for (response, kind) in [
            (&b"\xff"[..], FailureKind::InvalidUtf8),
            (b"{", FailureKind::InvalidJson),
            (b"", FailureKind::InvalidJson),
            (b"[]", FailureKind::InvalidShape),
            (br#"{"outcome":"done"}"#, FailureKind::InvalidShape),
            (br#"{"outcome":1}"#, FailureKind::InvalidShape),
            (br#"{"outcome":"suspended"}"#, FailureKind::InvalidShape),
            (br#"{"outcome":"suspended","interrupt":"x"}"#, FailureKind::InvalidShape),
            (br#"{"outcome":"failed"}"#, FailureKind::InvalidShape),
            (
                br#"{"outcome":"failed","error":{"code":"","message":""}}"#,
                FailureKind::InvalidShape,
            ),
            (br#"{"outcome":"failed","error":{"code":"E"}}"#, FailureKind::InvalidShape),
        ] {
            assert_eq!(failure(response).kind, kind, "{}", String::from_utf8_lossy(response));
        }
        let many = format!(r#"{{"outcome":"completed","output":[{}1]}}"#, "1,".repeat(70_000));
        assert_eq!(failure(many.as_bytes()).kind, FailureKind::ResultTooLarge);
    }

    #[test]
    fn a_suspended_node_has_the_outcome_of_one_that_returns_suspended() {
        let answered = outcome(br#"{"outcome":"suspended","interrupt":{"key":"k"}}"#);
        let payload = |bytes: &[u8]| payload(Ok(bytes), 11);
        assert_eq!(suspended(payload(br#"{"key":"k"}"#)), answered);
        for (bad, kind) in [
            (&b"7"[..], FailureKind::InvalidShape),
            (b"{", FailureKind::InvalidJson),
            (b"\xff", FailureKind::InvalidUtf8),
            (br#"{"key":"long"}"#, FailureKind::ResultTooLarge),
        ] {
            let Outcome::Failed(failure) = suspended(payload(bad)) else { panic!("{bad:?}") };
            assert_eq!(failure.kind, kind);
        }
    }
}
