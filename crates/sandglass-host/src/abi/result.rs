//! Reads the result of a handler: JSON of one of three shapes, or a failure that states what is wrong
//! with it.

use sandglass_model::{Completion, Failure, FailureKind, Object, Outcome};
use sandglass_source::json;
use serde_json::Value;

use sandglass_supervisor::capability::log::cut;
use sandglass_supervisor::capability::result::violation;
use sandglass_supervisor::secret::Redactor;

/// Longest message of a failure, in bytes: reports show it in one line.
pub(super) const MESSAGE_MAX_BYTES: u32 = 2048;

/// The outcome of a handler whose result is `bytes`.
pub(crate) fn outcome(bytes: &[u8], redactor: &Redactor) -> Outcome {
    parse("the result", bytes).map_or_else(Outcome::Failed, |value| outcome_of(value, redactor))
}

/// The outcome of a handler whose result is `value`.
pub(crate) fn outcome_of(value: Value, redactor: &Redactor) -> Outcome {
    read(redactor.json(value)).map_or_else(Outcome::Failed, Outcome::Completed)
}

/// Checks that `what` has at most `max_bytes`.
pub(super) fn check_size(what: &str, bytes: usize, max_bytes: u64) -> Result<(), Failure> {
    if bytes as u64 > max_bytes {
        let message = format!("{what} has {bytes} bytes, and {max_bytes} are allowed");
        return Err(violation(FailureKind::ResultTooLarge, message));
    }
    Ok(())
}

/// Parses `bytes`, which are `what` of a guest.
pub(super) fn parse(what: &str, bytes: &[u8]) -> Result<Value, Failure> {
    let text = str::from_utf8(bytes).map_err(|error| {
        let message = format!("{what} is no UTF-8 (byte {})", error.valid_up_to());
        violation(FailureKind::InvalidUtf8, message)
    })?;
    json::read(text).map_err(|error| invalid_json(what, &error))
}

/// The failure of a guest whose `what` cannot be read as JSON, or has too many values.
pub(super) fn invalid_json(what: &str, error: &json::Error) -> Failure {
    match error {
        json::Error::TooManyValues(_) => {
            violation(FailureKind::ResultTooLarge, format!("{what} is too large: {error}"))
        }
        json::Error::Empty | json::Error::Violations(_) | json::Error::Invalid(_) => {
            violation(FailureKind::InvalidJson, format!("{what} is no JSON: {error}"))
        }
    }
}

/// The failure of a guest whose `what` is not of any allowed shape.
pub(super) fn invalid_shape(what: &str, value: Value, why: &str) -> Failure {
    Failure {
        kind: FailureKind::InvalidShape,
        message: format!("{what} has not the shape of one: {why}"),
        result: Some(value),
    }
}

fn read(value: Value) -> Result<Completion, Failure> {
    let success = match value.get("success") {
        Some(Value::Bool(success)) => *success,
        Some(_) => return Err(shape(value, "`success` must be true or false")),
        None if value.is_object() => return Err(shape(value, "it has no `success`")),
        None => return Err(shape(value, "it must be an object with `success`")),
    };
    if success { completed(value) } else { Err(failed(value)) }
}

fn completed(value: Value) -> Result<Completion, Failure> {
    let action = match value.get("action") {
        None | Some(Value::Null) => None,
        Some(Value::String(action)) if !action.is_empty() => Some(action.clone()),
        Some(_) => return Err(shape(value, "`action` must be the name of an action")),
    };
    let params: Object = match value.get("params") {
        None | Some(Value::Null) => Object::new(),
        Some(Value::Object(params)) => {
            params.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
        }
        Some(_) => return Err(shape(value, "`params` must be an object")),
    };
    Ok(Completion { action, params, result: value })
}

