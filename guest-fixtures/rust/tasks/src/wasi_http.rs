//! Requests by `wasi:http` 0.3.

use futures_util::future::{join, join_all};
use serde_json::json;
use wasip3::http::client;
use wasip3::http::types::{ErrorCode, Fields, Method, Request, RequestOptions, Response, Scheme};
use wit_bindgen::StreamReader;

use crate::{Answer, Config};

/// Makes a request of `url`, which has no TLS.
fn request(
    method: Method,
    url: &str,
    contents: Option<StreamReader<u8>>,
    options: Option<RequestOptions>,
) -> Result<(Request, impl Future<Output = Result<(), ErrorCode>>), String> {
    let rest = url.strip_prefix("http://").ok_or("the URL has another scheme")?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let headers = Fields::new();
    headers.append("accept", b"text/plain").map_err(describe)?;
    let (trailers, ended) = wasip3::wit_future::new(|| Ok(None));
    let (request, sent) = Request::new(headers, contents, ended, options);
    drop(trailers);
    let part = |result: Result<(), ()>| result.map_err(|()| format!("`{url}` is not valid"));
    part(request.set_method(&method))?;
    part(request.set_scheme(Some(&Scheme::Http)))?;
    part(request.set_authority(Some(authority)))?;
    part(request.set_path_with_query(Some(path)))?;
    Ok((request, async move { sent.await }))
}

fn describe(error: impl std::fmt::Debug) -> String {
    format!("{error:?}")
}

/// Reads the whole body of a response.
async fn body_of(response: Response) -> Result<Vec<u8>, String> {
    let (consumed, result) = wasip3::wit_future::new(|| Ok(()));
    let (body, ended) = Response::consume_body(response, result);
    let body = body.collect().await;
    let trailers = ended.await.map_err(describe)?;
    drop(consumed);
    match trailers {
        None => Ok(body),
        Some(_) => Err("the response has trailers".to_owned()),
    }
}

/// Gets `url` `count` times at once.
pub(crate) async fn get_many(config: &Config) -> Answer {
    let gets = (0..config.number("count", 1)).map(|number| async move {
        let url = format!("{}?{number}", config.text("url"));
        let (request, sent) = request(Method::Get, &url, None, None)?;
        let response = client::send(request).await.map_err(describe)?;
        sent.await.map_err(describe)?;
        let (status, headers) = (response.get_status_code(), response.get_headers());
        let headers = headers.copy_all().len();
        let body = body_of(response).await?;
        Ok(json!({ "status": status, "headers": headers > 0, "bytes": body.len() }))
    });
    let responses: Result<Vec<_>, String> = join_all(gets).await.into_iter().collect();
    Ok(json!({ "responses": responses? }))
}

/// Sends `count` pieces of 1,000 bytes to `url`, and compares what it returns.
pub(crate) async fn upload(config: &Config) -> Answer {
    let sent: Vec<u8> =
        (0..config.number("count", 3) * 1000).map(|at| (at * 7 % 251) as u8).collect();
    let (mut writer, reader) = wasip3::wit_stream::new();
    let (request, transmitted) = request(Method::Post, config.text("url"), Some(reader), None)?;
    let write = async {
        let unsent = writer.write_all(sent.clone()).await;
        drop(writer);
        unsent.len()
    };
    let (response, unsent) = join(client::send(request), write).await;
    let body = body_of(response.map_err(describe)?).await?;
    let transmitted = transmitted.await;
    Ok(json!({ "unsent": unsent, "same": body == sent, "transmitted": transmitted.is_ok() }))
}

/// Sends requests that fail: to a server that does not respond in time, and to one that it may not
/// reach.
pub(crate) async fn fail(config: &Config) -> Answer {
    let options = RequestOptions::new();
    options.set_first_byte_timeout(Some(20_000_000)).map_err(describe)?;
    let (late, sent) = request(Method::Get, config.text("url"), None, Some(options))?;
    let late = client::send(late).await.err().map(describe);
    let sent = sent.await.err().map(describe);
    let (denied, _) = request(Method::Get, "http://denied.example/", None, None)?;
    let denied = client::send(denied).await.err().map(describe);
    let bare = Request::new(Fields::new(), None, wasip3::wit_future::new(|| Ok(None)).1, None).0;
    let bare = client::send(bare).await.is_err();
    let forbidden = Fields::new().append("host", b"another").err().map(describe);
    Ok(json!({
        "late": late, "sent": sent, "denied": denied, "bare": bare, "forbidden": forbidden,
    }))
}

/// Makes a request and a response with a body each, and reads those itself, without a server.
pub(crate) async fn alone() -> Answer {
    let (mut writer, reader) = wasip3::wit_stream::new();
    let (_, ended) = wasip3::wit_future::new(|| Ok(None));
    let (made, _) = Response::new(Fields::new(), Some(reader), ended);
    made.set_status_code(404).map_err(describe)?;
    let status = made.get_status_code();
    let write = async {
        writer.write_all(b"not found".to_vec()).await;
        drop(writer);
    };
    let (body, ()) = join(body_of(made), write).await;
    let (_, ended) = wasip3::wit_future::new(|| Ok(None));
    let (unsent, sent) = Request::new(Fields::new(), None, ended, None);
    drop(unsent);
    let dropped = sent.await.is_ok();
    let body = String::from_utf8_lossy(&body?).into_owned();
    Ok(json!({ "status": status, "body": body, "dropped": dropped }))
}

/// Writes long errors as the trailers of responses that it consumes itself, and reads none.
pub(crate) async fn hoard_errors() -> Answer {
    let mut kept = Vec::new();
    loop {
        let (writer, ended) = wasip3::wit_future::new(|| Ok(None));
        let (made, sent) = Response::new(Fields::new(), None, ended);
        let (consumed, result) = wasip3::wit_future::new(|| Ok(()));
        kept.push((Response::consume_body(made, result), consumed, sent));
        let error = ErrorCode::InternalError(Some("x".repeat(1 << 20)));
        writer.write(Err(error)).await.map_err(describe)?;
    }
}
