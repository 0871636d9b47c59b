//! HTTP, asks and signals of core modules.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::imports::{self, Buffer};
use super::{check, last_error, raw_json};
use crate::{ask, http, signal};

/// The largest prefix of a response's body: its status and a line feed.
const STATUS_LINE_BYTES: usize = 16;

/// The most that one byte of a body can take in the JSON of a batch's result: `\u0000`.
const ESCAPED_BYTES: usize = 6;

/// Space for the parts of a batch's response other than its body: a status, and an error about as
/// long as a URL.
const BATCH_HEAD_BYTES: usize = 2048;

/// Space for the answer to an ask: twice the size of the largest params.
const ASK_ANSWER_BYTES: usize = 512 * 1024;

/// Returned if the buffer is too small.
const TOO_SMALL: i32 = -2;

pub(crate) async fn send(request: http::Request) -> Result<http::Response, http::Error> {
    let max_bytes = request.response_max_bytes;
    let headers = headers_json(&request)?;
    let mut buffer = Buffer::with_capacity(max_bytes.saturating_add(STATUS_LINE_BYTES));
    let http::Request { method, url, body, .. } = request;
    let returned = imports::http_call(&method, &url, &headers, &body, &mut buffer);
    let bytes = buffer.into_written(length(returned, max_bytes)?);
    parse_response(bytes)
        .ok_or_else(|| failed("the host returned a response without a status line"))
}

/// Parses `<status>\n<body>`.
fn parse_response(mut bytes: Vec<u8>) -> Option<http::Response> {
    let line = bytes.iter().position(|byte| *byte == b'\n')?;
    let status = std::str::from_utf8(&bytes[..line]).ok()?.parse().ok()?;
    bytes.drain(..=line);
    Some(http::Response::new(status, bytes))
}

pub(crate) fn send_batch(
    requests: Vec<http::Request>,
) -> Result<Vec<Result<http::Response, http::Error>>, http::Error> {
    #[derive(Serialize)]
    struct BatchRequest<'a> {
        method: &'a str,
        url: &'a str,
        headers: &'a [(String, String)],
        body: &'a str,
    }
    #[derive(Deserialize)]
    struct BatchResponse {
        status: u16,
        body: String,
        error: Option<String>,
    }
    let max_bytes = requests.iter().map(|request| request.response_max_bytes).max().unwrap_or(0);
    let mut sent = Vec::with_capacity(requests.len());
    for request in &requests {
        let body = std::str::from_utf8(&request.body)
            .map_err(|_| invalid("the body of a request in a batch must be UTF-8"))?;
        let http::Request { method, url, headers, .. } = request;
        sent.push(BatchRequest { method, url, headers, body });
    }
    let json = serde_json::to_string(&sent).map_err(|error| invalid(&error.to_string()))?;
    let bodies = max_bytes.saturating_mul(ESCAPED_BYTES);
    let mut buffer = Buffer::with_capacity(bodies.saturating_add(sent.len() * BATCH_HEAD_BYTES));
    let returned = imports::http_call_batch(&json, &mut buffer);
    let bytes = buffer.into_written(length(returned, max_bytes)?);
    let responses: Vec<BatchResponse> = serde_json::from_slice(&bytes)
        .map_err(|error| failed(&format!("the host's responses cannot be read: {error}")))?;
    Ok(responses
        .into_iter()
        .map(|BatchResponse { status, body, error }| match error {
            Some(why) => Err(failed(&why)),
            None => Ok(http::Response::new(status, body)),
        })
        .collect())
}

fn headers_json(request: &http::Request) -> Result<String, http::Error> {
    if request.headers.is_empty() {
        return Ok(String::new());
    }
    serde_json::to_string(&request.headers).map_err(|error| invalid(&error.to_string()))
}

fn length(returned: i32, max_bytes: usize) -> Result<usize, http::Error> {
    usize::try_from(returned).map_err(|_| match returned {
        TOO_SMALL => http::Error::too_large(max_bytes),
        _ => failed(&last_error().to_string()),
    })
}

