//! Reads the live view from a daemon's server-sent events, and reconnects when they end.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Response, StatusCode};
use tokio::sync::mpsc;

use super::scene::Scene;
use crate::duration::format_duration;
use crate::fetch;
use crate::wait::pause;

/// The path of the live view.
const PATH: &str = "/v1/live";
/// Largest event, in bytes: several times the largest snapshot that a daemon sends.
const EVENT_MAX_BYTES: usize = 4 << 20;
/// How long to wait before reconnecting, at first and at most: short enough after a restart of
/// the daemon, and no load on one that is gone for a night.
const RECONNECT_FIRST: Duration = Duration::from_millis(500);
const RECONNECT_MAX: Duration = Duration::from_secs(15);
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

/// The live view of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) client: fetch::Client,
}

/// What the connection reports to the view.
#[derive(Debug)]
pub(super) enum Update {
    /// Connected; a healthy daemon is never silent for longer than this.
    Connected(Duration),
    /// A keep-alive, without a snapshot.
    Alive,
    Scene(Scene),
    /// Not connected: why, and when it reconnects.
    Disconnected(String),
    /// The daemon refused the first connection; there is no further attempt.
    Refused(anyhow::Error),
}

/// The snapshots of one connection.
#[derive(Debug)]
pub(super) struct Scenes {
    response: Response,
    events: Events,
    keep_alive: Duration,
}

/// One item of a stream.
enum Item {
    Scene(String),
    KeepAlive,
}

impl Source {
    /// # Errors
    /// Errors if the daemon cannot be reached, or refuses the request.
    pub(super) async fn connect(&self) -> anyhow::Result<Scenes> {
        self.scenes(self.client.open(PATH).await?).await
    }

    /// Returns one snapshot, without taking one of the daemon's places for subscribers.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), or if the response is not a live view.
    pub(super) async fn once(&self) -> anyhow::Result<String> {
        let scene = self.client.text(&format!("{PATH}?once=true")).await?;
        ensure!(Scene::read(&scene).is_ok(), self.not_a_live_view());
        Ok(scene)
    }

    /// Connects again. The inner error is one that may pass.
    async fn reconnect(&self) -> anyhow::Result<Result<Scenes, String>> {
        match self.client.open(PATH).await {
            Ok(response) if is_temporary(response.status()) => {
                Ok(Err(fetch::refusal(response).await.to_string()))
            }
            Ok(response) => self.scenes(response).await.map(Ok),
            Err(error) => Ok(Err(format!("{error:#}"))),
        }
    }

