//! From the bytes of a request to those of its response.

use serde_json::Value;

use crate::{Outcome, Pack, Request};

/// Has the node at `index` answer `request`. Whatever is wrong with either is a response, too,
/// with the code `invalid_input`.
#[must_use]
pub fn respond(pack: &Pack, index: u32, request: &[u8]) -> Vec<u8> {
    let outcome = answer(pack, index, request).unwrap_or_else(|message| Outcome::Failed {
        code: "invalid_input".to_owned(),
        message,
        details: Value::Null,
    });
    outcome.response().to_string().into_bytes()
}

fn answer(pack: &Pack, index: u32, request: &[u8]) -> Result<Outcome, String> {
    let (_, node) = pack.nodes.get(index as usize).ok_or_else(|| {
        format!("the pack has no node at index {index}, only {}", pack.nodes.len())
    })?;
    node(&Request::parse(request)?)
}
