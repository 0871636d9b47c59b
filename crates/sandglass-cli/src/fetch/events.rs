//! The server-sent events of a daemon, and when to reconnect after they end.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Response, StatusCode};

use super::{Client, refusal, require_ok};
use crate::duration::format_duration;
use crate::wait::pause;

/// How long to wait before reconnecting, at first and at most: short enough after a restart of
/// the daemon, and no load on one that is gone for a night.
pub(crate) const RECONNECT_FIRST: Duration = Duration::from_millis(500);
pub(crate) const RECONNECT_MAX: Duration = Duration::from_secs(15);
/// The header with the longest silence of a healthy daemon, in milliseconds.
const KEEP_ALIVE_HEADER: &str = "sandglass-keep-alive-ms";
/// The longest silence if the header is absent: the default of daemons.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Bounds on the header's value: below the first, jitter of the network looks like silence; above
/// the second, a lost daemon would go unnoticed.
const KEEP_ALIVE_MIN: Duration = Duration::from_secs(1);
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(600);
/// After how many intervals of silence a connection counts as lost.
const LOST_AFTER: u32 = 3;

/// A stream of events to open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feed<'a> {
    pub(crate) path: &'a str,
    /// What it is, for the error about an address that has none: `a live view`.
    pub(crate) what: &'static str,
    /// Largest event, in bytes.
    pub(crate) event_max_bytes: usize,
}

/// The events of one connection.
#[derive(Debug)]
pub(crate) struct EventStream {
    response: Response,
    events: Events,
    keep_alive: Duration,
}

/// What a stream received.
#[derive(Debug)]
pub(crate) enum Received {
    Event(ServerEvent),
    /// Something without an event: the daemon is alive.
    KeepAlive,
}

/// An event with data.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerEvent {
    /// Behind it, as a daemon understands it: its position in the journal, or a cursor.
    pub(crate) id: Option<String>,
    pub(crate) kind: String,
    pub(crate) data: String,
}

impl Client {
    /// Opens a stream of events.
    ///
    /// # Errors
    /// Errors if the daemon cannot be reached or refuses, or the response is not a stream.
    pub(crate) async fn events(&self, feed: Feed<'_>) -> anyhow::Result<EventStream> {
        EventStream::of(self, feed, self.open(feed.path).await?).await
    }

    /// As [`events`](Self::events), for a stream that has ended. The inner error is one that may
    /// pass.
    ///
    /// # Errors
    /// Errors if the daemon refuses, or the response is not a stream.
    pub(crate) async fn events_again(
        &self,
        feed: Feed<'_>,
    ) -> anyhow::Result<Result<EventStream, String>> {
        match self.open(feed.path).await {
            Ok(response) if is_temporary(response.status()) => {
                Ok(Err(refusal(response).await.to_string()))
            }
            Ok(response) => EventStream::of(self, feed, response).await.map(Ok),
            Err(error) => Ok(Err(format!("{error:#}"))),
        }
    }

    /// The error about an address that has no such stream.
    pub(crate) fn no_stream(&self, feed: Feed<'_>) -> String {
        let Feed { path, what, .. } = feed;
        format!("`{}` is not {what}; give the address of a daemon", self.url(path))
    }
}

