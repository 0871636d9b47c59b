//! HTTP, by the world's own interface and by WASI's.

use sandglass_guest::http::{self, Request, RequestHead};
use serde_json::json;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{Fields, Method, OutgoingRequest, Scheme};
use wasip2::io::streams::StreamError;

use crate::Answer;

fn head(method: &str, url: &str) -> RequestHead {
    RequestHead {
        method: method.to_owned(),
        url: url.to_owned(),
        headers: vec![("accept".to_owned(), "text/plain".to_owned())],
    }
}

fn shown(error: http::Error) -> String {
    format!("{error:?}")
}

/// A whole request for a whole response.
pub fn get(url: &str) -> Answer {
    let request = Request { head: head("GET", url), body: Vec::new() };
    let response = http::send(&request).map_err(shown)?;
    Ok(json!({
        "status": response.status,
        "body": String::from_utf8_lossy(&response.body),
        "has_headers": !response.headers.is_empty(),
    }))
}

/// A response that is read piece by piece.
pub fn download(url: &str) -> Answer {
    let request = Request { head: head("GET", url), body: Vec::new() };
    let response = http::open(&request).map_err(shown)?;
    let (mut bytes, mut pieces) = (0, 0);
    loop {
        let piece = response.read(7).map_err(shown)?;
        if piece.is_empty() {
            break;
        }
        bytes += piece.len();
        pieces += 1;
    }
    Ok(json!({
        "status": response.status(),
        "bytes": bytes,
        "in_pieces": pieces > 1,
        "has_headers": !response.headers().is_empty(),
    }))
}

/// A request that is written piece by piece.
pub fn upload(url: &str) -> Answer {
    let request = http::start(&head("POST", url)).map_err(shown)?;
    for _ in 0..10 {
        // A server may answer before it has read everything.
        if request.write(&[b'x'; 1000]).is_err() {
            break;
        }
    }
    let response = http::OutgoingRequest::finish(request).map_err(shown)?;
    Ok(json!({ "status": response.status() }))
}

/// A response by `wasi:http`, as standard libraries of other languages get it.
pub fn wasi_get(url: &str) -> Answer {
    let authority = url.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    let request = OutgoingRequest::new(Fields::new());
    request.set_method(&Method::Get).map_err(|()| "no method")?;
    request.set_scheme(Some(&Scheme::Http)).map_err(|()| "no scheme")?;
    request.set_authority(authority).map_err(|()| "no authority")?;
    request.set_path_with_query(Some("/")).map_err(|()| "no path")?;
    let future = outgoing_handler::handle(request, None).map_err(|code| format!("{code:?}"))?;
    future.subscribe().block();
    let response = future.get().ok_or("not ready")?.map_err(|()| "twice")?;
    let response = response.map_err(|code| format!("{code:?}"))?;
    let body = response.consume().map_err(|()| "no body")?;
    let stream = body.stream().map_err(|()| "no stream")?;
    let mut bytes = Vec::new();
    loop {
        match stream.blocking_read(1024) {
            Ok(piece) => bytes.extend(piece),
            Err(StreamError::Closed) => break,
            Err(error) => return Err(format!("{error:?}")),
        }
    }
    Ok(json!({ "status": response.status(), "body": String::from_utf8_lossy(&bytes) }))
}
