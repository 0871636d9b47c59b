//! Checks the result of a core module as strictly as Temper does: each form has its keys and no
//! others. What a component returns has a type, so it needs no such check.

use sandglass_supervisor::text::printable;
use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// All keys of a result. One that is null counts as absent.
const KEYS: [&str; 5] = ["success", "action", "params", "error", "typed_failure"];

const TYPED_KEYS: [&str; 7] =
    ["version", "category", "code", "retryability", "outcome", "diagnostic", "details"];

/// The version of typed failures.
const VERSION: u64 = 1;

/// The action of a failure in Temper's SDK. It names none, because the spec decides what follows.
const NO_ACTION: &str = "callback";

/// The categories by which specs route failures.
const CATEGORIES: [&str; 6] =
    ["transient", "integrity", "authorization", "budget", "ambiguous", "permanent"];
/// The categories of the failures that the SDK makes.
const SDK_CATEGORIES: [&str; 9] =
    ["http", "ask", "signal", "config", "handler", "input", "output", "state", "unknown"];
/// The words of Sandglass's SDKs for `retryability`. A guest that writes them may use any category.
const SDK_RETRYABILITY: [&str; 2] = ["retryable", "permanent"];

const RETRYABILITY: [&str; 5] =
    ["never", "after_refresh", "with_backoff", "after_authorization", "reconcile"];
const OUTCOMES: [&str; 3] = ["not_applied", "applied", "unknown"];

// The bounds of a typed failure in Temper.
const TOKEN_MAX_BYTES: usize = 64;
const DIAGNOSTIC_MAX_BYTES: usize = 512;
const DETAILS_MAX: usize = 16;
const DETAIL_MAX_BYTES: usize = 256;

/// Checks the keys of a result that is an object with `success`, and the values that must fit each
/// other.
pub(super) fn check(result: &Value) -> Result<(), String> {
    let (Some(fields), Some(success)) = (result.as_object(), result["success"].as_bool()) else {
        return Ok(());
    };
    if success {
        return only(fields, "a success", &["success", "action", "params"]);
    }
    match given(fields, "typed_failure") {
        Some(typed) => {
            only(fields, "a typed failure", &["success", "typed_failure"])?;
            typed.as_object().map_or(Ok(()), check_typed)
        }
        None => {
            only(fields, "a failure", &["success", "error", "action", "params"])?;
            check_failure(fields)
        }
    }
}

fn given<'a>(fields: &'a Object, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

fn only(fields: &Object, what: &str, keys: &[&str]) -> Result<(), String> {
    let is_absent = |key: &str, value: &Value| value.is_null() && KEYS.contains(&key);
    let mut others = fields.iter().filter(|(key, value)| !is_absent(key, value));
    match others.find(|(key, _)| !keys.contains(&key.as_str())) {
        Some((key, _)) => {
            let key = printable(key);
            Err(format!("{what} has no key `{key}`; its keys are `{}`", keys.join("`, `")))
        }
        None => Ok(()),
    }
}

fn check_failure(fields: &Object) -> Result<(), String> {
    let error = match given(fields, "error") {
        Some(Value::String(error)) => error,
        Some(_) => return Err("`error` must be a text".to_owned()),
        None => return Err("a failure must have an `error` or a `typed_failure`".to_owned()),
    };
    if given(fields, "action").is_some_and(|action| action != NO_ACTION) {
        return Err(format!("`action` of a failure can only be `{NO_ACTION}`"));
    }
    match given(fields, "params").map(|params| params.as_object()) {
        Some(None) => Err("`params` must be an object".to_owned()),
        Some(Some(params)) if params.get("error").is_some_and(|other| other != error) => {
            Err("`error` in `params` is not the `error` of the failure".to_owned())
        }
        _ => Ok(()),
    }
}

fn check_typed(typed: &Object) -> Result<(), String> {
    let unknown = typed.keys().find(|key| !TYPED_KEYS.contains(&key.as_str()));
    if let Some(key) = unknown {
        return Err(format!("`typed_failure` has no key `{}`", printable(key)));
    }
    match given(typed, "version") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(_) => return Err(format!("`version` of `typed_failure` must be {VERSION}")),
        None => return Err(format!("`typed_failure` must have the `version` {VERSION}")),
    }
    for key in ["category", "code", "retryability", "outcome", "diagnostic"] {
        if given(typed, key).is_some_and(|value| !value.is_string()) {
            return Err(format!("`{key}` of `typed_failure` must be a text"));
        }
    }
    let text = |key| given(typed, key).and_then(Value::as_str).unwrap_or_default();
    let (category, retryability) = (text("category"), text("retryability"));
    let is_known = CATEGORIES.contains(&category) || SDK_CATEGORIES.contains(&category);
    if !is_known && !SDK_RETRYABILITY.contains(&retryability) {
        return Err(format!(
            "`category` of `typed_failure` is `{}`; it must be one of `{}`, unless `retryability` \
             is one of `{}`",
            printable(category),
            CATEGORIES.join("`, `"),
            SDK_RETRYABILITY.join("`, `")
        ));
    }
    if RETRYABILITY.contains(&retryability) {
        return check_declaration(typed, category, retryability, text("outcome"));
    }
    Ok(())
}