    async fn scenes(&self, response: Response) -> anyhow::Result<Scenes> {
        let response = fetch::require_ok(response).await;
        let response =
            response.with_context(|| format!("can't get `{}`", self.client.url(PATH)))?;
        let kind = response.headers().get(CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        ensure!(is_stream, self.not_a_live_view());
        let keep_alive = keep_alive(response.headers());
        Ok(Scenes { response, events: Events::default(), keep_alive })
    }

    fn not_a_live_view(&self) -> String {
        format!("`{}` is not a live view; give the address of a daemon", self.client.url(PATH))
    }
}

fn keep_alive(headers: &HeaderMap) -> Duration {
    let millis = headers.get(KEEP_ALIVE_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    millis.map_or(KEEP_ALIVE, Duration::from_millis).clamp(KEEP_ALIVE_MIN, KEEP_ALIVE_MAX)
}

/// Whether a later request may succeed.
fn is_temporary(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Sends what `source` reports to `updates`, and reconnects when its stream ends, until the
/// receiver is gone or the daemon refuses.
pub(super) async fn follow(source: Source, updates: mpsc::Sender<Update>) {
    let mut scenes = source.connect().await.map(Ok);
    let mut wait = RECONNECT_FIRST;
    loop {
        let why = match scenes {
            Ok(Ok(connected)) => match forward(connected, &updates, &mut wait).await {
                Ok(()) => "the connection ended".to_owned(),
                Err(error) => format!("{error:#}"),
            },
            Ok(Err(why)) => why,
            Err(error) => {
                // The receiver may be gone.
                let _ = updates.send(Update::Refused(error)).await;
                return;
            }
        };
        let problem = format!("{why}; reconnecting in {}", format_duration(wait));
        if updates.send(Update::Disconnected(problem)).await.is_err() {
            return;
        }
        pause(wait).await;
        wait = (wait * 2).min(RECONNECT_MAX);
        let problem = format!("{why}; reconnecting now");
        if updates.send(Update::Disconnected(problem)).await.is_err() {
            return;
        }
        scenes = source.reconnect().await;
    }
}

/// Forwards what one connection sends. A snapshot resets `wait`, because the daemon is back.
async fn forward(
    mut scenes: Scenes,
    updates: &mpsc::Sender<Update>,
    wait: &mut Duration,
) -> anyhow::Result<()> {
    let mut update = Update::Connected(scenes.keep_alive);
    while updates.send(update).await.is_ok() {
        update = match scenes.next_item().await? {
            Some(Item::Scene(data)) => {
                *wait = RECONNECT_FIRST;
                Update::Scene(Scene::read(&data)?)
            }
            Some(Item::KeepAlive) => Update::Alive,
            None => return Ok(()),
        };
    }
    Ok(())
}

impl Scenes {
    /// Returns the data of the next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// Errors if the connection breaks or is silent for too long, or if an event is too large or
    /// not UTF-8.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.next_item().await? {
                Some(Item::Scene(data)) => return Ok(Some(data)),
                Some(Item::KeepAlive) => {}
                None => return Ok(None),
            }
        }
    }

    async fn next_item(&mut self) -> anyhow::Result<Option<Item>> {
        if let Some(data) = self.events.take()? {
            return Ok(Some(Item::Scene(data)));
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
        Ok(Some(self.events.take()?.map_or(Item::KeepAlive, Item::Scene)))
    }
}

/// Splits the pieces of a stream into server-sent events. Written by hand, because no dependency of
/// the project reads them with a bound on the size of an event, and the view needs only the data.
#[derive(Debug, Default)]
struct Events(Vec<u8>);

impl Events {
    fn put(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.0.extend(bytes.iter().filter(|byte| **byte != b'\r'));
        ensure!(self.0.len() <= EVENT_MAX_BYTES, "an event has more than {EVENT_MAX_BYTES} bytes");
        Ok(())
    }

    /// Returns the data of the next complete event that has any.
    fn take(&mut self) -> anyhow::Result<Option<String>> {
        while let Some(end) = self.0.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.0.drain(..end + 2).collect();
            let text = str::from_utf8(&event).context("an event is not UTF-8")?;
            let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
            let data = data.map(|line| line.strip_prefix(' ').unwrap_or(line));
            let data = data.collect::<Vec<_>>().join("\n");
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_wherever_the_stream_is_cut_and_comments_are_skipped() {
        let stream =
            ":\n\nevent: live\r\ndata: {\"a\":\ndata:1}\n\n: alive\n\ndata: é\n\ndata: cut";
        for size in [1, 2, 7, stream.len()] {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for piece in stream.as_bytes().chunks(size) {
                events.put(piece).expect("small");
                while let Some(data) = events.take().expect("text") {
                    found.push(data);
                }
            }
            assert_eq!(found, ["{\"a\":\n1}", "é"], "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_event_and_one_that_is_not_utf8_are_refused() {
        let mut events = Events::default();
        let piece = vec![b'x'; EVENT_MAX_BYTES];
        events.put(&piece).expect("just small enough");
        events.put(b"x").expect_err("too large");
        let mut events = Events::default();
        events.put(b"data: \xff\n\n").expect("small");
        events.take().expect_err("not UTF-8");
    }
}