/// Whether a later request may succeed.
fn is_temporary(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

fn keep_alive(headers: &HeaderMap) -> Duration {
    let millis = headers.get(KEEP_ALIVE_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    millis.map_or(KEEP_ALIVE, Duration::from_millis).clamp(KEEP_ALIVE_MIN, KEEP_ALIVE_MAX)
}

impl EventStream {
    async fn of(client: &Client, feed: Feed<'_>, response: Response) -> anyhow::Result<Self> {
        let response = require_ok(response).await;
        let response =
            response.with_context(|| format!("can't get `{}`", client.url(feed.path)))?;
        let kind = response.headers().get(CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        ensure!(is_stream, client.no_stream(feed));
        let keep_alive = keep_alive(response.headers());
        Ok(Self { response, events: Events::new(feed.event_max_bytes), keep_alive })
    }

    /// The longest silence while the daemon is alive.
    pub(crate) const fn keep_alive(&self) -> Duration {
        self.keep_alive
    }

    /// Returns what comes next; `None` at the end of the stream. Cancel safe.
    ///
    /// # Errors
    /// Errors if the connection breaks or is silent for too long, or if an event is too large or
    /// not UTF-8.
    pub(crate) async fn next(&mut self) -> anyhow::Result<Option<Received>> {
        if let Some(event) = self.events.take()? {
            return Ok(Some(Received::Event(event)));
        }
        let patience = self.keep_alive * LOST_AFTER;
        let piece = tokio::select! {
            piece = self.response.chunk() => piece,
            () = pause(patience) => {
                bail!("the daemon was silent for {}", format_duration(patience))
            }
        };
        let Some(bytes) = piece? else { return Ok(None) };
        self.events.put(&bytes)?;
        Ok(Some(self.events.take()?.map_or(Received::KeepAlive, Received::Event)))
    }
}

/// Splits the pieces of a stream into server-sent events. Written by hand, because no dependency of
/// the project reads them with a bound on the size of an event.
#[derive(Debug)]
struct Events {
    max_bytes: usize,
    bytes: Vec<u8>,
    /// Where the next event begins in `bytes`.
    start: usize,
    /// Up to where it is known that none ends.
    searched: usize,
}

impl Events {
    const fn new(max_bytes: usize) -> Self {
        Self { max_bytes, bytes: Vec::new(), start: 0, searched: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.bytes.extend(bytes.iter().filter(|byte| **byte != b'\r'));
        let max_bytes = self.max_bytes;
        let len = self.bytes.len() - self.start;
        ensure!(len <= max_bytes, "an event has more than {max_bytes} bytes");
        Ok(())
    }

    /// Returns the next complete event that has data.
    fn take(&mut self) -> anyhow::Result<Option<ServerEvent>> {
        loop {
            let rest = &self.bytes[self.searched..];
            let Some(end) = rest.windows(2).position(|two| two == b"\n\n") else {
                self.bytes.drain(..self.start);
                self.start = 0;
                // The last byte may be the first of an end.
                self.searched = self.bytes.len().saturating_sub(1);
                return Ok(None);
            };
            let end = self.searched + end;
            let text = str::from_utf8(&self.bytes[self.start..end]);
            let event = ServerEvent::parse(text.context("an event is not UTF-8")?);
            self.start = end + 2;
            self.searched = self.start;
            if !event.data.is_empty() {
                return Ok(Some(event));
            }
        }
    }
}

impl ServerEvent {
    fn parse(text: &str) -> Self {
        let mut event = Self::default();
        for line in text.lines() {
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => event.id = Some(value.to_owned()),
                "event" => value.clone_into(&mut event.kind),
                "data" => {
                    if !event.data.is_empty() {
                        event.data.push('\n');
                    }
                    event.data.push_str(value);
                }
                _ => {}
            }
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_stream_is_cut_and_comments_are_skipped() {
        let stream = ":\n\nevent: live\r\nid: 7\ndata: {\"a\":\ndata:1}\n\n: alive\n\ndata: é\n\n\
            data: cut";
        for size in [1, 2, 7, stream.len()] {
            let (mut events, mut found) = (Events::new(1_000), Vec::new());
            for piece in stream.as_bytes().chunks(size) {
                events.put(piece).expect("small");
                while let Some(event) = events.take().expect("text") {
                    found.push((event.id, event.kind, event.data));
                }
            }
            let expected = [
                (Some("7".to_owned()), "live".to_owned(), "{\"a\":\n1}".to_owned()),
                (None, String::new(), "é".to_owned()),
            ];
            assert_eq!(found, expected, "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_and_one_that_is_not_utf8_are_refused() {
        let mut events = Events::new(1_000);
        let piece = vec![b'x'; 1_000];
        events.put(&piece).expect("just small enough");
        events.put(b"x").expect_err("too large");
        let mut events = Events::new(1_000);
        events.put(b"data: \xff\n\n").expect("small");
        events.take().expect_err("not UTF-8");
        // The bound is on each event, not on the stream.
        let mut events = Events::new(20);
        for _ in 0..10 {
            events.put(b"data: 12345678\n\n").expect("small");
            assert!(events.take().expect("text").is_some());
        }
    }
}
