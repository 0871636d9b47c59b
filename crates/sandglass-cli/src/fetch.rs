//! The HTTP client of the commands that talk to a daemon: bounded in time and memory, and sending
//! keys only over TLS or to this machine.

mod events;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use http::Uri;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use sandglass_http::is_loopback_host;
use sandglass_model::EntityRef;
use sandglass_source::{printable, shortened};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use self::events::{
    EventStream, Feed, RECONNECT_FIRST, RECONNECT_MAX, Received, ServerEvent,
};
use self::tls::{no_tls, tls, tls_error, tls_hint};
use crate::wait::pause;

/// How long a request may take, with its response: a daemon that needs longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest body that is read, in bytes: a hundred times the metrics of a daemon.
const BODY_MAX_BYTES: usize = 20 << 20;
/// Largest body of an error, in bytes, and how many characters of its message are shown: those of
/// a daemon are a few lines.
const REFUSAL_MAX_BYTES: usize = 64 << 10;
const MESSAGE_MAX_CHARS: usize = 400;

/// The flags with which a command reaches a daemon, besides its address.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Access {
    /// The environment variable that holds a key of the daemon, if it requires one
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,
    /// Trust only the certificates in this file (PEM), instead of those of the system
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Present the certificate in this file, which also contains its private key (PEM), to a daemon
    /// that requires one
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// Send the key over plain HTTP to other machines too; anyone on the network path can read it
    #[arg(long)]
    insecure: bool,
}

/// Sends requests to a daemon, with the key if there is one.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    /// What the paths of requests follow.
    base: String,
    http: reqwest::Client,
    key: Option<String>,
    is_insecure: bool,
    /// Whether it presents no certificate, which a server may require.
    is_anonymous: bool,
}

/// Parses an address. A login in it is rejected and never shown, because a password in a command
/// line is visible to all users of the machine.
///
/// # Errors
/// Errors if it is not an address, has a login, or has an invalid port.
pub(crate) fn address(text: &str) -> anyhow::Result<Uri> {
    if let Some((_, host)) = text.rsplit_once('@') {
        bail!(
            "an address with a login (…@{}) is not accepted; name the variable that holds the key \
             with --api-key-env",
            printable(host)
        );
    }
    let address: Uri = text.parse().map_err(|_| anyhow!(not_an_address(text)))?;
    // `Uri` accepts a port that does not fit 16 bits, and then behaves as if there was none.
    let port = address.authority().and_then(|authority| {
        let port = authority.as_str().strip_prefix(authority.host())?.strip_prefix(':')?;
        authority.port_u16().is_none_or(|port| port == 0).then_some(port)
    });
    if let Some(port) = port {
        bail!(
            "`{}` has the port `{}`; a port is from 1 to 65535",
            printable(text),
            printable(port)
        );
    }
    Ok(address)
}

fn not_an_address(text: &str) -> String {
    let text = printable(text);
    format!("`{text}` is not an address; write http://HOST:PORT or https://HOST:PORT")
}

impl Client {
    /// Creates a client for the daemon at `base`, of which slashes at the end are ignored.
    ///
    /// # Errors
    /// Errors if `base` is not an address with http:// or https://, the variable holds no key, one of
    /// the files cannot be used, or there is one for plain HTTP.
    pub(crate) fn new(access: &Access, base: &str) -> anyhow::Result<Self> {
        let address = address(base)?;
        ensure!(matches!(address.scheme_str(), Some("http" | "https")), not_an_address(base));
        let Access { api_key_env, ca, identity, insecure } = access;
        let read = |name: &String| {
            std::env::var(name).with_context(|| format!("--api-key-env: `{name}` holds no key"))
        };
        let key = api_key_env.as_ref().map(read).transpose()?;
        let tls = match address.scheme_str() {
            Some("https") => tls(ca.as_deref(), identity.as_deref())?,
            _ => {
                ensure!(
                    ca.is_none() && identity.is_none(),
                    "--ca and --identity are for https://, and `{}` is plain HTTP",
                    printable(base)
                );
                no_tls()?
            }
        };
        let is_anonymous = address.scheme_str() == Some("https") && identity.is_none();
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            // The key is for this address only, not for one that the daemon or the environment names.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .user_agent(concat!("sandglass/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("failed to create the HTTP client")?;
        let base = base.trim_end_matches('/').to_owned();
        Ok(Self { base, http, key, is_insecure: *insecure, is_anonymous })
    }

    /// The address of `path`, which starts with `/` or is empty.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// Returns the body at `path`.
    ///
    /// # Errors
    /// Errors if the daemon cannot be reached or refuses, or the body is too large or not UTF-8.
    pub(crate) async fn text(&self, path: &str) -> anyhow::Result<String> {
        let whole = async {
            let response = require_ok(self.get(path).await?).await?;
            let body = bytes(response, BODY_MAX_BYTES).await?;
            String::from_utf8(body).context("the response is not UTF-8")
        };
        within_patience(whole).await.with_context(|| format!("can't get `{}`", self.url(path)))
    }

