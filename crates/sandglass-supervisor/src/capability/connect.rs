//! Calls of the Connect protocol that stream their answer: a request with one message, and a response
//! with any number of them, each in an envelope of five bytes (a flag and the length).

use serde::{Deserialize, Serialize, Serializer};

use super::http::{HttpError, Request, Response};
use crate::secret::Redactor;

/// Size of an envelope, in bytes.
const ENVELOPE_BYTES: usize = 5;
/// The flag of a message that is compressed.
const COMPRESSED: u8 = 1;
/// The flag of the last envelope, which contains no message, but how the stream ended.
const END: u8 = 2;

/// How much of a failed response is shown, in bytes: more than a guest reads of an error, because
/// where it is cut, parts of secrets are removed with their surroundings.
const SHOWN_BYTES: usize = 64 << 10;

/// Headers of a call, unless the guest sets them.
const HEADERS: [(&str, &str); 2] =
    [("content-type", "application/connect+json"), ("connect-protocol-version", "1")];

/// The messages of a response. Each is JSON, which is not checked; they are serialized as a list of
/// texts.
#[derive(Debug, PartialEq, Eq)]
pub struct Messages<'a> {
    /// Whole envelopes, whose messages are UTF-8.
    body: &'a [u8],
    /// How the server says that the stream failed.
    pub error: Option<String>,
}

impl Messages<'_> {
    fn iter(&self) -> impl Iterator<Item = &str> {
        let messages = Envelopes(self.body).filter_map(Result::ok);
        let messages = messages.filter(|(flags, _)| flags & END == 0);
        messages.filter_map(|(_, message)| std::str::from_utf8(message).ok())
    }
}

impl Serialize for Messages<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// The flags and messages of the envelopes in a body.
struct Envelopes<'a>(&'a [u8]);

impl<'a> Iterator for Envelopes<'a> {
    type Item = Result<(u8, &'a [u8]), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = std::mem::take(&mut self.0);
        if rest.is_empty() {
            return None;
        }
        let Some((envelope, rest)) = rest.split_first_chunk::<ENVELOPE_BYTES>() else {
            return Some(Err("an envelope is cut off"));
        };
        let [flags, length @ ..] = *envelope;
        let length = u32::from_be_bytes(length) as usize;
        let Some((message, rest)) = rest.split_at_checked(length) else {
            return Some(Err("a message is cut off"));
        };
        self.0 = rest;
        Some(Ok((flags, message)))
    }
}

/// Puts `message` into an envelope; nothing if it is empty.
///
/// # Errors
/// It is too long for an envelope.
pub fn envelope(message: &[u8]) -> Result<Vec<u8>, String> {
    if message.is_empty() {
        return Ok(Vec::new());
    }
    let length = u32::try_from(message.len()).map_err(|_| "the message is longer than 4 GiB")?;
    let mut body = Vec::with_capacity(ENVELOPE_BYTES + message.len());
    body.push(0);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(message);
    Ok(body)
}

/// The request of a call, whose `body` is in an envelope. `headers` are a JSON array of pairs, or empty.
///
/// # Errors
/// As [`Request::read`].
pub fn request(url: &str, headers: &str, body: bytes::Bytes) -> Result<Request, String> {
    let mut request = Request::read("POST", url, headers, body)?;
    HEADERS.into_iter().for_each(|(name, value)| request.set_default_header(name, value));
    Ok(request)
}

/// The messages of `response`.
///
/// # Errors
/// Its status is not a success, or its body is not a sequence of whole messages. The error has no secrets.
pub fn messages<'r>(
    response: &'r Response,
    redactor: &Redactor,
) -> Result<Messages<'r>, HttpError> {
    let Response { status, body, .. } = response;
    let failed = |why| Err(HttpError::Transport(why));
    if !(200..300).contains(status) {
        let start = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]).into_owned();
        let is_whole = body.len() <= SHOWN_BYTES;
        let text = if is_whole { redactor.text(start) } else { redactor.start_of_text(start) };
        return failed(format!("the call failed with HTTP {status}: {text}"));
    }
    let mut error = None;
    for envelope in Envelopes(body) {
        let why = match envelope {
            Ok((flags, _)) if flags & COMPRESSED != 0 => {
                "a message is compressed, which was not asked for"
            }
            Ok((flags, message)) if flags & END != 0 => {
                error = end_error(message);
                continue;
            }
            Ok((_, message)) if std::str::from_utf8(message).is_err() => "a message is not UTF-8",
            Ok(_) => continue,
            Err(why) => why,
        };
        return failed(format!("the response is not one of the Connect protocol: {why}"));
    }
    Ok(Messages { body, error })
}