fn failed(value: Value) -> Failure {
    // Many languages write null for an absent value.
    let field = |key| value.get(key).filter(|field| !field.is_null());
    let (kind, message) = match (field("typed_failure"), field("error")) {
        (Some(Value::Object(typed)), _) => {
            let part = |key| typed.get(key).and_then(Value::as_str).filter(|part| !part.is_empty());
            let (Some(category), Some(code)) = (part("category"), part("code")) else {
                return shape(value, "`typed_failure` must have a `category` and a `code`");
            };
            let message = match part("diagnostic") {
                Some(diagnostic) => format!("{category}: {code}: {diagnostic}"),
                None => format!("{category}: {code}"),
            };
            (FailureKind::TypedFailure, message)
        }
        (Some(_), _) => return shape(value, "`typed_failure` must be an object"),
        (None, Some(Value::String(error))) => (FailureKind::GuestFailure, error.clone()),
        (None, Some(error)) => (FailureKind::GuestFailure, error.to_string()),
        (None, None) => {
            (FailureKind::GuestFailure, "the guest answered failure and no `error`".to_owned())
        }
    };
    Failure { kind, message: cut(&message, MESSAGE_MAX_BYTES), result: Some(value) }
}

fn shape(value: Value, why: &str) -> Failure {
    invalid_shape("the result", value, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(answer: &[u8]) -> FailureKind {
        match outcome(answer, &Redactor::default()) {
            Outcome::Failed(failure) => failure.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_success_may_name_an_action() {
        let answer = br#"{"action":"Finish","params":{"n":1},"success":true}"#;
        let Outcome::Completed(completion) = outcome(answer, &Redactor::default()) else {
            panic!("a success")
        };
        assert_eq!(completion.action.as_deref(), Some("Finish"));
        assert_eq!(completion.params["n"], 1);
        let bare = outcome(br#"{"success":true}"#, &Redactor::default());
        assert!(matches!(bare, Outcome::Completed(Completion { action: None, .. })));
    }

    #[test]
    fn the_message_of_a_typed_failure_has_its_diagnostic() {
        let message = |typed: &str| {
            let answer = format!(r#"{{"success":false,"typed_failure":{typed}}}"#);
            match outcome(answer.as_bytes(), &Redactor::default()) {
                Outcome::Failed(failure) => failure.message,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(message(r#"{"category":"upstream","code":"E1"}"#), "upstream: E1");
        let explained = r#"{"category":"upstream","code":"E1","diagnostic":"it is down"}"#;
        assert_eq!(message(explained), "upstream: E1: it is down");
        let no_text = r#"{"category":"upstream","code":"E1","diagnostic":7}"#;
        assert_eq!(message(no_text), "upstream: E1");
    }

    #[test]
    fn each_violation_has_its_own_kind() {
        assert_eq!(kind(b"\xff"), FailureKind::InvalidUtf8);
        assert_eq!(kind(b"{"), FailureKind::InvalidJson);
        assert_eq!(kind(b""), FailureKind::InvalidJson);
        for shapeless in [
            &b"[1]"[..],
            b"null",
            b"{}",
            br#"{"success":1}"#,
            br#"{"success":true,"action":7}"#,
            br#"{"success":true,"params":[]}"#,
            br#"{"success":false,"typed_failure":"x"}"#,
            br#"{"success":false,"typed_failure":{}}"#,
        ] {
            assert_eq!(kind(shapeless), FailureKind::InvalidShape);
        }
        assert_eq!(kind(br#"{"success":false,"error":"no"}"#), FailureKind::GuestFailure);
        let null = br#"{"success":false,"typed_failure":null,"error":"no"}"#;
        assert_eq!(kind(null), FailureKind::GuestFailure);
        let many = format!(r#"{{"success":true,"params":{{"a":[{}1]}}}}"#, "1,".repeat(500_000));
        assert_eq!(kind(many.as_bytes()), FailureKind::ResultTooLarge);
        let typed = br#"{"success":false,"typed_failure":{"category":"upstream","code":"E1"}}"#;
        assert_eq!(kind(typed), FailureKind::TypedFailure);
    }
}
