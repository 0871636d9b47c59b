//! Nodes that look at what only the host knows, and tell it something.

use node_pack::host::{self, Level};
use node_pack::{Outcome, Request, json};

use crate::hex;

/// Answers `{ nowMs: [first, second], random }`: the clock read twice, and 16 random bytes as
/// hexadecimal digits.
pub(crate) fn probe(_request: &Request) -> Result<Outcome, String> {
    let first = host::now_ms();
    let random: [u8; 16] = host::random();
    let second = host::now_ms();
    Ok(Outcome::Completed(json!({ "nowMs": [first, second], "random": hex(&random) })))
}

/// Logs `message` at each level, from trace to error, and answers `{ logged }`, how many lines
/// that were.
pub(crate) fn log(request: &Request) -> Result<Outcome, String> {
    let message = request.text("message")?.unwrap_or("a line of the log");
    let levels = [Level::Trace, Level::Debug, Level::Info, Level::Warn, Level::Error];
    for level in levels {
        host::log(level, message);
    }
    Ok(Outcome::Completed(json!({ "logged": levels.len() })))
}
