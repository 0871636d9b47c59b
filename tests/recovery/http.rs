//! One request to a daemon, on a connection of its own.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// What came back.
pub(crate) enum Reply {
    /// The connection was refused, so nothing was sent.
    Refused,
    /// No complete response arrived in time.
    Broken,
    /// The status, and the body as JSON; null if it is empty.
    Complete(u16, Value),
}

/// Sends a request such as `GET /healthz`. `headers` are lines that end with `\r\n`. A null body is empty.
pub(crate) fn exchange(
    address: &str,
    request: &str,
    headers: &str,
    body: &Value,
    timeout: Duration,
) -> Reply {
    let address: SocketAddr = address.parse().expect("an address with a port");
    match TcpStream::connect_timeout(&address, timeout) {
        Ok(stream) => {
            let status_and_body = respond(stream, request, headers, body, timeout);
            status_and_body.map_or(Reply::Broken, |(status, body)| Reply::Complete(status, body))
        }
        Err(_) => Reply::Refused,
    }
}

fn respond(
    mut stream: TcpStream,
    request: &str,
    headers: &str,
    body: &Value,
    timeout: Duration,
) -> Option<(u16, Value)> {
    stream.set_read_timeout(Some(timeout)).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let is_chunked = head.contains("transfer-encoding: chunked");
    let body = if is_chunked { join_chunks(body)? } else { body.to_owned() };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if length.is_some_and(|length| length.trim().parse() != Ok(body.len())) {
        return None;
    }
    let body = if body.is_empty() { Value::Null } else { serde_json::from_str(&body).ok()? };
    Some((status, body))
}

/// The body that these chunks are of; `None` if the last one is missing.
fn join_chunks(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (length, after) = rest.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(body);
        }
        body.push_str(after.get(..length)?);
        rest = after.get(length..)?.strip_prefix("\r\n")?;
    }
}
