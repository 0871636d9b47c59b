//! A client with one connection, which it keeps, and a reader of the feed of records.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// Longer than a host looks for an owner.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Client {
    address: String,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(crate) fn of(address: &str) -> Self {
        Self { address: address.to_owned(), stream: None }
    }

    /// Sends a request without a body; returns the status, or 0 if there is no response.
    pub(crate) fn post(&mut self, path: &str) -> u16 {
        self.send("POST", path, "").map_or(0, |(status, _)| status)
    }

    /// Sends a request; returns the status and the body, if there is a response.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &str) -> Option<(u16, Vec<u8>)> {
        let response = self.try_send(method, path, body);
        if response.is_none() {
            self.stream = None;
        }
        response
    }

    fn try_send(&mut self, method: &str, path: &str, body: &str) -> Option<(u16, Vec<u8>)> {
        if self.stream.is_none() {
            self.stream = Some(BufReader::new(connect(&self.address)?));
        }
        let stream = self.stream.as_mut()?;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.get_mut().write_all(head.as_bytes()).ok()?;
        let (status, head) = read_head(stream)?;
        let header = |name: &str| {
            let line = head.iter().find(|line| line.starts_with(name));
            line.map(|line| line[name.len()..].trim().to_owned())
        };
        let body = match header("content-length:") {
            Some(length) => read_bytes(stream, length.parse().ok()?)?,
            None if header("transfer-encoding:").is_some() => read_chunks(stream)?,
            None => Vec::new(),
        };
        if header("connection:").as_deref() == Some("close") {
            self.stream = None;
        }
        Some((status, body))
    }
}

/// A reader of all records from now on.
pub(crate) struct Reader(BufReader<TcpStream>);

impl Reader {
    pub(crate) fn of(address: &str) -> Self {
        let mut stream = connect(address).expect("it listens");
        let request =
            "GET /v1/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it listens");
        let mut stream = BufReader::new(stream);
        let (status, _) = read_head(&mut stream).expect("a response");
        assert_eq!(status, 200);
        Self(stream)
    }

    /// Reads on until there is a record of an action of this entity.
    pub(crate) fn wait_for_action_of(&mut self, entity: &str) {
        let (kind, id) = entity.split_once('/').expect("a type and an id");
        let is_of = |line: &str| {
            line.contains(&format!("\"{kind}/{id}\"")) && line.contains("\"transition\"")
        };
        loop {
            let mut line = String::new();
            let read = self.0.read_line(&mut line).expect("events arrive");
            assert!(read > 0, "the stream ended");
            if is_of(&line) {
                return;
            }
        }
    }
}

fn connect(address: &str) -> Option<TcpStream> {
    let stream = TcpStream::connect(address).ok()?;
    stream.set_nodelay(true).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(stream)
}

/// The status, and the lines of headers with names in lower case.
fn read_head(stream: &mut BufReader<TcpStream>) -> Option<(u16, Vec<String>)> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        lines.push(line.to_ascii_lowercase());
    }
    let status = lines.first()?.split(' ').nth(1)?.parse().ok()?;
    Some((status, lines))
}

fn read_bytes(stream: &mut BufReader<TcpStream>, length: usize) -> Option<Vec<u8>> {
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn read_chunks(stream: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        body.extend(read_bytes(stream, length)?);
        read_bytes(stream, 2)?;
        if length == 0 {
            return Some(body);
        }
    }
}
