//! Nodes that don't end well.

use node_pack::{Outcome, Request, Value};

/// Fails with `code`, `message` and `details`.
pub(crate) fn fail(request: &Request) -> Result<Outcome, String> {
    Ok(Outcome::Failed {
        code: request.text("code")?.unwrap_or("sample_failure").to_owned(),
        message: request.text("message")?.unwrap_or("the node was told to fail").to_owned(),
        details: request.input("details").cloned().unwrap_or(Value::Null),
    })
}

/// Never comes back.
pub(crate) fn spin(_request: &Request) -> Result<Outcome, String> {
    let mut turns = 0_u64;
    while std::hint::black_box(true) {
        turns = std::hint::black_box(turns.wrapping_add(1));
    }
    Err(format!("came back after {turns} turns"))
}
