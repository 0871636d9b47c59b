//! The handler of the incident: runs the one tool call that the trigger's params
//! ask for. `fetch` waits for a service to answer; `compute` never comes back.

use sandglass_guest::{Failure, handler, http, json, progress};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
#[serde(tag = "tool", rename_all = "snake_case")]
enum ToolCall {
    Fetch { url: String },
    Compute,
}

#[derive(Serialize)]
struct ToolResult {
    status: u16,
    body: String,
}

#[handler(action = "Finish")]
fn run_tools(call: ToolCall) -> Result<ToolResult, Failure> {
    match call {
        ToolCall::Fetch { url } => fetch(&url),
        ToolCall::Compute => compute(),
    }
}

fn fetch(url: &str) -> Result<ToolResult, Failure> {
    // The only sign of life it gives. Nothing waits for it, nothing depends on it.
    let _ = progress::emit(json!({ "calling": url }));
    let response = http::Request::get(url).send()?;
    Ok(ToolResult { status: response.status(), body: response.text()?.to_owned() })
}

/// A sum that has no end: the guest never calls the host again.
#[inline(never)]
fn compute() -> Result<ToolResult, Failure> {
    let mut sum: u64 = 0;
    loop {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
    }
}