    /// Returns the JSON at `path`; `what` names it in the error.
    ///
    /// # Errors
    /// As [`text`](Self::text), or if it is not a `T`.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        path: &str,
        what: &str,
    ) -> anyhow::Result<T> {
        let text = self.text(path).await?;
        serde_json::from_str(&text).with_context(|| format!("the response is not {what}"))
    }

    /// Returns the JSON of the session at `path`; `None` if the daemon has no such session.
    ///
    /// # Errors
    /// As [`json`](Self::json).
    pub(crate) async fn session<T: DeserializeOwned>(
        &self,
        path: &str,
    ) -> anyhow::Result<Option<T>> {
        let whole = async {
            let response = self.get(path).await?;
            if matches!(response.status(), StatusCode::CONFLICT | StatusCode::NOT_FOUND) {
                let (status, refusal) = (response.status(), Refusal::of(response).await);
                // Other servers also respond with 404.
                let is_absent =
                    matches!(&*refusal.code, "unknown_type" | "unknown_entity" | "no_session");
                return if is_absent { Ok(None) } else { Err(refusal.into_error(status)) };
            }
            let body = bytes(require_ok(response).await?, BODY_MAX_BYTES).await?;
            serde_json::from_slice(&body).map(Some).context("the response is not a status")
        };
        within_patience(whole).await.with_context(|| format!("can't get `{}`", self.url(path)))
    }

    /// Returns the head of the response at `path`, of any status. Only the head is bounded in time.
    ///
    /// # Errors
    /// Errors if the daemon cannot be reached.
    pub(crate) async fn open(&self, path: &str) -> anyhow::Result<Response> {
        let response = within_patience(self.get(path)).await;
        response.with_context(|| format!("can't get `{}`", self.url(path)))
    }

    /// Posts `body` to `path`.
    ///
    /// # Errors
    /// Errors if the daemon cannot be reached, or the key does not permit it.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Posted> {
        let whole = async {
            let request = self.request(Method::POST, path)?;
            let request = request.header(CONTENT_TYPE, "application/json");
            let response = self.send(request.body(serde_json::to_vec(body)?)).await?;
            let status = response.status();
            if matches!(
                status,
                StatusCode::CONFLICT | StatusCode::NOT_FOUND | StatusCode::UNPROCESSABLE_ENTITY
            ) {
                return Ok(Posted::Refused(refusal(response).await.to_string()));
            }
            if !status.is_success() {
                return Err(refusal(response).await);
            }
            if status == StatusCode::NO_CONTENT {
                return Ok(Posted::Accepted(Value::Null));
            }
            let body = bytes(response, REFUSAL_MAX_BYTES).await?;
            serde_json::from_slice(&body).map(Posted::Accepted).context("the response is not JSON")
        };
        let url = self.url(path);
        within_patience(whole).await.with_context(|| format!("request to `{url}` failed"))
    }

    async fn get(&self, path: &str) -> anyhow::Result<Response> {
        self.send(self.request(Method::GET, path)?).await
    }

    /// Sends `request`. An error of TLS states what to do.
    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        request.send().await.map_err(|error| {
            let hint = tls_error(&error).and_then(tls_hint).or_else(|| {
                // With TLS 1.3 a server refuses a client's certificate, or its absence, only after
                // the handshake is complete for the client, so this is not an error of TLS.
                (self.is_anonymous && !error.is_connect()).then_some(
                    "it closed the connection without a response; if it requires a certificate \
                     from its clients, name one with --identity",
                )
            });
            let error = anyhow::Error::from(error.without_url());
            hint.into_iter().fold(error, anyhow::Error::context)
        })
    }

    /// A request with the key, unless others could read it on the way.
    fn request(&self, method: Method, path: &str) -> anyhow::Result<RequestBuilder> {
        let url = address(&self.url(path))?;
        let is_plain = url.scheme_str() == Some("http");
        // The host as the client will connect to it: an address has many spellings.
        let segments = url.path().matches('/').count();
        let url = reqwest::Url::parse(&url.to_string())?;
        ensure!(
            url.path().matches('/').count() == segments,
            "a name that is `.` or `..` cannot be a part of an address"
        );
        let host = url.host_str().context("the address has no host")?.to_owned();
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

/// Reads the body of a response.
///
/// # Errors
/// Errors if it breaks off, or is larger than `max_bytes`.
async fn bytes(mut response: Response, max_bytes: usize) -> anyhow::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        let len = body.len() + piece.len();
        ensure!(len <= max_bytes, "the response has more than {max_bytes} bytes");
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// Returns the response if its status is 200.
///
/// # Errors
/// Errors with the [`refusal`] otherwise.
pub(crate) async fn require_ok(response: Response) -> anyhow::Result<Response> {
    if response.status() == StatusCode::OK { Ok(response) } else { Err(refusal(response).await) }
}

/// The error that a response without success states, and what to do about it.
pub(crate) async fn refusal(response: Response) -> anyhow::Error {
    let status = response.status();
    Refusal::of(response).await.into_error(status)
}

/// The error in the body of a daemon's response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: String,
    message: String,
}

