//! A client of an HTTP interface, for tests: one connection for each request, and nothing
//! that a library would fix.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    /// Without its chunks, where it came in some.
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Reads an answer whose connection closes behind it.
    pub(crate) fn read(stream: &mut TcpStream) -> Option<Self> {
        let mut bytes = Vec::new();
        // A connection that is reset has still said what came before.
        let _ = stream.read_to_end(&mut bytes);
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let mut answer =
            Self { status: status.expect("a status"), head, body: bytes[end + 4..].to_vec() };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = joined(&answer.body);
        }
        Some(answer)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let line = |line: &'_ str| line.split_once(": ").map(|(key, _)| key.to_lowercase());
        let found = self.head.lines().find(|one| line(one).as_deref() == Some(name))?;
        found.split_once(": ").map(|(_, value)| value)
    }

    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    pub(crate) fn text(&self) -> String {
        format!("{}\n\n{}", self.head, String::from_utf8_lossy(&self.body))
    }
}

/// The content of the chunks (RFC 9112, 7.1) that have arrived.
fn joined(mut chunks: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(end) = chunks.windows(2).position(|two| two == b"\r\n") {
        let size = str::from_utf8(&chunks[..end]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok()).expect("a size");
        let chunk = &chunks[end + 2..];
        all.extend_from_slice(&chunk[..size.min(chunk.len())]);
        chunks = chunk.get(size + 2..).unwrap_or_default();
    }
    all
}

/// A request, after which the connection closes.
pub(crate) fn request(
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
    if headers.iter().all(|(name, _)| *name != "host") {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("content-length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}

/// Sends bytes, and gives the answer.
#[track_caller]
pub(crate) fn exchange(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = connect(address);
    // A server that has heard enough answers and closes before all is sent.
    let _ = stream.write_all(bytes);
    Answer::read(&mut stream).expect("an answer")
}

pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    // Long enough for any machine: a test that would hang fails instead.
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    stream
}
