//! Asks a daemon for a page over HTTP or HTTPS, in bounded time and memory.

mod tls;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use hyper::Uri;
use hyper::header::CONTENT_TYPE;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use sandglass_http::is_loopback_host;
use sandglass_source::{printable, shortened};
use serde::Deserialize;
use serde_json::Value;

use self::tls::{no_tls, tls, tls_error, tls_hint};
use crate::play::pause;

/// How long all of it may take: a page that takes longer is of a daemon that hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest page that is read, in bytes: a hundred times what a daemon's metrics take.
const PAGE_MAX_BYTES: usize = 20 << 20;
/// Largest answer that says why there is none, in bytes, and how much of its message is
/// shown, in characters: a daemon's are a few lines.
const REFUSAL_MAX_BYTES: usize = 64 << 10;
const MESSAGE_MAX_CHARS: usize = 400;

/// How a command reaches a daemon, besides its address.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Access {
    /// The environment variable with a key of the daemon, if it needs one
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Trust the certificates in this file (PEM) alone, instead of those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Present the certificate in this file, which also has its private key (PEM), to a daemon that
    /// requires one
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Send the key over plain HTTP to other machines too; anyone on the network path can read it
    #[arg(long)]
    insecure: bool,
}

/// Sends requests to a daemon, with a key if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    key: Option<String>,
    is_insecure: bool,
    /// Whether a server that requires a certificate would refuse it.
    is_anonymous: bool,
}

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
    let bad = |_| {
        anyhow!(
            "`{}` is no address; name one as http://HOST:PORT or https://HOST:PORT",
            printable(text)
        )
    };
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
fn key(variable: Option<&str>) -> anyhow::Result<Option<String>> {
    let held =
        |name| std::env::var(name).with_context(|| format!("--api-key-env: `{name}` holds no key"));
    variable.map(held).transpose()
}

impl Client {
    /// A client for the daemon at `address`.
    ///
    /// # Errors
    /// Errors if the variable holds no key, or one of the files cannot be used.
    pub(crate) fn new(access: &Access, address: &Uri) -> anyhow::Result<Self> {
        let Access { api_key_env, ca, identity, insecure } = access;
        let key = key(api_key_env.as_deref())?;
        let tls = match address.scheme_str() {
            Some("https") => tls(ca.as_deref(), identity.as_deref())?,
            _ => no_tls()?,
        };
        let is_anonymous = address.scheme_str() == Some("https") && identity.is_none();
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // The key is for this address, and for no other that it or the environment names.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("sandglass/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("failed to create the HTTP client")?;
        Ok(Self { http, key, is_insecure: *insecure, is_anonymous })
    }

    /// The text at `url`.
    ///
    /// # Errors
    /// Errors if there is none, or it is no text, or larger than any page of a daemon.
    pub(crate) async fn text(&self, url: &Uri) -> anyhow::Result<String> {
        let whole = async {
            let answer = require_ok(self.get(url).await?).await?;
            let body = bytes(answer, PAGE_MAX_BYTES).await?;
            String::from_utf8(body).context("the answer is no text")
        };
        soon(whole).await.with_context(|| format!("can't get `{url}`"))
    }

    /// The head of the answer at `url`, of any status; its body takes as long as it takes.
    ///
    /// # Errors
    /// Errors if there is none.
    pub(crate) async fn open(&self, url: &Uri) -> anyhow::Result<Response> {
        soon(self.get(url)).await.with_context(|| format!("can't get `{url}`"))
    }

    /// Asks for something to be done at `url`.
    ///
    /// # Errors
    /// Errors if there is no answer, or the key is not allowed to.
    pub(crate) async fn post(&self, url: &Uri, body: &Value) -> anyhow::Result<Posted> {
        let whole = async {
            let request = self.request(Method::POST, url)?;
            let request = request.header(CONTENT_TYPE, "application/json");
            let answer = self.send(request.body(serde_json::to_vec(body)?)).await?;
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
            let body = bytes(answer, REFUSAL_MAX_BYTES).await?;
            serde_json::from_slice(&body).map(Posted::Taken).context("the answer is no JSON")
        };
        soon(whole).await.with_context(|| format!("request to `{url}` failed"))
    }

    async fn get(&self, url: &Uri) -> anyhow::Result<Response> {
        self.send(self.request(Method::GET, url)?).await
    }

    /// The answer to `request`, or an error that says what to do.
    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        request.send().await.map_err(|error| {
            let hint = tls_error(&error).and_then(tls_hint).or_else(|| {
                // With TLS 1.3 a server refuses a client after the client's side is complete.
                (self.is_anonymous && !error.is_connect()).then_some(
                    "it closed the connection without an answer; if it requires a certificate of \
                     its clients, name one with --identity",
                )
            });
            let error = anyhow::Error::from(error.without_url());
            hint.into_iter().fold(error, anyhow::Error::context)
        })
    }

    /// A request with the key, unless others could read it on the way.
    fn request(&self, method: Method, url: &Uri) -> anyhow::Result<RequestBuilder> {
        let is_plain = match url.scheme_str() {
            Some("http") => true,
            Some("https") => false,
            _ => bail!("name an address as http://HOST:PORT or https://HOST:PORT"),
        };
        // The host that is connected to: there are many ways to write an address.
        let url = reqwest::Url::parse(&url.to_string())?;
        let host = url.host_str().context("it names no host")?.to_owned();
        let request = self.http.request(method, url);
        let Some(key) = &self.key else { return Ok(request) };
        ensure!(
            !is_plain || is_loopback_host(&host) || self.is_insecure,
            "the key would be sent over plain HTTP to `{host}`, which is not a loopback address; use \
             https://, or --insecure if you trust the network"
        );
        Ok(request.bearer_auth(key))
    }
}

/// The body of an answer.
///
/// # Errors
/// Errors if it breaks off, or has more than `max_bytes`.
async fn bytes(mut answer: Response, max_bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(piece) = answer.chunk().await? {
        ensure!(
            body.len() + piece.len() <= max_bytes,
            "the answer has more than {max_bytes} bytes"
        );
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// The answer, where it is the one that was asked for.
///
/// # Errors
/// It is a refusal: what that says, and what to do.
pub(crate) async fn require_ok(answer: Response) -> anyhow::Result<Response> {
    if answer.status() == StatusCode::OK { Ok(answer) } else { Err(refusal(answer).await) }
}

/// What an answer that is no success says, and what to do. Takes as long as answers may.
pub(crate) async fn refusal(answer: Response) -> anyhow::Error {
    let status = answer.status();
    let kind = answer.headers().get(CONTENT_TYPE);
    let is_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
    // If it does not come whole, the status is shown.
    let body = soon(bytes(answer, REFUSAL_MAX_BYTES)).await.unwrap_or_default();
    if is_text {
        let message = String::from_utf8_lossy(&body).trim_end().to_owned();
        return Refusal { code: String::new(), message }.told(status);
    }
    Refusal::of(serde_json::from_slice(&body).ok()).told(status)
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
    fn only_this_machine_is_reached_without_a_network() {
        for host in
            ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"]
        {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["0.0.0.0", "[::]", "10.0.0.1", "localhost.example", "127.0.0.1.example", ""] {
            assert!(!is_loopback_host(host), "{host}");
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