#[derive(Default, Deserialize)]
struct Envelope {
    error: Refusal,
}

impl Refusal {
    /// Reads the error that a response states. If its body is incomplete, the status is shown alone.
    async fn of(response: Response) -> Self {
        let kind = response.headers().get(CONTENT_TYPE);
        let is_text = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/plain"));
        let body = within_patience(bytes(response, REFUSAL_MAX_BYTES)).await.unwrap_or_default();
        if is_text {
            let message = String::from_utf8_lossy(&body).trim_end().to_owned();
            Self { code: String::new(), message }
        } else {
            Self::parse(&body)
        }
    }

    fn parse(body: &[u8]) -> Self {
        serde_json::from_slice::<Envelope>(body).unwrap_or_default().error
    }

    fn into_error(self, status: StatusCode) -> anyhow::Error {
        let message = shortened(&self.message, MESSAGE_MAX_CHARS);
        match (status, &*self.code) {
            (_, "cross_site") => {
                anyhow!("it does not serve requests to this host name (status {status}): {message}")
            }
            (_, "forbidden") => anyhow!(
                "{message} (status {status}); name a key that has the permission with --api-key-env"
            ),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => anyhow!(
                "it requires a key that may do this (status {status}); name one with --api-key-env"
            ),
            _ if message.is_empty() => anyhow!("it responded with {status}"),
            _ => anyhow!("it responded with {status}: {message}"),
        }
    }
}

/// How a daemon responded to a request to change something.
pub(crate) enum Posted {
    /// With its response; null if that has no body.
    Accepted(Value),
    /// Refused because of the state of the entity; the reason.
    Refused(String),
}

/// The path of a session.
pub(crate) fn session_path(session: &EntityRef) -> String {
    path_of("sessions", session)
}

/// The path of an entity.
pub(crate) fn entity_path(entity: &EntityRef) -> String {
    path_of("entities", entity)
}

fn path_of(collection: &str, entity: &EntityRef) -> String {
    let [entity_type, id] = [entity.entity_type(), entity.id()].map(path_segment);
    format!("/v1/{collection}/{entity_type}/{id}")
}

/// Percent-encodes a part of a path or query.
pub(crate) fn path_segment(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Bounds a request in time. The timeout of reqwest is no substitute: it includes the body, which
/// a live view never completes.
async fn within_patience<T>(request: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        response = request => response,
        () = pause(PATIENCE) => Err(anyhow!("no response within {PATIENCE:?}")),
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
            let message = address(text).expect_err("it has a login").to_string();
            assert!(message.contains("--api-key-env"), "{message}");
            assert!(!message.contains("user") && !message.contains("hu"), "{message}");
        }
        address("http://127.0.0.1:7341/v1/live").expect("an address");
    }

    #[test]
    fn an_invalid_port_is_refused_and_not_replaced_by_the_default() {
        for (text, port) in [
            ("http://127.0.0.1:99999", "99999"),
            ("http://[::1]:65536/x", "65536"),
            ("http://localhost:0", "0"),
        ] {
            let message = address(text).expect_err("no such port").to_string();
            assert!(
                message.contains(&format!("port `{port}`")) && message.contains("65535"),
                "{message}"
            );
        }
        for text in ["http://localhost", "http://[::1]:65535/x", "http://localhost:1"] {
            address(text).expect("an address");
        }
    }

    #[test]
    fn only_loopback_hosts_count_as_this_machine() {
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
    fn a_refusal_of_the_host_name_does_not_suggest_a_key() {
        let message =
            |status, body: &str| Refusal::parse(body.as_bytes()).into_error(status).to_string();
        let named = r#"{"error": {"code": "cross_site", "message": "`Host` must be `localhost`"}}"#;
        let text = message(StatusCode::FORBIDDEN, named);
        assert!(text.contains("`Host` must be `localhost`") && !text.contains("key"), "{text}");
        let may_not = r#"{"error": {"code": "forbidden", "message": "the key of `a` may not"}}"#;
        let text = message(StatusCode::FORBIDDEN, may_not);
        assert!(text.contains("the key of `a` may not"), "{text}");
        assert!(message(StatusCode::FORBIDDEN, "no JSON").contains("requires a key"));
        assert_eq!(message(StatusCode::NOT_FOUND, "[]"), "it responded with 404 Not Found");
    }
}
