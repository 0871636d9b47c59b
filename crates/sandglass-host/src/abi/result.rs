//! Reads the result of a handler: JSON of one of three shapes, or a failure that states what is wrong
//! with it.

mod strict;

use sandglass_model::{Completion, Failure, FailureKind, Object, Outcome};
use sandglass_source::json;
use serde_json::Value;

use sandglass_supervisor::capability::log::cut;
use sandglass_supervisor::capability::result::violation;
use sandglass_supervisor::secret::Redactor;

/// Longest message of a failure, in bytes: reports show it in one line.
pub(crate) const MESSAGE_MAX_BYTES: u32 = 2048;

/// The outcome of a handler of a core module, whose result is `bytes`.
pub(crate) fn outcome(bytes: &[u8], redactor: &Redactor) -> Outcome {
    let (value, duplicate) = match parse_result(bytes) {
        Ok(parsed) => parsed,
        Err(failure) => return Outcome::Failed(failure),
    };
    match duplicate.map_or_else(|| strict::check(&value), Err) {
        Ok(()) => outcome_of(value, redactor),
        Err(why) => Outcome::Failed(shape(redactor.json(value), &redactor.text(why))),
    }
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
    json::read(utf8(what, bytes)?).map_err(|error| invalid_json(what, &error))
}

/// Parses a result. Also returns what is wrong if one of its own keys, or of its typed failure, is
/// there twice. In params, the last one wins.
fn parse_result(bytes: &[u8]) -> Result<(Value, Option<String>), Failure> {
    const WHAT: &str = "the result";
    let text = utf8(WHAT, bytes)?;
    let bounds =
        json::Bounds { duplicate_keys: json::DuplicateKeys::Rejected, ..json::Bounds::DEFAULT };
    let read = json::read_within(text, bounds);
    let Err(json::Error::Violations(violations)) = read else {
        return Ok((read.map_err(|error| invalid_json(WHAT, &error))?, None));
    };
    let value = json::read(text).map_err(|error| invalid_json(WHAT, &error))?;
    let of_the_result = |at: &json::Violation| ["", "/typed_failure"].contains(&&*at.pointer);
    Ok((value, violations.iter().find(|at| of_the_result(at)).map(ToString::to_string)))
}

fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, Failure> {
    str::from_utf8(bytes).map_err(|error| {
        let message = format!("{what} is no UTF-8 (byte {})", error.valid_up_to());
        violation(FailureKind::InvalidUtf8, message)
    })
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
        message: cut(&format!("{what} has not the shape of one: {why}"), MESSAGE_MAX_BYTES),
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
        // Guests of Temper leave it to the spec by an empty name.
        Some(Value::String(action)) => Some(action.clone()).filter(|action| !action.is_empty()),
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
        (None, _) => return shape(value, "a failure must have an `error`"),
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
    fn an_empty_action_is_none() {
        let empty = outcome(br#"{"action":"","params":{},"success":true}"#, &Redactor::default());
        assert!(matches!(empty, Outcome::Completed(Completion { action: None, .. })), "{empty:?}");
    }

    #[test]
    fn a_key_that_is_there_twice_is_named_and_in_params_the_last_one_wins() {
        for (answer, key) in [
            (r#"{"success":true,"params":{},"success":false}"#, "`success`"),
            (r#"{"success":false,"typed_failure":{"version":1,"code":"a","code":"b"}}"#, "`code`"),
        ] {
            match outcome(answer.as_bytes(), &Redactor::default()) {
                Outcome::Failed(failure) => {
                    assert_eq!(failure.kind, FailureKind::InvalidShape);
                    assert!(
                        failure.message.contains(&format!("the key {key} twice")),
                        "{failure:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        let nested = br#"{"success":true,"params":{"a":1,"a":2}}"#;
        let Outcome::Completed(completion) = outcome(nested, &Redactor::default()) else {
            panic!("a success")
        };
        assert_eq!(completion.params["a"], 2);
    }

    #[test]
    fn what_is_wrong_is_stated_without_secrets() {
        let redactor = Redactor::default();
        redactor.hide(&sandglass_supervisor::secret::Secret::new("hunter22"));
        let answer = br#"{"success":true,"hunter22":"hunter22"}"#;
        let Outcome::Failed(failure) = outcome(answer, &redactor) else { panic!("a failure") };
        assert!(!format!("{failure:?}").contains("hunter22"), "{failure:?}");
    }

    #[test]
    fn the_message_of_a_typed_failure_has_its_diagnostic() {
        let message = |typed: &str| {
            let answer = format!(r#"{{"success":false,"typed_failure":{{"version":1,{typed}}}}}"#);
            match outcome(answer.as_bytes(), &Redactor::default()) {
                Outcome::Failed(failure) => failure.message,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(message(r#""category":"budget","code":"E1""#), "budget: E1");
        let explained = r#""category":"budget","code":"E1","diagnostic":"it is down""#;
        assert_eq!(message(explained), "budget: E1: it is down");
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
            br#"{"success":false,"typed_failure":{"version":1,"category":"budget"}}"#,
            br#"{"success":false}"#,
            br#"{"success":true,"extra":1}"#,
        ] {
            assert_eq!(kind(shapeless), FailureKind::InvalidShape);
        }
        assert_eq!(kind(br#"{"success":false,"error":"no"}"#), FailureKind::GuestFailure);
        let null = br#"{"success":false,"typed_failure":null,"error":"no"}"#;
        assert_eq!(kind(null), FailureKind::GuestFailure);
        let many = format!(r#"{{"success":true,"params":{{"a":[{}1]}}}}"#, "1,".repeat(500_000));
        assert_eq!(kind(many.as_bytes()), FailureKind::ResultTooLarge);
        let typed = r#"{"version":1,"category":"budget","code":"E1"}"#;
        let typed = format!(r#"{{"success":false,"typed_failure":{typed}}}"#);
        assert_eq!(kind(typed.as_bytes()), FailureKind::TypedFailure);
    }
}
