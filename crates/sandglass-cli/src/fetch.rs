//! Gets a page of a daemon over HTTP, in bounded time and memory.

use std::time::Duration;

use anyhow::{Context, bail, ensure};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::play::pause;

/// How long all of it may take: a page that takes longer is of a daemon that hangs.
const PATIENCE: Duration = Duration::from_secs(30);
/// Largest page that is read, in bytes: a hundred times what a daemon's metrics take.
const PAGE_MAX_BYTES: usize = 20 << 20;

/// The text at `url`, asked for with `key` where there is one.
///
/// # Errors
/// It can't be had, or is no text, or larger than any page of a daemon's.
pub(crate) async fn text(url: &Uri, key: Option<&str>) -> anyhow::Result<String> {
    let got = tokio::select! {
        got = get(url, key) => got,
        () = pause(PATIENCE) => Err(anyhow::anyhow!("there is no answer within {PATIENCE:?}")),
    };
    got.with_context(|| format!("can't get `{url}`"))
}

async fn get(url: &Uri, key: Option<&str>) -> anyhow::Result<String> {
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
    let answer = requests.send_request(request.body(Empty::<Bytes>::new())?).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), PAGE_MAX_BYTES).collect().await;
    let body = body.map_err(anyhow::Error::from_boxed)?.to_bytes();
    match status {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            bail!("it asks for a key that may read (status {status}); name one by --api-key-env")
        }
        _ => bail!("it answers {status}"),
    }
    String::from_utf8(body.to_vec()).context("the answer is no text")
}
