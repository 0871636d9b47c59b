//! The WIT world `sandglass:integration`, as components import it. Each function passes the boundary
//! under its WIT name; all that is here is the conversion between its types and those of a capability.

mod ask;
mod basics;
mod http;
mod recorded;
mod scratch;
mod signal;
mod telemetry;

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};
use wasmtime::Result;
use wasmtime::component::{HasSelf, Linker};

use crate::store::RunStore;
use sandglass_supervisor::capability::context::{Facts, RunContext};
use sandglass_supervisor::capability::log::FIELDS_MAX_BYTES;
use sandglass_supervisor::functions::Functions;

use super::wasi;

#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    reason = "generated, and described in the WIT package"
)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../sandglass-guest/wit",
        world: "integration",
        imports: {
            "sandglass:integration/http.send": async | trappable,
            "sandglass:integration/http.open": async | trappable,
            "sandglass:integration/http.[method]outgoing-request.write": async | trappable,
            "sandglass:integration/http.[static]outgoing-request.finish": async | trappable,
            "sandglass:integration/http.[method]incoming-response.read": async | trappable,
            "sandglass:integration/secrets.get": async | trappable,
            "sandglass:integration/ask.ask": async | trappable,
            "sandglass:integration/signal.send": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        with: {
            "sandglass:integration/http.outgoing-request": sandglass_supervisor::capability::streams::OutgoingRequest,
            "sandglass:integration/http.incoming-response": sandglass_supervisor::capability::streams::IncomingResponse,
            "sandglass:integration/spans.span": sandglass_supervisor::capability::spans::Handle,
        },
        require_store_data_send: true,
    });
}

pub(crate) use ask::{answer, to_request as to_ask};
pub(crate) use basics::emit;
pub(crate) use bindings::sandglass::integration as interface;
pub(crate) use bindings::{Completion, DispatchContext, Failure, Integration, IntegrationPre};
pub(crate) use interface::types::TypedFailure;
pub(crate) use interface::{ask as wit_ask, http as wit_http, signal as wit_signal};
pub(crate) use signal::to_request as to_signal;

/// The index of the first function of this world among those of components.
const FIRST: usize =
    wasi::command::IMPORTS.len() + wasi::http::IMPORTS.len() + wasi::http::HANDLER.len();

/// The index of the first function behind this world.
pub(crate) const END: usize =
    telemetry::END + scratch::IMPORTS.len() + ask::IMPORTS.len() + signal::IMPORTS.len();

/// Links every function of this world.
pub(crate) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    functions.add_imports(basics::IMPORTS);
    functions.add_imports(http::IMPORTS);
    functions.add_imports(telemetry::IMPORTS);
    functions.add_imports(scratch::IMPORTS);
    functions.add_imports(ask::IMPORTS);
    functions.add_imports(signal::IMPORTS);
    Integration::add_to_linker::<_, HasSelf<RunStore>>(linker, |store| store)
}

impl interface::types::Host for RunStore {}

impl RunStore {
    /// Notes why the present call fails, for reports, and returns the error as the component gets it.
    pub(crate) fn failed<E: fmt::Display, T: From<E>>(&mut self, error: E) -> T {
        self.guest_mut().note_error(&error);
        error.into()
    }
}

/// The error by which a guest ends itself as failed.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) TypedFailure);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the guest raised a failure: {}: {}", self.0.category, self.0.code)
    }
}

impl std::error::Error for Raised {}

/// Parses a JSON object. An empty text stands for an empty object.
fn object(what: &str, text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match sandglass_source::json::read(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(format!("{what} must be a JSON object")),
        Err(error) => Err(format!("{what} is no JSON: {error}")),
    }
}

/// Parses a JSON object within the bound on the fields of one log line, event or span.
fn fields_of(what: &str, text: &str) -> Result<Map<String, Value>, String> {
    check_length(what, text, FIELDS_MAX_BYTES).and_then(|()| object(what, text))
}

