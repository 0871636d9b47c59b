//! Events are read and written exactly as records and responses contain them.

use sandglass_workflow::decision::Decision;
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::{Kind, RunEvent};
use sandglass_workflow::json_size;
use sandglass_workflow::projection::StepResult;
use serde_json::{Value, json};

/// Payloads of each kind, with and without what may be absent.
fn payloads() -> Vec<(&'static str, Value)> {
    let error = json!({ "code": "run_too_large", "message": "m", "details": { "nodeId": 5 } });
    let plain = json!({ "code": "a-pack's", "message": "m" });
    vec![
        (
            "run.started",
            json!({
                "workflowId": "w", "inputs": { "a": 1 }, "transport": "rest", "engineVersion": "0",
            }),
        ),
        (
            "run.started",
            json!({
                "workflowId": "w", "inputs": {}, "transport": "rest", "engineVersion": "0",
                "tags": ["t"], "metadata": { "m": null }, "parentRunId": "p",
            }),
        ),
        ("run.completed", json!({ "outputs": { "a": [1.0, null] }, "durationMs": 1 })),
        ("run.completed", json!({})),
        ("run.failed", json!({ "error": error, "failedNodeId": 5, "durationMs": 1 })),
        ("run.failed", json!({ "error": plain })),
        ("run.cancelled", json!({ "reason": "r", "parentRunId": "p", "durationMs": 1 })),
        ("node.started", json!({ "nodeId": "n", "typeId": "t", "attempt": 0 })),
        ("node.completed", json!({ "nodeId": "n", "outputs": {} })),
        ("node.failed", json!({ "nodeId": "n", "error": error })),
        (
            "node.suspended",
            json!({ "nodeId": "n", "interruptId": "n-1", "kind": "external-event", "key": "k" }),
        ),
        (
            "node.suspended",
            json!({
                "nodeId": "n", "interruptId": "n-1", "kind": "low-confidence", "key": "k",
                "reason": "low-confidence", "agentId": "a",
            }),
        ),
        ("node.resumed", json!({ "nodeId": "n", "interruptId": "n-1", "resumeValue": null })),
        ("node.retried", json!({ "nodeId": "n", "attempt": 2, "lastError": plain })),
        ("node.skipped", json!({ "nodeId": "n", "reason": "r" })),
        ("node.cancelled", json!({ "nodeId": "n", "reason": "r" })),
        (
            "interrupt.requested",
            json!({
                "kind": "conversation.start", "key": "k", "data": { "a": 1 },
                "resumeSchema": {}, "timeoutMs": 7,
            }),
        ),
        ("interrupt.requested", json!({ "kind": "custom", "key": "k", "data": {} })),
        (
            "interrupt.resolved",
            json!({ "nodeId": "n", "interruptId": "n-1", "kind": "custom", "resumeValue": [] }),
        ),
        ("channel.written", json!({ "channel": "c", "value": null })),
        (
            "channel.written",
            json!({
                "channel": "c", "value": 1, "reducer": "append",
                "writtenAt": "2026-05-04T10:15:30.000Z",
            }),
        ),
        ("variable.changed", json!({ "name": "v", "next": 1, "nodeId": "n" })),
        ("variable.changed", json!({ "name": "v", "next": 1, "previous": null, "nodeId": "n" })),
        ("log.appended", json!({ "level": "warn", "message": "m", "nodeId": "n" })),
        ("workflow.loopback-limit", json!({ "nodeId": "n", "iterations": 3, "limit": 2 })),
        ("cap.breached", json!({ "kind": "wasm-fuel", "limit": 1, "observed": 2, "nodeId": "n" })),
        ("cap.breached", json!({ "kind": "run-duration", "limit": 1, "observed": 2 })),
        (
            "replay.diverged",
            json!({
                "sourceRunId": "r", "atSequence": 1, "originalEventId": "r:1",
                "divergenceKind": "type-mismatch", "divergencePoint": "node.failed",
                "nodeId": null, "what": "w", "recorded": "r", "came": "c",
            }),
        ),
        (
            "runOrchestrator.decided",
            json!({
                "agentId": "a", "iteration": 1,
                "decision": { "kind": "next-worker", "nextWorkerIds": ["n"], "confidence": 1 },
            }),
        ),
        (
            "runOrchestrator.decided",
            json!({
                "agentId": "a", "iteration": 1,
                "decision": {
                    "kind": "terminate", "reason": "r", "confidence": 0.5,
                    "successCriteria": [{ "key": "k", "met": true }],
                },
            }),
        ),
        (
            "runOrchestrator.decided",
            json!({
                "agentId": "a", "iteration": 1, "decision": { "kind": "ask-user", "prompt": "p" },
            }),
        ),
        (
            "node.dispatched",
            json!({ "childRunId": "c", "childWorkflowId": "w", "childStatus": "cancelled" }),
        ),
        ("core.workflowChain.event", child(json!({ "phase": "dispatch.began" }))),
        (
            "core.workflowChain.event",
            child(json!({ "phase": "dispatch.succeeded", "childRunId": "c" })),
        ),
        ("core.workflowChain.event", child(json!({ "phase": "dispatch.failed", "error": plain }))),
        (
            "core.workflowChain.event",
            child(json!({ "phase": "child.completed", "childRunId": "c" })),
        ),
        (
            "core.workflowChain.event",
            child(json!({ "phase": "child.failed", "childRunId": "c", "error": error })),
        ),
        (
            "core.workflowChain.event",
            child(json!({ "phase": "child.cancelled", "childRunId": "c" })),
        ),
        (
            "core.workflowChain.event",
            child(json!({
                "phase": "output.harvested", "childRunId": "c", "harvestedKeys": ["v"],
            })),
        ),
    ]
}