fn failed(why: &str) -> http::Error {
    http::Error::new(http::ErrorKind::Failed, why)
}

fn invalid(why: &str) -> http::Error {
    http::Error::new(http::ErrorKind::InvalidRequest, why)
}

pub(crate) async fn ask(request: &ask::Request) -> Result<ask::Answer, ask::Error> {
    #[derive(Serialize)]
    struct AskRequest<'a> {
        entity: String,
        action: &'a str,
        params: &'a RawValue,
        until: &'a str,
    }
    #[derive(Deserialize)]
    struct AskAnswer {
        sequence: u64,
        state: String,
        fields: Box<RawValue>,
    }
    let invalid = |why: String| ask::Error::new(ask::ErrorKind::InvalidRequest, why);
    let unreadable = |why: &str| {
        let why = format!("the entity took the action, but its answer cannot be read: {why}");
        ask::Error::new(ask::ErrorKind::Unavailable, why)
    };
    let params = request.params.as_deref().unwrap_or_default();
    let sent = AskRequest {
        entity: format!("{}/{}", request.entity_type, request.entity_id),
        action: &request.action,
        params: raw_json(params).map_err(|error| invalid(error.to_string()))?,
        until: if request.until_settled { "settled" } else { "transition" },
    };
    let json = serde_json::to_string(&sent).map_err(|error| invalid(error.to_string()))?;
    let mut buffer = Buffer::with_capacity(ASK_ANSWER_BYTES);
    let returned = imports::ask(&json, &mut buffer);
    let bytes = match usize::try_from(returned) {
        Ok(bytes) => bytes,
        Err(_) if returned == TOO_SMALL => return Err(unreadable("it is larger than 512 KiB")),
        Err(_) => {
            let sentence = last_error().to_string();
            let (kind, why) = parse_error(&sentence, "ask_", &ask::KINDS);
            return Err(ask::Error::new(kind.unwrap_or(ask::ErrorKind::Unavailable), why));
        }
    };
    let AskAnswer { sequence, state, fields } = serde_json::from_slice(&buffer.into_written(bytes))
        .map_err(|error| unreadable(&error.to_string()))?;
    Ok(ask::Answer { sequence, state, fields: fields.get().to_owned() })
}

pub(crate) async fn signal(notice: &signal::Notice) -> Result<(), signal::Error> {
    #[derive(Serialize)]
    struct SignalNotice<'a> {
        entity: String,
        name: &'a str,
        payload: &'a RawValue,
    }
    let invalid = |why: String| signal::Error::new(signal::ErrorKind::InvalidRequest, why);
    let payload = notice.payload.as_deref().unwrap_or_default();
    let sent = SignalNotice {
        entity: format!("{}/{}", notice.entity_type, notice.entity_id),
        name: &notice.name,
        payload: raw_json(payload).map_err(|error| invalid(error.to_string()))?,
    };
    let json = serde_json::to_string(&sent).map_err(|error| invalid(error.to_string()))?;
    check(imports::signal(&json)).map_err(|error| {
        let sentence = error.to_string();
        let (kind, why) = parse_error(&sentence, "signal_", &signal::KINDS);
        signal::Error::new(kind.unwrap_or(signal::ErrorKind::Unavailable), why)
    })
}

/// Parses a message of the form `CODE: WHY`, which the ABI defines, where the code is `prefix` and the
/// name of a kind. Returns the kind and why; `None` and the whole message if it has no such code.
fn parse_error<'a, K: Copy>(
    sentence: &'a str,
    prefix: &str,
    kinds: &[(&str, K)],
) -> (Option<K>, &'a str) {
    let kind_and_reason = sentence.split_once(": ").and_then(|(code, why)| {
        let name = code.strip_prefix(prefix)?;
        let (_, kind) = kinds.iter().find(|(known, _)| *known == name)?;
        Some((Some(*kind), why))
    });
    kind_and_reason.unwrap_or((None, sentence))
}