pub(crate) fn check_length(what: &str, text: &str, max: u32) -> Result<(), String> {
    if text.len() > max as usize {
        return Err(format!("{what} has {} bytes, and {max} are allowed", text.len()));
    }
    Ok(())
}

impl DispatchContext {
    /// The context of a handler run.
    ///
    /// # Errors
    /// It comes from a recording, and cannot be read.
    pub(crate) fn of(context: &RunContext) -> Result<Self> {
        match context.facts() {
            Some(facts) => Ok(facts.into()),
            None => Self::read(context.json()),
        }
    }

    /// Reads the JSON that core modules get.
    fn read(context: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Given {
            tenant: String,
            entity_type: String,
            entity_id: String,
            trigger_action: String,
            trigger_params: Value,
            entity_state: Value,
            integration_config: std::collections::BTreeMap<String, String>,
            trace_id: String,
            agent_id: Option<String>,
            session_id: Option<String>,
            dispatch_id: String,
            deadline_remaining_ms: u64,
            attempt: u32,
        }
        let given: Given = serde_json::from_slice(context)?;
        Ok(Self {
            tenant: given.tenant,
            entity_type: given.entity_type,
            entity_id: given.entity_id,
            trigger_action: given.trigger_action,
            trigger_params: given.trigger_params.to_string(),
            entity_state: given.entity_state.to_string(),
            integration_config: given.integration_config.into_iter().collect(),
            trace_id: given.trace_id,
            agent_id: given.agent_id,
            session_id: given.session_id,
            dispatch_id: given.dispatch_id,
            deadline_remaining_ms: given.deadline_remaining_ms,
            attempt: given.attempt,
        })
    }
}

impl From<&Facts> for DispatchContext {
    fn from(facts: &Facts) -> Self {
        let Facts { dispatch, id, trace, remaining_ms, .. } = facts;
        let context = &dispatch.context;
        let params = context.params.iter().map(|(name, value)| (name.clone(), value.clone()));
        Self {
            tenant: context.tenant.clone(),
            entity_type: dispatch.entity.entity_type().to_owned(),
            entity_id: dispatch.entity.id().to_owned(),
            trigger_action: dispatch.action.clone(),
            trigger_params: Value::Object(params.collect()).to_string(),
            entity_state: context.entity_state.to_string(),
            integration_config: facts.config().clone().into_iter().collect(),
            trace_id: trace.trace_id.to_string(),
            agent_id: context.agent_id.clone(),
            session_id: context.session_id.clone(),
            dispatch_id: id.to_string(),
            deadline_remaining_ms: *remaining_ms,
            attempt: dispatch.attempt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::{DispatchId, TraceContext};
    use sandglass_supervisor::dispatch::{Context, Dispatch};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn components_and_core_modules_get_the_same_context() {
        let params = json!({ "z": [1.5, 1e300, -0.0], "a": { "y": null, "b": "\u{1f}é" } });
        let context = Context {
            params: serde_json::from_value(params).expect("an object"),
            entity_state: json!({ "n": 18_446_744_073_709_551_615_u64, "fields": {} }),
            config: [("url".to_owned(), "https://a".to_owned())].into(),
            agent_id: Some("agent".to_owned()),
            ..Context::default()
        };
        let entity = "Session/1".parse().expect("valid");
        let dispatch = Arc::new(Dispatch::new(entity, "Begin", context).attempt(3));
        let (id, trace) = (DispatchId::from_bytes([7; 16]), TraceContext::root([9; 24]));
        let context = RunContext::new(Facts {
            dispatch,
            id,
            trace,
            remaining_ms: 12,
            module: "guest".into(),
            resolved: Some([("url".to_owned(), "https://b".to_owned())].into()),
        });
        let read = DispatchContext::read(context.json()).expect("it was just made");
        let converted = DispatchContext::of(&context).expect("nothing to read");
        assert_eq!(format!("{converted:?}"), format!("{read:?}"));
    }
}
