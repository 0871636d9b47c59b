//! The bodies and headers of requests, checked before anything is done.

use serde_json::{Map, Value};

use super::error::Error;
use crate::code::Code;
use crate::runs::Wanted;
use crate::service::{Overlay, bounds, whole};
use sandglass_workflow::step::ForkMode;

/// Most tags of a run, and longest tag, in characters; the protocol's limits.
const TAGS_MAX: usize = 100;
const TAG_MAX_CHARS: usize = 256;
/// Largest metadata of a run, in bytes of JSON; what the protocol recommends.
const METADATA_MAX_BYTES: usize = 50_000;
/// Longest id of a workflow, in bytes; the protocol's limit.
const WORKFLOW_ID_MAX_BYTES: usize = 128;
/// Longest reason of a cancel, in bytes.
pub(crate) const REASON_MAX_BYTES: usize = sandglass_model::session::STOP_REASON_MAX_BYTES;

/// Keys of a request for a run that this host has no use for: it has one tenant and no scopes, and calls
/// no one back.
const UNSUPPORTED: [&str; 3] = ["callbackUrl", "scopeId", "tenantId"];
/// Longest value of such a key, in bytes.
const UNSUPPORTED_MAX_BYTES: usize = 2_048;

/// Takes the keys out of a body that have no effect; returns which they are.
pub(crate) fn unsupported(body: &mut Map<String, Value>) -> Result<Vec<&'static str>, Error> {
    let mut found = Vec::new();
    for key in UNSUPPORTED {
        match body.remove(key) {
            None => {}
            Some(Value::String(text)) if (1..=UNSUPPORTED_MAX_BYTES).contains(&text.len()) => {
                found.push(key);
            }
            Some(_) => {
                let message =
                    format!("`{key}` must be a text of 1 to {UNSUPPORTED_MAX_BYTES} bytes");
                return Err(Error::invalid(&format!("/{key}"), message));
            }
        }
    }
    Ok(found)
}

/// The run that a body requests.
pub(crate) fn wanted(mut body: Map<String, Value>) -> Result<Wanted, Error> {
    only(&body, "", &["workflowId", "inputs", "configurable", "tags", "metadata"])?;
    let workflow = match body.remove("workflowId") {
        Some(Value::String(id)) if (1..=WORKFLOW_ID_MAX_BYTES).contains(&id.len()) => id,
        Some(_) => {
            let message =
                format!("`workflowId` must be a text of 1 to {WORKFLOW_ID_MAX_BYTES} bytes");
            return Err(Error::invalid("/workflowId", message));
        }
        None => return Err(Error::invalid("/workflowId", "`workflowId` is missing")),
    };
    let inputs = object(&mut body, "", "inputs")?.unwrap_or_default();
    let configurable = object(&mut body, "", "configurable")?.unwrap_or_default();
    let bounds = bounds(&configurable, "/configurable")?;
    let tags = tags(&mut body, "")?.unwrap_or_default();
    let metadata = metadata(&mut body, "")?.unwrap_or_default();
    Ok(Wanted { workflow, inputs, configurable, tags, metadata, bounds })
}

/// The fork that a body requests.
pub(crate) fn fork(mut body: Map<String, Value>) -> Result<(u64, ForkMode, Overlay), Error> {
    only(&body, "", &["mode", "fromSeq", "runOptionsOverlay"])?;
    let mode = match body.remove("mode") {
        Some(Value::String(mode)) if mode == "replay" => ForkMode::Replay,
        Some(Value::String(mode)) if mode == "branch" => ForkMode::Branch,
        Some(_) => return Err(Error::invalid("/mode", "`mode` must be `replay` or `branch`")),
        None => return Err(Error::invalid("/mode", "`mode` is missing: `replay` or `branch`")),
    };
    let from = match body.remove("fromSeq") {
        None if mode == ForkMode::Branch => {
            return Err(Error::invalid("/fromSeq", "`fromSeq` of a branch is missing"));
        }
        None => 0,
        Some(from) => whole(&from).ok_or_else(|| {
            Error::invalid("/fromSeq", "`fromSeq` must be a whole number from 0 on")
        })?,
    };
    let path = "/runOptionsOverlay";
    let overlay = object(&mut body, "", "runOptionsOverlay")?;
    if overlay.is_some() && mode == ForkMode::Replay {
        let message = "a replay runs as its source did; to run it otherwise, branch from it";
        return Err(Error::invalid(path, message));
    }
    let mut overlay = overlay.unwrap_or_default();
    only(&overlay, path, &["configurable", "tags", "metadata"])?;
    let configurable = object(&mut overlay, path, "configurable")?.unwrap_or_default();
    // They are checked again after they are merged with the source's.
    bounds(&configurable, "/runOptionsOverlay/configurable")?;
    let overlay = Overlay {
        configurable,
        tags: tags(&mut overlay, path)?,
        metadata: metadata(&mut overlay, path)?,
    };
    Ok((from, mode, overlay))
}

