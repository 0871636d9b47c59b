//! Writes a stream of events (`text/event-stream`) to a connection that carries nothing else from then
//! on. It is written by hand because hyper keeps two buffers of 8 KiB for each connection, and most
//! readers of events wait most of the time (ADR 28; measured by `tests/idle`).
//!
//! ```text
//!  hyper: head ──▶ service ──▶ response ── events? ──no──▶ hyper
//!                                            │ yes: hyper and its buffers are dropped
//!                                            ▼
//!                              here: head, chunks as they come, end; close
//! ```

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode, Version, header};
use axum::response::Response;
use bytes::Buf as _;
use futures_util::StreamExt as _;
use hyper::body::{Body as _, Incoming};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use sandglass_model::{Clock as _, SystemClock, WallTime};
use tokio::io::{AsyncRead as _, AsyncWriteExt as _, ReadBuf};

use crate::tls::Io;

/// The media type of events (WHATWG HTML, 9.2).
const MEDIA_TYPE: &str = "text/event-stream";

/// Headers about the framing of a response, which is decided here.
const FRAMING: [header::HeaderName; 3] =
    [header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// Whether only the response can follow `request`: it has arrived completely, and its client supports
/// chunks.
pub(crate) fn may_follow(request: &Request<Incoming>) -> bool {
    request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && request.body().is_end_stream()
}

/// Whether `response` is a stream of events.
pub(crate) fn is_event_stream(response: &Response) -> bool {
    let sent = response.headers().get(header::CONTENT_TYPE);
    let essence = sent.and_then(|value| value.to_str().ok()?.split(';').next());
    response.status() == StatusCode::OK && essence.is_some_and(|text| text.trim() == MEDIA_TYPE)
}

/// Writes `response` until its stream or the connection ends, and closes the connection.
pub(crate) async fn write(mut connection: Io, response: Response) -> io::Result<()> {
    let (parts, body) = response.into_parts();
    connection.write_all(&head(&parts.headers)?).await?;
    drop(parts);
    write_chunks(&mut connection, body).await?;
    connection.write_all(b"0\r\n\r\n").await?;
    connection.shutdown().await
}

/// Writes the pieces of `body` as chunks (RFC 9112, 7.1).
async fn write_chunks(connection: &mut Io, body: Body) -> io::Result<()> {
    let mut pieces = body.into_data_stream();
    let mut is_reading = true;
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            read = poll_fn(|context| poll_client(connection, context)), if is_reading => {
                read?;
                is_reading = false;
                continue;
            }
        };
        match piece {
            Some(Ok(piece)) if piece.is_empty() => {}
            Some(Ok(piece)) => write_chunk(connection, piece).await?,
            Some(Err(error)) => return Err(io::Error::other(error)),
            None => return Ok(()),
        }
    }
}

async fn write_chunk(connection: &mut Io, piece: Bytes) -> io::Result<()> {
    let size = format!("{:x}\r\n", piece.len());
    let mut chunk = size.as_bytes().chain(piece).chain(b"\r\n".as_slice());
    connection.write_all_buf(&mut chunk).await
}

/// Waits until the client sends something or closes its side, and errors if the connection breaks, so
/// that the stream ends at once. A client that has closed its side still reads, and what it sends is
/// ignored.
fn poll_client(connection: &mut Io, context: &mut Context<'_>) -> Poll<io::Result<()>> {
    let mut buffer = [0; 16];
    ready!(Pin::new(connection).poll_read(context, &mut ReadBuf::new(&mut buffer)))?;
    Poll::Ready(Ok(()))
}

/// The head of the response, with the date that a server must add (RFC 9110, 6.6.1).
fn head(headers: &HeaderMap) -> io::Result<Vec<u8>> {
    let mut head = b"HTTP/1.1 200 OK\r\n".to_vec();
    for (name, value) in headers.iter().filter(|(name, _)| !FRAMING.contains(name)) {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    if !headers.contains_key(header::DATE) {
        write!(head, "date: {}\r\n", date(SystemClock::new().wall()))?;
    }
    head.extend_from_slice(b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n");
    Ok(head)
}

/// A date in the format of HTTP (RFC 9110, 5.6.7).
fn date(moment: WallTime) -> String {
    let moment = Timestamp::from_millisecond(moment.as_millis()).unwrap_or_default();
    DateTimePrinter::new().timestamp_to_rfc9110_string(&moment).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_has_the_format_of_http() {
        let moment = WallTime::from_millis(784_111_777_999);
        assert_eq!(date(moment), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn only_a_successful_response_of_its_media_type_is_an_event_stream() {
        let response = |status, media_type: &str| {
            let head = Response::builder().status(status).header(header::CONTENT_TYPE, media_type);
            head.body(Body::empty()).expect("a response")
        };
        assert!(is_event_stream(&response(StatusCode::OK, "text/event-stream")));
        assert!(is_event_stream(&response(StatusCode::OK, "text/event-stream; charset=utf-8")));
        assert!(!is_event_stream(&response(StatusCode::OK, "application/json")));
        assert!(!is_event_stream(&response(StatusCode::CONFLICT, "text/event-stream")));
        assert!(!is_event_stream(&Response::new(Body::empty())));
    }

    #[test]
    fn a_head_has_no_framing_but_its_own() {
        let sent = [("content-length", "7"), ("cache-control", "no-store"), ("x-a", "1")];
        let sent = sent.map(|(name, value)| {
            (header::HeaderName::from_static(name), value.parse().expect("a value"))
        });
        let head = String::from_utf8(head(&sent.into_iter().collect()).expect("a head"));
        let head = head.expect("text");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\ncache-control: no-store\r\nx-a: 1\r\ndate: "));
        assert!(head.ends_with("\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"));
        assert!(!head.contains("content-length"), "{head}");
    }
}