/// The error in the last envelope of a stream; `None` if it ended well.
fn end_error(message: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct End {
        error: Option<Failure>,
    }
    #[derive(Deserialize)]
    struct Failure {
        code: String,
        #[serde(default)]
        message: String,
    }
    let end: End = serde_json::from_slice(message).ok()?;
    end.error
        .map(|Failure { code, message }| format!("the server ended the stream: {code}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(response: &Response) -> Result<Messages<'_>, HttpError> {
        super::messages(response, &Redactor::default())
    }

    fn response(status: u16, parts: &[(u8, &[u8])]) -> Response {
        let mut body = Vec::new();
        for (flags, message) in parts {
            body.push(*flags);
            body.extend_from_slice(&u32::try_from(message.len()).expect("short").to_be_bytes());
            body.extend_from_slice(message);
        }
        Response { status, headers: Vec::new(), body }
    }

    #[test]
    fn the_messages_of_a_stream_are_those_in_its_envelopes() {
        let sent = envelope(b"{}").expect("short");
        assert_eq!(sent, b"\0\0\0\0\x02{}");
        assert_eq!(envelope(b""), Ok(Vec::new()));
        let whole = response(200, &[(0, b"{\"n\":1}"), (0, b""), (2, b"{}")]);
        let messages = messages(&whole).expect("whole");
        let json = serde_json::to_string(&messages).expect("texts");
        assert_eq!((json.as_str(), messages.error), (r#"["{\"n\":1}",""]"#, None));
        let none = response(200, &[]);
        let none = self::messages(&none).expect("whole");
        assert_eq!(serde_json::to_string(&none).expect("texts"), "[]");
    }

    #[test]
    fn the_error_that_ends_a_stream_does_not_lose_its_messages() {
        let end = br#"{"error":{"code":"unavailable","message":"try later"}}"#;
        let ended = response(200, &[(0, b"1"), (2, end)]);
        let messages = messages(&ended).expect("whole");
        assert_eq!(messages.iter().collect::<Vec<_>>(), ["1"]);
        let why = messages.error.expect("it failed");
        assert_eq!(why, "the server ended the stream: unavailable: try later");
    }

    #[test]
    fn a_failed_response_is_shown_without_secrets_and_parts_of_them() {
        let (redactor, secret) = (Redactor::default(), "hunter22".repeat(100));
        redactor.hide(&crate::secret::Secret::new(&secret));
        for before in 0..secret.len() {
            let body = format!("{}{secret}", "x".repeat(SHOWN_BYTES - before));
            let failed = Response { status: 503, headers: Vec::new(), body: body.into() };
            let error = super::messages(&failed, &redactor).expect_err("no success").to_string();
            assert!(error.contains("HTTP 503: xxx") && !error.contains("xh"), "{before}");
        }
    }

    #[test]
    fn what_is_no_stream_is_an_error_that_says_why() {
        let cut = |bytes: usize| {
            let mut response = response(200, &[(0, b"{\"n\":1}")]);
            response.body.truncate(bytes);
            response
        };
        for (wrong, why) in [
            (response(503, &[]), "HTTP 503"),
            (response(200, &[(1, b"x")]), "compressed"),
            (response(200, &[(0, b"\xff")]), "UTF-8"),
            (cut(3), "an envelope is cut off"),
            (cut(8), "a message is cut off"),
            (Response { status: 200, headers: Vec::new(), body: vec![0xff; 64] }, "cut off"),
        ] {
            let error = messages(&wrong).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
