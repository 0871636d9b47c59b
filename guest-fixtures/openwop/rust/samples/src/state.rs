//! Nodes that read and write what their run keeps.

use node_pack::{Outcome, Request, Value, host, json};

use crate::hex;

/// Reads, writes and reads again the channel named by `channel` and the variable named by
/// `variable`, each where it is named. What is written is `write` and `set`, or, as it stands
/// and whether it is JSON or not, `writeText` and `setText`.
///
/// Answers `channelBefore`, `writeStatus`, `channelAfter`, `variableBefore`, `setStatus` and
/// `variableAfter`; null is what wasn't there or wasn't done.
pub(crate) fn state(request: &Request) -> Result<Outcome, String> {
    let mut saw = json!({});
    if let Some(channel) = request.text("channel")? {
        saw["channelBefore"] = json!(host::channel_read(channel));
        saw["writeStatus"] = json!(
            written(request, "write", "writeText")?
                .map(|value| host::channel_write(channel, &value))
        );
        saw["channelAfter"] = json!(host::channel_read(channel));
    }
    if let Some(variable) = request.text("variable")? {
        saw["variableBefore"] = json!(host::variable_get(variable));
        saw["setStatus"] = json!(
            written(request, "set", "setText")?.map(|value| host::variable_set(variable, &value))
        );
        saw["variableAfter"] = json!(host::variable_get(variable));
    }
    Ok(Outcome::Completed(saw))
}

/// Counts in the variable that `variable` names, else in `effects`, and answers `{ random, count }`:
/// 8 random bytes as hexadecimal digits, and how often it was counted.
pub(crate) fn effect(request: &Request) -> Result<Outcome, String> {
    let variable = request.text("variable")?.unwrap_or("effects");
    let random: [u8; 8] = host::random();
    let before = host::variable_get(variable).as_ref().and_then(Value::as_u64).unwrap_or_default();
    let count = before.saturating_add(1);
    match host::variable_set(variable, &count.to_string()) {
        0 => Ok(Outcome::Completed(json!({ "random": hex(&random), "count": count }))),
        status => Ok(Outcome::Failed {
            code: "variable_not_set".to_owned(),
            message: format!("variable `{variable}` could not be set: status {status}"),
            details: json!({ "status": status }),
        }),
    }
}

fn written(request: &Request, json: &str, text: &str) -> Result<Option<String>, String> {
    Ok(match request.text(text)? {
        Some(text) => Some(text.to_owned()),
        None => request.input(json).map(Value::to_string),
    })
}
