//! The handler of the incident: runs the one tool call that the trigger's params
//! ask for. `fetch` waits for a service to answer; `compute` never comes back.

use abi::{Answer, Value, json};

abi::guest!(run_tools);

fn run_tools(context: &Value) -> Answer {
    let call = &context["trigger_params"];
    match call["tool"].as_str() {
        Some("fetch") => fetch(&call["url"]),
        Some("compute") => compute(),
        _ => Answer::Failure("params must name a tool: `fetch` or `compute`".into()),
    }
}

fn fetch(url: &Value) -> Answer {
    let Some(url) = url.as_str() else {
        return Answer::Failure("`fetch` needs a `url`".into());
    };
    // The only sign of life it gives. Nothing waits for it, nothing depends on it.
    let _ = abi::progress(&json!({ "calling": url }));
    match abi::http("GET", url, &[], "") {
        Ok(response) => {
            Answer::Success(json!({ "status": response.status, "body": response.body }))
        }
        Err(reason) => Answer::Failure(reason),
    }
}

/// A sum that has no end: the guest never calls the host again.
#[inline(never)]
fn compute() -> Answer {
    let mut sum: u64 = 0;
    loop {
        sum = std::hint::black_box(sum.wrapping_mul(31).wrapping_add(7));
    }
}
