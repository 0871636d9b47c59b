//! The entity's state that `sandglass run --state` provides.

use std::path::Path;

use sandglass_host::file;
use sandglass_model::{EntityRef, Object, Rejection};
use sandglass_source::json;
use serde_json::Value;

use super::invalid;

/// Largest state, in bytes: as much as the parameters of an action.
const STATE_MAX_BYTES: u64 = 1 << 20;

/// The keys of a state that the host knows, with the type of each.
type Known = (&'static str, fn(&Value) -> bool, &'static str);
const KNOWN: [Known; 8] = [
    ("entity_type", Value::is_string, "a text"),
    ("entity_id", Value::is_string, "a text"),
    ("status", Value::is_string, "a text"),
    ("sequence_nr", Value::is_u64, "a number"),
    ("fields", Value::is_object, "an object"),
    ("counters", Value::is_object, "an object"),
    ("booleans", Value::is_object, "an object"),
    ("lists", Value::is_object, "an object"),
];

/// Reads the state from `argument`: JSON if it begins with a brace, or else the path of a file.
pub(super) fn read(argument: &str) -> Result<Object, Rejection> {
    let is_json = argument.trim_start().starts_with('{');
    let read = || {
        if is_json {
            return Ok(argument.to_owned());
        }
        let path = argument.strip_prefix('@').unwrap_or(argument);
        file::read_text(Path::new(path), STATE_MAX_BYTES)
    };
    let text = read().map_err(|error| invalid(format!("--state: {error}")))?;
    let of = if is_json { String::new() } else { format!(" {argument}") };
    let wrong = |why: String| invalid(format!("--state{of}: {why}"));
    let state: Object = json::read(&text).map_err(|error| {
        wrong(format!("it must be a JSON object, such as {{\"fields\":{{}}}}: {error}"))
    })?;
    for (key, is_of_type, kind) in KNOWN {
        if state.get(key).is_some_and(|value| !is_of_type(value)) {
            return Err(wrong(format!("`{key}` must be {kind}")));
        }
    }
    let has_known = KNOWN.iter().any(|(key, ..)| state.contains_key(*key));
    if let (false, Some((key, _))) = (has_known, state.first_key_value()) {
        return Err(wrong(format!(
            "`{key}` is no key of an entity's state; write the entity's fields as \
             {{\"fields\":{{\"{key}\": ...}}}}"
        )));
    }
    Ok(state)
}

/// The type and the id of the entity, as far as the argument or else the state names them. They must
/// not contradict each other.
pub(super) fn entity(
    argument: Option<&EntityRef>,
    state: &Object,
) -> Result<(Option<String>, Option<String>), Rejection> {
    let named = |key: &str, argument: Option<&str>| {
        let stated = state.get(key).and_then(Value::as_str);
        if let (Some(stated), Some(argument)) = (stated, argument)
            && stated != argument
        {
            return Err(invalid(format!(
                "--state has the `{key}` `{stated}`, and --entity `{argument}`; omit one of them"
            )));
        }
        Ok(argument.or(stated).map(str::to_owned))
    };
    Ok((
        named("entity_type", argument.map(EntityRef::entity_type))?,
        named("entity_id", argument.map(EntityRef::id))?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_and_its_known_keys_have_types() {
        let state = read(r#" {"status":"Open","fields":{"n":1},"item_count":2}"#).expect("valid");
        assert_eq!((&state["status"], &state["item_count"]), (&"Open".into(), &2.into()));
        assert!(read("{}").expect("all is default").is_empty());
        for (text, says) in [
            ("{\"fields\":\n {\"a\" 1}}", "line 2 column 7"),
            (r#"{"fields":[]}"#, "`fields` must be an object"),
            (r#"{"sequence_nr":-1}"#, "`sequence_nr` must be a number"),
            (r#"{"total":3}"#, r#"`total` is no key of an entity's state"#),
            (r#"{"a":1} x"#, "trailing"),
            ("no/such/file", "no/such/file"),
        ] {
            let rejection = read(text).expect_err(text);
            assert!(rejection.message.starts_with("--state"), "{rejection}");
            assert!(rejection.message.contains(says), "{rejection}");
        }
    }

    #[test]
    fn the_state_names_the_entity_unless_the_arguments_do() {
        let state = read(r#"{"entity_type":"Order","entity_id":"7"}"#).expect("valid");
        let of = |argument: Option<&str>| {
            entity(argument.map(|entity| entity.parse().expect("valid")).as_ref(), &state)
        };
        let order = (Some("Order".to_owned()), Some("7".to_owned()));
        assert_eq!(of(None), Ok(order.clone()));
        assert_eq!(of(Some("Order/7")), Ok(order));
        assert!(of(Some("Order/8")).expect_err("two ids").message.contains("`entity_id` `7`"));
        assert_eq!(entity(None, &Object::new()), Ok((None, None)));
    }
}
