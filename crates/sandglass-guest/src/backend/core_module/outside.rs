//! What a core module waits for: HTTP and asks.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::imports::{self, Room};
use super::{last_error, part};
use crate::{ask, http};

/// What comes before the body of a response: its status, and a line feed.
const STATUS_LINE_BYTES: usize = 16;

/// Most that one byte of a body takes in the JSON of a batch's answer: `\u0000`.
const ESCAPED_BYTES: usize = 6;

/// Room for what an answer of a batch has besides its body: a status, and an error of
/// about the length of a URL.
const ANSWER_BYTES: usize = 2048;

/// Room for an entity's answer to an ask: as many bytes as whoever asks may send twice over.
const ASKED_BYTES: usize = 512 * 1024;

/// What a function answers whose buffer was too small.
const TOO_SMALL: i32 = -2;

pub(crate) fn send(request: http::Request) -> Result<http::Response, http::Error> {
    let most = request.response_max_bytes;
    let headers = headers(&request)?;
    let mut room = Room::of(most.saturating_add(STATUS_LINE_BYTES));
    let http::Request { method, url, body, .. } = request;
    let answered = imports::http_call(&method, &url, &headers, &body, &mut room);
    let answer = room.written(length(answered, most)?);
    response(answer).ok_or_else(|| failed("the host's answer has no status line"))
}

/// From `<status>\n<body>`.
fn response(mut answer: Vec<u8>) -> Option<http::Response> {
    let line = answer.iter().position(|byte| *byte == b'\n')?;
    let status = std::str::from_utf8(&answer[..line]).ok()?.parse().ok()?;
    answer.drain(..=line);
    Some(http::Response::new(status, answer))
}

pub(crate) fn send_batch(
    requests: Vec<http::Request>,
) -> Result<Vec<Result<http::Response, http::Error>>, http::Error> {
    #[derive(Serialize)]
    struct Sent<'a> {
        method: &'a str,
        url: &'a str,
        headers: &'a [(String, String)],
        body: &'a str,
    }
    #[derive(Deserialize)]
    struct Answered {
        status: u16,
        body: String,
        error: Option<String>,
    }
    let most = requests.iter().map(|request| request.response_max_bytes).max().unwrap_or(0);
    let mut sent = Vec::with_capacity(requests.len());
    for request in &requests {
        let body = std::str::from_utf8(&request.body)
            .map_err(|_| invalid("in a batch the body of a request is UTF-8"))?;
        let http::Request { method, url, headers, .. } = request;
        sent.push(Sent { method, url, headers, body });
    }
    let json = serde_json::to_string(&sent).map_err(|error| invalid(&error.to_string()))?;
    let room = most.saturating_mul(ESCAPED_BYTES);
    let mut room = Room::of(room.saturating_add(sent.len() * ANSWER_BYTES));
    let answered = imports::http_call_batch(&json, &mut room);
    let answer = room.written(length(answered, most)?);
    let answers: Vec<Answered> = serde_json::from_slice(&answer)
        .map_err(|error| failed(&format!("the host's answer can't be read: {error}")))?;
    Ok(answers
        .into_iter()
        .map(|Answered { status, body, error }| match error {
            Some(why) => Err(failed(&why)),
            None => Ok(http::Response::new(status, body)),
        })
        .collect())
}

fn headers(request: &http::Request) -> Result<String, http::Error> {
    if request.headers.is_empty() {
        return Ok(String::new());
    }
    serde_json::to_string(&request.headers).map_err(|error| invalid(&error.to_string()))
}

fn length(answered: i32, most: usize) -> Result<usize, http::Error> {
    usize::try_from(answered).map_err(|_| match answered {
        TOO_SMALL => http::Error::too_large(most),
        _ => failed(&last_error().to_string()),
    })
}

fn failed(why: &str) -> http::Error {
    http::Error::new(http::ErrorKind::Failed, why)
}

fn invalid(why: &str) -> http::Error {
    http::Error::new(http::ErrorKind::InvalidRequest, why)
}

pub(crate) fn ask(request: &ask::Request) -> Result<ask::Answer, ask::Error> {
    #[derive(Serialize)]
    struct Sent<'a> {
        entity: String,
        action: &'a str,
        params: &'a RawValue,
        until: &'a str,
    }
    #[derive(Deserialize)]
    struct Answered {
        sequence: u64,
        state: String,
        fields: Box<RawValue>,
    }
    let invalid = |why: String| ask::Error::new(ask::ErrorKind::InvalidRequest, why);
    let unread = |why: &str| {
        let why = format!("the entity was asked, and its answer can't be read: {why}");
        ask::Error::new(ask::ErrorKind::Unavailable, why)
    };
    let params = request.params.as_deref().unwrap_or_default();
    let sent = Sent {
        entity: format!("{}/{}", request.entity_type, request.entity_id),
        action: &request.action,
        params: part(params).map_err(|error| invalid(error.to_string()))?,
        until: if request.until_settled { "settled" } else { "transition" },
    };
    let json = serde_json::to_string(&sent).map_err(|error| invalid(error.to_string()))?;
    let mut room = Room::of(ASKED_BYTES);
    let answered = imports::ask(&json, &mut room);
    let bytes = match usize::try_from(answered) {
        Ok(bytes) => bytes,
        Err(_) if answered == TOO_SMALL => return Err(unread("it is larger than 512 KiB")),
        Err(_) => return Err(read_error(&last_error().to_string())),
    };
    let answer: Answered =
        serde_json::from_slice(&room.written(bytes)).map_err(|error| unread(&error.to_string()))?;
    let Answered { sequence, state, fields } = answer;
    Ok(ask::Answer { sequence, state, fields: fields.get().to_owned() })
}

/// From a sentence that begins with its kind, as the ABI has it.
fn read_error(sentence: &str) -> ask::Error {
    let (kind, why) = sentence.split_once(": ").unwrap_or(("", sentence));
    let code = kind.strip_prefix("ask_").unwrap_or_default();
    let kind = ask::KINDS.iter().find(|(known, _)| *known == code);
    match kind {
        Some((_, kind)) => ask::Error::new(*kind, why),
        None => ask::Error::new(ask::ErrorKind::Unavailable, sentence),
    }
}
