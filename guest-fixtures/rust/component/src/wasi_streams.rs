//! Waiting in each function of `wasi:io/streams` that can wait: for a response that comes
//! slowly, and for a server that doesn't take what it is sent.

use serde_json::json;
use wasip2::cli::stdout::get_stdout;
use wasip2::http::outgoing_handler;
use wasip2::http::types::{
    Fields, FutureIncomingResponse, IncomingBody, Method, OutgoingBody, OutgoingRequest, Scheme,
};
use wasip2::io::streams::{InputStream, OutputStream, StreamError};

use crate::Answer;

/// As much as one write takes.
const PIECE: u64 = 4096;

pub fn call(does: &str, url: &str) -> Option<Answer> {
    Some(match does {
        "wasi_get" => get(url),
        "wasi_skip" => received(url, |body| body.blocking_skip(PIECE).map(drop)),
        "wasi_splice" => received(url, |body| get_stdout().blocking_splice(body, PIECE).map(drop)),
        "wasi_write" => sent(url, |body| body.blocking_write_and_flush(&[0; PIECE as usize])),
        "wasi_write_zeroes" => sent(url, |body| body.blocking_write_zeroes_and_flush(PIECE)),
        "wasi_flush" => sent(url, |body| {
            let room = body.check_write()?.min(PIECE);
            body.write(&vec![0; room as usize])?;
            body.blocking_flush()
        }),
        _ => return None,
    })
}

fn request(method: &Method, url: &str) -> Result<OutgoingRequest, String> {
    let authority = url.strip_prefix("http://").and_then(|rest| rest.split('/').next());
    let request = OutgoingRequest::new(Fields::new());
    request.set_method(method).map_err(|()| "no method")?;
    request.set_scheme(Some(&Scheme::Http)).map_err(|()| "no scheme")?;
    request.set_authority(authority).map_err(|()| "no authority")?;
    request.set_path_with_query(Some("/")).map_err(|()| "no path")?;
    Ok(request)
}

fn send(request: OutgoingRequest) -> Result<FutureIncomingResponse, String> {
    outgoing_handler::handle(request, None).map_err(|code| format!("{code:?}"))
}

/// The body of a response, and its status.
fn open(url: &str) -> Result<(u16, IncomingBody), String> {
    let future = send(request(&Method::Get, url)?)?;
    future.subscribe().block();
    let response = future.get().ok_or("not ready")?.map_err(|()| "twice")?;
    let response = response.map_err(|code| format!("{code:?}"))?;
    Ok((response.status(), response.consume().map_err(|()| "no body")?))
}

/// A response, as standard libraries of other languages get it.
fn get(url: &str) -> Answer {
    let (status, body) = open(url)?;
    let stream = body.stream().map_err(|()| "no stream")?;
    let mut bytes = Vec::new();
    to_the_end(|| {
        bytes.extend(stream.blocking_read(1024)?);
        Ok(())
    })?;
    Ok(json!({ "status": status, "body": String::from_utf8_lossy(&bytes) }))
}

/// Takes a response's body by `take`.
fn received(url: &str, take: impl Fn(&InputStream) -> Result<(), StreamError>) -> Answer {
    let (status, body) = open(url)?;
    let stream = body.stream().map_err(|()| "no stream")?;
    to_the_end(|| take(&stream))?;
    Ok(json!({ "status": status }))
}

/// Sends a body that has no end, by `give`.
fn sent(url: &str, give: impl Fn(&OutputStream) -> Result<(), StreamError>) -> Answer {
    let request = request(&Method::Post, url)?;
    let body: OutgoingBody = request.body().map_err(|()| "no body")?;
    let _response = send(request)?;
    let stream = body.write().map_err(|()| "no stream")?;
    to_the_end(|| give(&stream))?;
    Ok(json!({ "taken": true }))
}

/// Goes on until the other side has closed the stream.
fn to_the_end(mut step: impl FnMut() -> Result<(), StreamError>) -> Result<(), String> {
    loop {
        match step() {
            Ok(()) => {}
            Err(StreamError::Closed) => return Ok(()),
            Err(error) => return Err(format!("{error:?}")),
        }
    }
}
