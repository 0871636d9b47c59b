//! An asynchronous component of the world 0.2, with raw bindings: what it does is in its configuration
//! (`does`), and most of that in several tasks at a time.

mod misbehaving;
mod outside;
mod random;
mod waiting;
mod wasi_http;

use std::collections::BTreeMap;

use serde_json::{Value, json};

#[allow(missing_docs, unsafe_code, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({
        path: ["../sandglass-guest/wit", "../sandglass-guest/wit-0.2"],
        world: "sandglass:integration/integration@0.2.0",
        generate_all,
    });
}

use bindings::{Completion, DispatchContext, Failure, Guest};

struct Handler;

/// The configuration of the handler.
struct Config(BTreeMap<String, String>);

impl Config {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str, default: u64) -> u64 {
        self.0.get(name).and_then(|text| text.parse().ok()).unwrap_or(default)
    }
}

/// What a handler returns: params, or why there are none.
type Answer = Result<Value, String>;

impl Guest for Handler {
    async fn handle(context: DispatchContext) -> Result<Completion, Failure> {
        let config = Config(context.integration_config.into_iter().collect());
        let answer = match config.text("does") {
            "echo" => Ok(json!({ "entity": context.entity_id, "action": context.trigger_action })),
            "sleep" => waiting::sleep(&config).await,
            "sleep_many" => waiting::sleep_many(&config).await,
            "first" => waiting::first(&config).await,
            "wasi" => waiting::wasi().await,
            "print" => waiting::print().await,
            "report" => waiting::report().await,
            "cancel_ask" => waiting::cancel_ask(&config).await,
            "ask" => waiting::ask(&config).await,
            "get" => outside::get(&config).await,
            "get_many" => outside::get_many(&config).await,
            "wasi_get" => wasi_http::get_many(&config).await,
            "wasi_upload" => wasi_http::upload(&config).await,
            "wasi_fail" => wasi_http::fail(&config).await,
            "wasi_alone" => wasi_http::alone().await,
            "wasi_hoard" => wasi_http::hoard_errors().await,
            "hesitate" => outside::hesitate(&config).await,
            "upload" => outside::upload(&config).await,
            "denied" => outside::denied().await,
            "random" => random::execute(&config).await,
            does => misbehaving::call(does, &config)
                .await
                .unwrap_or_else(|| Err(format!("nothing is called `{does}`"))),
        };
        match answer {
            Ok(params) => {
                Ok(Completion { action: Some("Finish".to_owned()), params: params.to_string() })
            }
            Err(why) => Err(Failure::Plain(why)),
        }
    }
}

#[allow(unsafe_code, reason = "generated")]
mod export {
    crate::bindings::export!(Handler with_types_in crate::bindings);

    use crate::Handler;
}