/// Checks a typed failure in the words of Temper: the values must fit each other, and be short.
fn check_declaration(
    typed: &Object,
    category: &str,
    retryability: &str,
    outcome: &str,
) -> Result<(), String> {
    if !OUTCOMES.contains(&outcome) {
        return Err(format!(
            "`outcome` of `typed_failure` is `{}`; it must be one of `{}`",
            printable(outcome),
            OUTCOMES.join("`, `")
        ));
    }
    let is_unknown = outcome == "unknown";
    if is_unknown != (retryability == "reconcile") || (category == "ambiguous" && !is_unknown) {
        return Err("`outcome` of `typed_failure` is `unknown` if and only if `retryability` is \
                    `reconcile`, and must be so if `category` is `ambiguous`"
            .to_owned());
    }
    let text = |key| given(typed, key).and_then(Value::as_str).unwrap_or_default();
    if !is_token(text("code")) {
        return Err(format!(
            "`code` of `typed_failure` must have from 1 to {TOKEN_MAX_BYTES} letters, digits, and \
             `.`, `_`, `:`, `-`"
        ));
    }
    if text("diagnostic").len() > DIAGNOSTIC_MAX_BYTES {
        let most = DIAGNOSTIC_MAX_BYTES;
        return Err(format!("`diagnostic` of `typed_failure` may have {most} bytes"));
    }
    let is_valid = given(typed, "details").is_none_or(|details| {
        details.as_object().is_some_and(|details| {
            details.len() <= DETAILS_MAX
                && details.iter().all(|(key, value)| is_token(key) && is_detail(value))
        })
    });
    if is_valid {
        return Ok(());
    }
    Err(format!(
        "`details` of `typed_failure` must be an object of at most {DETAILS_MAX} values, each \
         with a `kind` (`string`, `signed`, `unsigned`, `bool`) and a `value` of that kind"
    ))
}

fn is_token(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    (1..=TOKEN_MAX_BYTES).contains(&text.len()) && text.bytes().all(is_part)
}

fn is_detail(detail: &Value) -> bool {
    let value = &detail["value"];
    let is_of_kind = match detail["kind"].as_str() {
        Some("string") => value.as_str().is_some_and(|text| text.len() <= DETAIL_MAX_BYTES),
        Some("signed") => value.is_i64(),
        Some("unsigned") => value.is_u64(),
        Some("bool") => value.is_boolean(),
        _ => false,
    };
    is_of_kind && detail.as_object().is_some_and(|fields| fields.len() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TYPED: &str = r#"{"version":1,"category":"budget","code":"Quota:used",
        "retryability":"never","outcome":"not_applied","diagnostic":"no more",
        "details":{"left":{"kind":"unsigned","value":0}}}"#;

    fn typed(changes: &[(&str, Value)]) -> Result<(), String> {
        let mut typed: Value = serde_json::from_str(TYPED).expect("JSON");
        for (key, value) in changes {
            typed[*key] = value.clone();
        }
        check(&json!({ "success": false, "typed_failure": typed }))
    }

    #[test]
    fn each_form_has_its_keys_and_null_is_absent() {
        for valid in [
            json!({ "success": true }),
            json!({ "success": true, "action": "", "params": {}, "error": null }),
            json!({ "success": false, "error": "no" }),
            json!({ "success": false, "error": "no", "action": "callback",
                    "params": { "error": "no", "exit_code": "" } }),
        ] {
            assert_eq!(check(&valid), Ok(()), "{valid}");
        }
        for (invalid, key) in [
            (json!({ "success": true, "error": "no" }), "`error`"),
            (json!({ "success": true, "extra": null }), "`extra`"),
            (json!({ "success": false }), "`error`"),
            (json!({ "success": false, "error": 7 }), "`error`"),
            (json!({ "success": false, "error": "a", "params": { "error": "b" } }), "`params`"),
            (json!({ "success": false, "error": "a", "params": [] }), "`params`"),
            (json!({ "success": false, "error": "a", "action": "Done" }), "`action`"),
            (json!({ "success": false, "error": "a", "typed_failure": {} }), "`error`"),
        ] {
            let why = check(&invalid).expect_err("invalid");
            assert!(why.contains(key), "{invalid}: {why}");
        }
    }

    #[test]
    fn a_typed_failure_in_the_words_of_temper_is_checked_as_a_whole() {
        assert_eq!(typed(&[]), Ok(()));
        let unknown = [("outcome", json!("unknown")), ("retryability", json!("reconcile"))];
        assert_eq!(typed(&unknown), Ok(()));
        for (key, value) in [
            ("version", json!(2)),
            ("version", json!(1.5)),
            ("version", json!(null)),
            ("category", json!("future")),
            ("category", json!(7)),
            ("code", json!("two words")),
            ("code", json!("x".repeat(65))),
            ("outcome", json!("partial")),
            ("outcome", json!("unknown")),
            ("diagnostic", json!("x".repeat(513))),
            ("details", json!([])),
            ("details", json!({ "left": 0 })),
            ("details", json!({ "left": { "kind": "unsigned", "value": -1 } })),
            ("operation", json!({})),
        ] {
            let why = typed(&[(key, value.clone())]).expect_err("invalid");
            assert!(why.contains(&format!("`{key}`")), "{key} = {value}: {why}");
        }
        let ambiguous = typed(&[("category", json!("ambiguous"))]).expect_err("it is known");
        assert!(ambiguous.contains("`outcome`"), "{ambiguous}");
    }

    #[test]
    fn a_typed_failure_in_the_words_of_the_sdks_may_have_any_category() {
        let of = |category: &str, retryability: Option<&str>| {
            let typed = json!({
                "version": 1, "category": category, "code": "x", "retryability": retryability,
                "outcome": "partial", "details": { "any": [1] },
            });
            check(&json!({ "success": false, "typed_failure": typed }))
        };
        assert_eq!(of("upstream", Some("retryable")), Ok(()));
        assert_eq!(of("upstream", Some("permanent")), Ok(()));
        assert_eq!(of("http", None), Ok(()));
        assert_eq!(of("budget", None), Ok(()));
        for retryability in [None, Some("sometimes")] {
            let why = of("upstream", retryability).expect_err("no category");
            assert!(why.contains("`category` of `typed_failure` is `upstream`"), "{why}");
        }
    }
}
