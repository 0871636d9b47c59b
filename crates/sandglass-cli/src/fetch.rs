//! Asks a daemon for a page over HTTP, in bounded time and memory.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sandglass_source::{printable, shortened};
use serde::Deserialize;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::play::pause;

/// How long all of it may take: a page that takes longer is of a daemon that hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest page that is read, in bytes: a hundred times what a daemon's metrics take.
const PAGE_MAX_BYTES: usize = 20 << 20;
/// Largest answer that says why there is none, in bytes, and how much of its message is
/// shown, in characters: a daemon's are a few lines.
const REFUSAL_MAX_BYTES: usize = 64 << 10;
const MESSAGE_MAX_CHARS: usize = 400;

/// The address that `text` names. Nobody logs in by it, and a login that is in it is never
/// shown.
///
/// # Errors
/// It names none, or has a login, or a port that can't be.
pub(crate) fn address(text: &str) -> anyhow::Result<Uri> {
    if let Some((_, place)) = text.rsplit_once('@') {
        bail!(
            "an address with a login (…@{}) isn't taken; name the variable with a key by \
             --api-key-env",
            printable(place)
        );
    }
    let bad = |_| anyhow!("`{}` is no address; name one as http://HOST:PORT", printable(text));
    let address: Uri = text.parse().map_err(bad)?;
    let port = address.authority().and_then(|named| {
        let port = named.as_str().strip_prefix(named.host())?.strip_prefix(':')?;
        named.port_u16().is_none_or(|port| port == 0).then_some(port)
    });
    if let Some(port) = port {
        bail!("`{}` has the port `{}`; name one from 1 to 65535", printable(text), printable(port));
    }
    Ok(address)
}

/// The key that a variable of the environment holds, where one is named.
///
/// # Errors
/// It holds none.
pub(crate) fn key(variable: Option<&str>) -> anyhow::Result<Option<String>> {
    let held =
        |name| std::env::var(name).with_context(|| format!("--api-key-env: `{name}` holds no key"));
    variable.map(held).transpose()
}

/// The text at `url`, asked for with `key` where there is one.
///
/// # Errors
/// It can't be had, or is no text, or larger than any page of a daemon's.
pub(crate) async fn text(url: &Uri, key: Option<&str>) -> anyhow::Result<String> {
    let whole = async {
        let answer = require_ok(ask(url, key).await?).await?;
        let body = Limited::new(answer.into_body(), PAGE_MAX_BYTES).collect().await;
        let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
        String::from_utf8(body.to_vec()).context("the answer is no text")
    };
    soon(whole).await.with_context(|| format!("can't get `{url}`"))
}

/// The head of the answer at `url`, of any status; its body takes as long as it takes.
///
/// # Errors
/// There is none.
pub(crate) async fn open(url: &Uri, key: Option<&str>) -> anyhow::Result<Response<Incoming>> {
    soon(ask(url, key)).await.with_context(|| format!("can't get `{url}`"))
}

/// The answer, where it is the one that was asked for.
///
/// # Errors
/// It is a refusal: what that says, and what to do.
pub(crate) async fn require_ok(answer: Response<Incoming>) -> anyhow::Result<Response<Incoming>> {
    if answer.status() == StatusCode::OK { Ok(answer) } else { Err(refusal(answer).await) }
}

/// What an answer that is no success says, and what to do. Takes as long as answers may.
pub(crate) async fn refusal(answer: Response<Incoming>) -> anyhow::Error {
    let status = answer.status();
    let body = Limited::new(answer.into_body(), REFUSAL_MAX_BYTES).collect();
    let body = soon(async { body.await.map_err(anyhow::Error::from_boxed) }).await;
    // Of one that doesn't come whole the status is told.
    let envelope = body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
    Refusal::of(envelope).told(status)
}

/// What a daemon says of why it refuses.
#[derive(Debug, Default, Deserialize)]
struct Refusal {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
struct Envelope {
    error: Refusal,
}

impl Refusal {
    fn of(envelope: Option<Envelope>) -> Self {
        envelope.map(|envelope| envelope.error).unwrap_or_default()
    }

