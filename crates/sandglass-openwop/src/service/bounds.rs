//! The limits that a request sets in `configurable`, with the other keys that the protocol reserves.

use sandglass_workflow::node::orchestrator::ESCALATION_THRESHOLD;
use serde_json::{Map, Value};

use super::Error;
use crate::runs::Bounds;

/// Largest `configurable`, in bytes of JSON: it is in each request to a node.
const CONFIGURABLE_MAX_BYTES: usize = 64 << 10;

/// The limits in `configurable`, which is at `path` of a request.
///
/// # Errors
/// A reserved key has an invalid value, or all are too large.
pub(crate) fn bounds(configurable: &Map<String, Value>, path: &str) -> Result<Bounds, Error> {
    let bytes = serde_json::to_string(configurable).map_or(usize::MAX, |text| text.len());
    if bytes > CONFIGURABLE_MAX_BYTES {
        let message =
            format!("`configurable` has {bytes} bytes, and {CONFIGURABLE_MAX_BYTES} are allowed");
        return Err(Error::invalid(path, message));
    }
    let wrong = |key: &str, what: &str| {
        Error::invalid(format!("{path}/{key}"), format!("`{key}` must be {what}"))
    };
    let check = |key: &str, what: &str, is_valid: fn(&Value) -> bool| {
        let is_valid = configurable.get(key).is_none_or(is_valid);
        if is_valid { Ok(()) } else { Err(wrong(key, what)) }
    };
    let positive = |key: &str| {
        let number = |value| whole(value).filter(|number| *number > 0);
        let what = "a whole number from 1 on";
        configurable.get(key).map(|value| number(value).ok_or_else(|| wrong(key, what))).transpose()
    };
    check("model", "a text that isn't empty", |model| {
        model.as_str().is_some_and(|model| !model.is_empty())
    })?;
    check("temperature", "a number from 0 to 2", |temperature| {
        temperature.as_f64().is_some_and(|temperature| (0.0..=2.0).contains(&temperature))
    })?;
    check(ESCALATION_THRESHOLD, "a number from 0 to 1", |threshold| {
        threshold.as_f64().is_some_and(|threshold| (0.0..=1.0).contains(&threshold))
    })?;
    positive("maxTokens")?;
    check("promptOverrides", "an object of texts", |texts| {
        texts.as_object().is_some_and(|texts| texts.values().all(Value::is_string))
    })?;
    check("mockProvider", "left out: this host has no providers to mock", |_| false)?;
    Ok(Bounds {
        run_timeout_ms: positive("runTimeoutMs")?,
        max_loop_iterations: positive("maxLoopIterations")?,
        recursion_limit: positive("recursionLimit")?,
    })
}

/// A whole number from 0 on. 3.0 is one, as in JSON Schema; a number that is too large becomes the largest
/// `u64`.
pub(crate) fn whole(value: &Value) -> Option<u64> {
    let number = value.as_number()?;
    if let Some(whole) = number.as_u64() {
        return Some(whole);
    }
    let float = number.as_f64().filter(|float| *float >= 0.0 && float.fract() == 0.0)?;
    // A cast of a float saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
    Some(float as u64)
}
