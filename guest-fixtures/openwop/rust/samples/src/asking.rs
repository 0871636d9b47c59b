//! Nodes that wait for a person, in the two ways that the ABI has.

use node_pack::{Outcome, Request, Value, host, json};

/// Asks for an approval by the import. `key` is the interrupt's, else it is made of the run and
/// the node; `title`, `artifactId` and `timeoutMs` go into the payload. Answers `{ decision }`,
/// what the run was resumed with.
pub(crate) fn ask(request: &Request) -> Result<Outcome, String> {
    Ok(match host::interrupt(&approval(request)?) {
        Some(decision) => Outcome::Completed(json!({ "decision": decision })),
        None => unanswered(),
    })
}

/// Asks the same by a response that suspends. Invoked again, it has the answer as its input
/// `resumeValue`, and gets it once more by the import, for the same key. Answers
/// `{ decision, byInterrupt }`.
pub(crate) fn ask_by_response(request: &Request) -> Result<Outcome, String> {
    let payload = approval(request)?;
    let Some(decision) = request.input("resumeValue") else {
        return Ok(Outcome::Suspended(payload));
    };
    Ok(match host::interrupt(&payload) {
        Some(again) => Outcome::Completed(json!({ "decision": decision, "byInterrupt": again })),
        None => unanswered(),
    })
}

fn approval(request: &Request) -> Result<Value, String> {
    let key = match request.text("key")? {
        Some(key) => key.to_owned(),
        None => format!("{}:{}:0", request.run_id, request.node_id),
    };
    let mut payload = json!({
        "kind": "approval",
        "key": key,
        "data": {
            "artifactId": request.text("artifactId")?.unwrap_or("sample"),
            "artifactType": "sample",
            "title": request.text("title")?.unwrap_or("May this go on?"),
            "actions": ["accept", "reject"],
        },
    });
    if let Some(timeout_ms) = request.count("timeoutMs")? {
        payload["timeoutMs"] = json!(timeout_ms);
    }
    Ok(payload)
}

/// A host that answers with nothing breaks the ABI: there is a value, or the guest is unwound.
fn unanswered() -> Outcome {
    Outcome::Failed {
        code: "interrupt_unanswered".to_owned(),
        message: "the host came back from an interrupt without JSON".to_owned(),
        details: Value::Null,
    }
}