    fn told(&self, status: StatusCode) -> anyhow::Error {
        let message = shortened(&self.message, MESSAGE_MAX_CHARS);
        match (status, &*self.code) {
            (_, "cross_site") => {
                anyhow!(
                    "it doesn't serve whom it is asked by this name (status {status}): {message}"
                )
            }
            (_, "forbidden") => {
                anyhow!("{message} (status {status}); name a key that may by --api-key-env")
            }
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => anyhow!(
                "it asks for a key that may read (status {status}); name one by --api-key-env"
            ),
            _ if message.is_empty() => anyhow!("it answers {status}"),
            _ => anyhow!("it answers {status}: {message}"),
        }
    }
}

/// What came of asking a daemon to do something.
pub(crate) enum Posted {
    /// It does it; what it says of that.
    Taken(Value),
    /// It doesn't: why.
    Refused(String),
}

/// Asks for something to be done at `url`, with `key` where there is one.
///
/// # Errors
/// There is no answer, or the key may not.
pub(crate) async fn post(url: &Uri, key: Option<&str>, body: &Value) -> anyhow::Result<Posted> {
    let whole = async {
        let request = request(Method::POST, url, key)?.header(CONTENT_TYPE, "application/json");
        let body = Full::new(Bytes::from(serde_json::to_vec(body)?));
        let answer = sent(url, request.body(body)?).await?;
        let status = answer.status();
        if matches!(
            status,
            StatusCode::CONFLICT | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
        ) {
            return Ok(Posted::Refused(refusal(answer).await.to_string()));
        }
        if !status.is_success() {
            return Err(refusal(answer).await);
        }
        let body = Limited::new(answer.into_body(), REFUSAL_MAX_BYTES).collect().await;
        let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
        serde_json::from_slice(&body).map(Posted::Taken).context("the answer is no JSON")
    };
    soon(whole).await.with_context(|| format!("can't ask `{url}`"))
}

/// A piece of a path or query as addresses have it.
pub(crate) fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

async fn soon<T>(got: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        got = got => got,
        () = pause(PATIENCE) => Err(anyhow!("there is no answer within {PATIENCE:?}")),
    }
}

async fn ask(url: &Uri, key: Option<&str>) -> anyhow::Result<Response<Incoming>> {
    sent(url, request(Method::GET, url, key)?.body(Full::default())?).await
}

fn request(
    method: Method,
    url: &Uri,
    key: Option<&str>,
) -> anyhow::Result<hyper::http::request::Builder> {
    ensure!(url.scheme_str() == Some("http"), "only http:// is spoken here");
    let authority = url.authority().context("it names no host")?;
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder().method(method).uri(path).header(HOST, authority.as_str());
    Ok(match key {
        Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
        None => request,
    })
}

async fn sent(url: &Uri, request: Request<Full<Bytes>>) -> anyhow::Result<Response<Incoming>> {
    let authority = url.authority().context("it names no host")?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with this process.
    tokio::spawn(connection);
    Ok(requests.send_request(request).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_is_refused_and_never_shown() {
        for text in
            ["http://user:hush@127.0.0.1:1/v1", "http://user:hu sh@x", "user:h@ush@[::1", "@"]
        {
            let said = address(text).expect_err("it has a login").to_string();
            assert!(said.contains("--api-key-env"), "{said}");
            assert!(!said.contains("user") && !said.contains("hu"), "{said}");
        }
        address("http://127.0.0.1:7341/v1/live").expect("an address");
    }

    #[test]
    fn a_port_that_cannot_be_is_refused_and_taken_for_no_other() {
        for (text, port) in [
            ("http://127.0.0.1:99999", "99999"),
            ("http://[::1]:65536/x", "65536"),
            ("http://localhost:0", "0"),
        ] {
            let said = address(text).expect_err("no such port").to_string();
            assert!(said.contains(&format!("port `{port}`")) && said.contains("65535"), "{said}");
        }
        for text in ["http://localhost", "http://[::1]:65535/x", "http://localhost:1"] {
            address(text).expect("an address");
        }
    }

    #[test]
    fn who_is_refused_by_name_is_asked_for_no_key() {
        let told = |status, body: &str| {
            Refusal::of(serde_json::from_str(body).ok()).told(status).to_string()
        };
        let named = r#"{"error": {"code": "cross_site", "message": "only `localhost`"}}"#;
        let said = told(StatusCode::FORBIDDEN, named);
        assert!(said.contains("only `localhost`") && !said.contains("key"), "{said}");
        let may_not = r#"{"error": {"code": "forbidden", "message": "the key of `a` may not"}}"#;
        let said = told(StatusCode::FORBIDDEN, may_not);
        assert!(said.contains("the key of `a` may not"), "{said}");
        assert!(told(StatusCode::FORBIDDEN, "no JSON").contains("asks for a key"));
        assert_eq!(told(StatusCode::NOT_FOUND, "[]"), "it answers 404 Not Found");
    }
}
