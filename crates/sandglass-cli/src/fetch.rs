//! Asks a daemon for a page over HTTP, in bounded time and memory.

use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use sandglass_source::printable;
use tokio::net::TcpStream;

use crate::play::pause;

/// How long all of it may take: a page that takes longer is of a daemon that hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest page that is read, in bytes: a hundred times what a daemon's metrics take.
const PAGE_MAX_BYTES: usize = 20 << 20;

/// The address that `text` names.
///
/// # Errors
/// It names none.
pub(crate) fn address(text: &str) -> anyhow::Result<Uri> {
    let bad = |_| anyhow!("`{}` is no address; name one as http://HOST:PORT", printable(text));
    text.parse().map_err(bad)
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
        let answer = ask(url, key).await?;
        require_ok(answer.status())?;
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

/// What a status other than 200 means to somebody who wants to read.
///
/// # Errors
/// It isn't 200.
pub(crate) fn require_ok(status: StatusCode) -> anyhow::Result<()> {
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            bail!("it asks for a key that may read (status {status}); name one by --api-key-env")
        }
        _ => bail!("it answers {status}"),
    }
}

async fn soon<T>(got: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        got = got => got,
        () = pause(PATIENCE) => Err(anyhow!("there is no answer within {PATIENCE:?}")),
    }
}

async fn ask(url: &Uri, key: Option<&str>) -> anyhow::Result<Response<Incoming>> {
    ensure!(url.scheme_str() == Some("http"), "only http:// is spoken here");
    let authority = url.authority().context("it names no host")?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    let (mut requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends with the answer, or with this process.
    tokio::spawn(connection);
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::get(path).header(HOST, authority.as_str());
    if let Some(key) = key {
        request = request.header(AUTHORIZATION, format!("Bearer {key}"));
    }
    Ok(requests.send_request(request.body(Empty::<Bytes>::new())?).await?)
}