/// The reason that a body gives for a cancel.
pub(crate) fn reason(mut body: Map<String, Value>) -> Result<String, Error> {
    only(&body, "", &["reason"])?;
    match body.remove("reason") {
        None => Ok(String::new()),
        Some(Value::String(reason)) if reason.len() <= REASON_MAX_BYTES => Ok(reason),
        Some(_) => {
            let message = format!("`reason` must be a text of at most {REASON_MAX_BYTES} bytes");
            Err(Error::invalid("/reason", message))
        }
    }
}

/// The answer that a body gives to an interrupt.
pub(crate) fn answer(mut body: Map<String, Value>) -> Result<Value, Error> {
    only(&body, "", &["resumeValue"])?;
    body.remove("resumeValue")
        .ok_or_else(|| Error::invalid("/resumeValue", "`resumeValue` is missing"))
}

fn only(body: &Map<String, Value>, path: &str, known: &[&str]) -> Result<(), Error> {
    match body.keys().find(|key| !known.contains(&key.as_str())) {
        None => Ok(()),
        Some(key) => {
            let shown: String = key.chars().take(64).collect();
            let message = format!("`{shown}` is unknown; the known keys are {}", known.join(", "));
            Err(Error::invalid(&format!("{path}/{shown}"), message))
        }
    }
}

fn object(
    body: &mut Map<String, Value>,
    path: &str,
    key: &str,
) -> Result<Option<Map<String, Value>>, Error> {
    match body.remove(key) {
        None => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(_) => {
            Err(Error::invalid(&format!("{path}/{key}"), format!("`{key}` must be an object")))
        }
    }
}

fn tags(body: &mut Map<String, Value>, path: &str) -> Result<Option<Vec<String>>, Error> {
    let Some(tags) = body.remove("tags") else { return Ok(None) };
    let wrong = || {
        let message = format!(
            "`tags` must be a list of at most {TAGS_MAX} texts of 1 to {TAG_MAX_CHARS} characters"
        );
        Error::invalid(&format!("{path}/tags"), message)
    };
    let tags = tags.as_array().filter(|tags| tags.len() <= TAGS_MAX).ok_or_else(wrong)?;
    let tag = |tag: &Value| {
        let tag = tag.as_str().filter(|tag| (1..=TAG_MAX_CHARS).contains(&tag.chars().count()));
        tag.map(str::to_owned).ok_or_else(wrong)
    };
    tags.iter().map(tag).collect::<Result<_, _>>().map(Some)
}

fn metadata(
    body: &mut Map<String, Value>,
    path: &str,
) -> Result<Option<Map<String, Value>>, Error> {
    let metadata = object(body, path, "metadata")?;
    let text = metadata.as_ref().map(serde_json::to_string);
    let bytes = text.map_or(0, |text| text.map_or(usize::MAX, |text| text.len()));
    if bytes > METADATA_MAX_BYTES {
        let message = format!("`metadata` has {bytes} bytes, and {METADATA_MAX_BYTES} are allowed");
        return Err(Error::invalid(&format!("{path}/metadata"), message));
    }
    Ok(metadata)
}

/// The key of a request that is done once.
pub(crate) fn idempotency_key(headers: &axum::http::HeaderMap) -> Result<Option<&str>, Error> {
    const KEY: &str = "idempotency-key";
    /// Longest key, in bytes: it fits into a header.
    const KEY_MAX_BYTES: usize = 256;
    let mut sent = headers.get_all(KEY).iter();
    let Some(first) = sent.next() else { return Ok(None) };
    let wrong = || {
        let message = format!(
            "`Idempotency-Key` must be sent once, with 1 to {KEY_MAX_BYTES} printable characters of ASCII"
        );
        Error::new(Code::Validation, message).detail("header", "Idempotency-Key")
    };
    if sent.next().is_some() {
        return Err(wrong());
    }
    let key = first.to_str().map_err(|_| wrong())?.trim();
    let is_printable = key.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ');
    if !(1..=KEY_MAX_BYTES).contains(&key.len()) || !is_printable {
        return Err(wrong());
    }
    Ok(Some(key))
}
