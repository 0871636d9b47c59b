//! The definitions of workflows, as clients see them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use sandglass_workflow::masks::mask_keys;
use serde_json::Value;

use super::error::Error;
use super::path::Segments;
use super::{OpenWop, answer};
use crate::code::Code;
use crate::service;

/// `GET /v1/workflows/{workflowId}`
pub(super) async fn read(
    State(host): State<OpenWop>,
    Segments(id): Segments<String>,
) -> Result<Response, Error> {
    let definition = host.engine().library.definition(&id).ok_or(service::Error::NoWorkflow)?;
    let mut document = serde_json::from_str(&definition.canonical).map_err(|error| {
        tracing::error!(workflow = %definition.id, %error, "a definition cannot be understood");
        Error::new(Code::Internal, "the definition can't be understood; the host's log says why")
    })?;
    mask_defaults(&mut document);
    Ok(answer(StatusCode::OK, document))
}

/// Masks the defaults of sensitive variables and channels: they may be values of runs.
fn mask_defaults(definition: &mut Value) {
    let variables = definition.get_mut("variables").and_then(Value::as_array_mut);
    for variable in variables.into_iter().flatten() {
        mask_default(variable, "defaultValue");
    }
    let channels = definition.get_mut("channels").and_then(Value::as_object_mut);
    for (_, channel) in channels.into_iter().flatten() {
        mask_default(channel, "default");
    }
}

fn mask_default(declared: &mut Value, key: &str) {
    if declared.get("sensitive").and_then(Value::as_bool) == Some(true) {
        mask_keys(declared, |name| name == key);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_of_sensitive_values_are_masked() {
        let mut definition = json!({
            "variables": [
                { "name": "open", "defaultValue": 1 },
                { "name": "secret", "defaultValue": "hush", "sensitive": true },
                { "name": "none", "sensitive": true },
            ],
            "channels": {
                "open": { "default": 1, "sensitive": false },
                "secret": { "default": ["hush"], "sensitive": true },
            },
        });
        mask_defaults(&mut definition);
        assert!(!definition.to_string().contains("hush"), "{definition}");
        assert_eq!(definition["variables"][0]["defaultValue"], 1);
        assert_eq!(definition["channels"]["open"]["default"], 1);
        assert!(definition["variables"][2].get("defaultValue").is_none());
        // Neither is required.
        let mut none = json!({});
        mask_defaults(&mut none);
        assert_eq!(none, json!({}));
    }
}
