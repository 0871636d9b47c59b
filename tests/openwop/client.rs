//! Requests to a host, as a client sends them, one connection each.

use std::io::{BufRead as _, BufReader, ErrorKind, Lines, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::schema;

/// The key that hosts of tests have.
pub(crate) const KEY: &str = "the-key-of-these-tests-4711";

/// Long enough for any machine: a test that would hang fails instead.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a host answered.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// The status line and the headers, in lower case.
    head: String,
    pub(crate) text: String,
    /// What its text is as JSON; null where it is none.
    pub(crate) body: Value,
}

impl Reply {
    /// A header's value, in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Its body, where it has this status.
    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        self.body
    }

    /// That it is an error, in the one form that errors have.
    #[track_caller]
    pub(crate) fn fails(&self, status: u16, code: &str) -> &Value {
        assert_eq!((self.status, &self.body["error"]), (status, &code.into()), "{self:?}");
        let fields = self.body.as_object().expect("an object");
        let known = ["error", "message", "details"];
        assert!(fields.keys().all(|key| known.contains(&key.as_str())), "{self:?}");
        schema::envelope(&self.body);
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        &self.body["details"]
    }
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let lines = head.lines().skip(1);
    let mut fields = lines.filter_map(|line| line.split_once(": "));
    fields.find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// A request, which has the key unless that is taken from it.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    line: String,
    headers: String,
    body: Vec<u8>,
}

impl Ask {
    /// `line` is the method and the path.
    pub(crate) fn new(line: &str) -> Self {
        let headers = format!("authorization: Bearer {KEY}\r\n");
        Self { line: line.to_owned(), headers, body: Vec::new() }
    }

    pub(crate) fn without_key(line: &str) -> Self {
        Self { headers: String::new(), ..Self::new(line) }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.text(&body.to_string())
    }

    /// The same with a body that says it is JSON.
    pub(crate) fn text(self, body: &str) -> Self {
        let asked = self.header("content-type", "application/json");
        Self { body: body.as_bytes().to_owned(), ..asked }
    }

    /// Sends it; an answer that isn't whole is none.
    pub(crate) fn send(&self, address: &str) -> Option<Reply> {
        let mut stream = self.begin(address)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let head = head.to_ascii_lowercase();
        let length = header(&head, "content-length").and_then(|length| length.parse().ok());
        if length.is_some_and(|length: usize| length != body.len()) {
            return None;
        }
        let status = head.split(' ').nth(1)?.parse().ok()?;
        let json = serde_json::from_str(body).unwrap_or_default();
        Some(Reply { status, head, text: body.to_owned(), body: json })
    }

    fn begin(&self, address: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let Self { line, headers, body } = self;
        let length = body.len();
        // Of version 1.0, so that streams come without the frames of chunks.
        let head = format!(
            "{line} HTTP/1.0\r\nhost: localhost\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        // A host that refuses a body may close before it has all of it.
        let sent = stream.write_all(&[head.as_bytes(), body].concat());
        let is_closed = |kind| matches!(kind, ErrorKind::BrokenPipe | ErrorKind::ConnectionReset);
        match sent {
            Err(error) if !is_closed(error.kind()) => None,
            _ => Some(stream),
        }
    }

    /// Opens the stream that this asks for.
    #[track_caller]
    pub(crate) fn open(&self, address: &str) -> Stream {
        let stream = self.begin(address).expect("it listens");
        let mut lines = BufReader::new(stream).lines();
        let mut head = String::new();
        for line in lines.by_ref() {
            let line = line.expect("text");
            if line.is_empty() {
                break;
            }
            head += &line.to_ascii_lowercase();
            head.push('\n');
        }
        assert!(head.starts_with("http/1.0 200"), "{head}");
        assert_eq!(header(&head, "content-type"), Some("text/event-stream"), "{head}");
        Stream(lines)
    }
}

/// Events as they come.
#[derive(Debug)]
pub(crate) struct Stream(Lines<BufReader<TcpStream>>);

/// What stands between two empty lines of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Frame {
    Comment(String),
    Event { id: u64, event: String, data: Value },
}

impl Iterator for Stream {
    type Item = Frame;

    /// The next frame; none where the host has closed the stream behind a whole one.
    #[track_caller]
    fn next(&mut self) -> Option<Frame> {
        let mut frame = Vec::new();
        for line in self.0.by_ref() {
            let line = line.expect("the stream goes on");
            if line.is_empty() {
                return Some(parsed(&frame));
            }
            frame.push(line);
        }
        assert!(frame.is_empty(), "half a frame: {frame:?}");
        None
    }
}

#[track_caller]
fn parsed(frame: &[String]) -> Frame {
    if let [comment] = frame
        && let Some(comment) = comment.strip_prefix(':')
    {
        return Frame::Comment(comment.trim().to_owned());
    }
    let [id, event, data] = frame else { panic!("not an id, an event and data: {frame:?}") };
    let id = id.strip_prefix("id: ").and_then(|id| id.parse().ok());
    let event = event.strip_prefix("event: ").map(str::to_owned);
    let data = data.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok());
    match (id, event, data) {
        (Some(id), Some(event), Some(data)) => Frame::Event { id, event, data },
        _ => panic!("no frame of an event: {frame:?}"),
    }
}