fn child(mut phase: Value) -> Value {
    phase["workerId"] = json!("w");
    phase["parentRunId"] = json!("p");
    phase
}

#[test]
fn an_event_is_written_as_it_was_read() {
    for (kind, payload) in payloads() {
        let origin = json!({ "dispatch": "01890a5dac96774bbcceb302099a8057", "attempt": 1 });
        for event in [
            json!({ "type": kind, "payload": payload }),
            json!({ "type": kind, "payload": payload, "nodeId": "n", "origin": origin }),
        ] {
            let read: RunEvent = serde_json::from_value(event.clone()).expect(kind);
            assert_eq!(read.kind().as_str(), kind);
            assert_eq!(json!(read), event);
            assert_eq!(read.payload.fields(), payload);
            assert_eq!(read.payload.json_size(), json_size(&payload), "{payload}");
        }
    }
    for kind in Kind::ALL {
        assert!(payloads().iter().any(|(one, _)| *one == kind.as_str()), "{kind} has no example");
    }
}

#[test]
fn a_result_without_the_form_of_one_is_an_error_and_not_empty() {
    for unreadable in [
        json!(null),
        json!({}),
        json!({ "events": [{ "type": "node.exploded", "payload": {} }] }),
        json!({ "events": [{ "type": "node.completed", "payload": { "nodeId": "n" } }] }),
    ] {
        serde_json::from_value::<StepResult>(unreadable).expect_err("it is no result");
    }
}

#[test]
fn codes_of_packs_are_kept_and_a_failure_that_would_repeat_is_not_retried() {
    let never = [
        "capability_not_provided",
        "interrupt_timeout",
        "run_interrupted",
        "run_too_large",
        "wasm_execution_timeout",
        "wasm_fuel_exhausted",
        "wasm_memory_exceeded",
    ];
    for code in never.into_iter().chain(["host_lost", "wasm_trap", "Some-pack's"]) {
        let error = RunError::new(code, "");
        assert_eq!(error.code.is_retryable(), !never.contains(&code), "{code}");
        assert_eq!(error.code.to_string(), code);
        assert_eq!(json!(error), json!({ "code": code, "message": "no message was given" }));
    }
    assert_eq!(ErrorCode::from(""), ErrorCode::Error);
}

#[test]
fn a_decision_is_one_of_the_protocols_kinds() {
    for (decision, why) in [
        (json!([]), "it must be an object"),
        (json!({ "kind": "rest" }), "`kind` must be"),
        (json!({ "kind": "ask-user" }), "`prompt` must be"),
        (json!({ "kind": "next-worker", "nextWorkerIds": [] }), "1 to 256 ids"),
        (json!({ "kind": "terminate", "confidence": 2 }), "from 0 to 1"),
        (json!({ "kind": "terminate", "prompt": "p" }), "which this kind doesn't have"),
        (json!({ "kind": "terminate", "successCriteria": [{ "key": "k" }] }), "{key, met}"),
    ] {
        let refused = Decision::parse(&decision).expect_err("no decision");
        assert!(refused.contains(why), "{decision}: {refused}");
    }
}
