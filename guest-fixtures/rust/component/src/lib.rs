//! A component that uses each import of the world by its raw bindings, and WASI through
//! its standard library, one at a time: its configuration says which (`does`).

mod host;
mod outside;
mod wasi;
mod wasi_streams;

use std::collections::BTreeMap;

use sandglass_guest::bindings::{Completion, DispatchContext, Failure, Guest, export};
use serde_json::{Value, json};

struct Handler;

/// What a handler comes to: params, or why there are none.
type Answer = Result<Value, String>;

impl Guest for Handler {
    fn handle(context: DispatchContext) -> Result<Completion, Failure> {
        let config: BTreeMap<_, _> = context.integration_config.iter().cloned().collect();
        let does = config.get("does").map_or("echo", String::as_str);
        let url = config.get("url").map_or("", String::as_str);
        let answer = match does {
            "answer_no_json" => {
                return Ok(Completion { action: None, params: "{".to_owned() });
            }
            "answer_a_list" => {
                return Ok(Completion { action: None, params: "[1]".to_owned() });
            }
            "answer_too_much" => {
                let params = format!("{{\"x\":\"{}\"}}", "x".repeat(2 << 20));
                return Ok(Completion { action: None, params });
            }
            "fail_typed" => return Err(Failure::Typed(host::rate_limited())),
            "echo" => Ok(echo(&context)),
            "get" => outside::get(url),
            "download" => outside::download(url),
            "upload" => outside::upload(url),
            does => host::call(does)
                .or_else(|| wasi::call(does))
                .or_else(|| wasi_streams::call(does, url))
                .unwrap_or_else(|| Err(format!("nobody knows how to `{does}`"))),
        };
        match answer {
            Ok(params) => {
                Ok(Completion { action: Some("Finish".to_owned()), params: params.to_string() })
            }
            Err(why) => Err(Failure::Plain(why)),
        }
    }
}

fn echo(context: &DispatchContext) -> Value {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    json!({
        "tenant": context.tenant,
        "entity": format!("{}/{}", context.entity_type, context.entity_id),
        "action": context.trigger_action,
        "params": parsed(&context.trigger_params),
        "state": parsed(&context.entity_state),
        "attempt": context.attempt,
    })
}

export!(Handler);
