//! HTTP by the world's own interface.

use sandglass_guest::bindings::sandglass::integration::http::{self, Request, RequestHead};
use serde_json::json;

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
