//! The discovery document: what the host supports, and its limits.

use sandglass_host::ENGINE_VERSION;
use serde_json::{Map, Value, json};

use crate::library::Library;
use crate::settings::{Settings, millis};

/// The version of the protocol.
const PROTOCOL_VERSION: &str = "1.0";
/// The version of the events in a log.
pub(crate) const EVENT_LOG_SCHEMA_VERSION: u64 = 2;
/// The versions of the ABI of packs that are loaded.
const ABI_VERSIONS: [u32; 1] = [1];

/// The document at `/.well-known/openwop`: each family is a property of the root, and all are
/// repeated under `capabilities`.
pub(crate) fn document(library: &Library, settings: &Settings) -> Value {
    let families = json!({
        "supportedEnvelopes": [],
        "schemaVersions": {},
        "limits": {
            // The host supports no envelopes, so there are no rounds of them.
            "clarificationRounds": 0,
            "schemaRounds": 0,
            "envelopesPerTurn": 0,
            "maxNodeExecutions": settings.max_node_executions,
            "maxRunDurationMs": millis(settings.max_run_duration),
            "maxLoopIterations": settings.max_loop_iterations,
            "maxRequestBodyBytes": settings.max_request_body_bytes,
        },
        "fixtures": library.definitions().collect::<Vec<_>>(),
        "replay": {
            "supported": true,
            "modes": ["replay", "branch"],
            "divergenceDetection": true,
        },
        "nodePackRuntimes": {
            "wasm": {
                "supported": true,
                "abiVersions": ABI_VERSIONS,
                "maxMemoryBytes": settings.packs.max_memory_bytes,
                "maxExecutionMs": millis(settings.packs.max_execution),
                "loadedPacks": library.packs().collect::<Vec<_>>(),
                "engine": "wasmtime",
                "engineVersion": ENGINE_VERSION,
            },
        },
        "multiAgent": { "executionModel": { "supported": true, "version": 1 } },
        // The capabilities behind `core.orchestrator.supervisor` and `core.dispatch`.
        "agents": { "supported": false, "orchestrator": true, "dispatch": true },
        "supportedTransports": ["rest"],
        "eventLogSchemaVersion": EVENT_LOG_SCHEMA_VERSION,
        "configurable": {
            "type": "object",
            "properties": {
                "runTimeoutMs": { "type": "integer", "minimum": 1 },
                "maxLoopIterations": { "type": "integer", "minimum": 1 },
                "recursionLimit": { "type": "integer", "minimum": 1 },
                "escalationThreshold": { "type": "number", "minimum": 0, "maximum": 1 },
            },
        },
        "runtimeCapabilities": [],
        "unimplementedEndpoints": [
            "POST /v1/runs:bulk-cancel",
            "POST /v1/runs/{runId}:pause",
            "POST /v1/runs/{runId}:resume",
            "GET /v1/runs/{runId}/artifacts/{artifactId}",
            "GET /v1/interrupts/{token}",
            "POST /v1/interrupts/{token}",
            "POST /v1/webhooks",
            "DELETE /v1/webhooks/{webhookId}",
        ],
        "idempotency": { "crossRegion": "single-region" },
    });
    let mut document = Map::new();
    document.insert("protocolVersion".to_owned(), json!(PROTOCOL_VERSION));
    document.insert(
        "implementation".to_owned(),
        json!({ "name": "sandglass", "version": env!("CARGO_PKG_VERSION"), "vendor": "Sandglass" }),
    );
    document.insert("capabilities".to_owned(), families.clone());
    if let Value::Object(families) = families {
        document.extend(families);
    }
    Value::Object(document)
}
