//! Where scenes come from: the server-sent events of a daemon, which is waited for when it
//! goes away.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use hyper::Uri;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Response, StatusCode};
use tokio::sync::mpsc;

use super::scene::Scene;
use crate::duration::told;
use crate::fetch;
use crate::play::pause;

/// Largest event, in bytes: some times the largest scene of the daemon's.
const EVENT_MAX_BYTES: usize = 4 << 20;
/// How long to wait before coming again, at first and at most: nobody is kept waiting long
/// who has restarted a daemon, nor does it ask often of one that is gone for the night.
const AGAIN_FIRST: Duration = Duration::from_millis(500);
const AGAIN_MAX: Duration = Duration::from_secs(15);
/// The header by which a daemon tells how long it is silent at most, in milliseconds.
const KEEP_ALIVE_HEADER: &str = "sandglass-keep-alive-ms";
/// What is taken for it where it isn't told: what daemons do unless they are told otherwise.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The shortest and the longest that is believed: less is the network's own jitter, and
/// nobody waits a day for somebody who is gone.
const KEEP_ALIVE_MIN: Duration = Duration::from_secs(1);
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(600);
/// After how many times as long without a sign of life a connection is lost.
const LOST_AFTER: u32 = 3;

/// The live view of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) address: Uri,
    pub(crate) client: fetch::Client,
}

/// What is heard of a daemon.
#[derive(Debug)]
pub(super) enum News {
    /// There is a connection, which is never silent for longer than this.
    Connected(Duration),
    /// It lives, and that is all.
    Alive,
    Scene(Scene),
    /// It is away, and will be asked again; why, and when.
    Away(String),
    /// It won't be asked again.
    Refused(anyhow::Error),
}

/// The scenes of one connection.
#[derive(Debug)]
pub(super) struct Scenes {
    answer: Response,
    events: Events,
    /// The longest silence of a daemon that lives.
    keep_alive: Duration,
}

/// A part of a stream.
enum Heard {
    Scene(String),
    Alive,
}

impl Source {
    /// Connects.
    ///
    /// # Errors
    /// There is no daemon there, or it doesn't let us in.
    pub(super) async fn scenes(&self) -> anyhow::Result<Scenes> {
        self.read(self.open().await?).await
    }

    /// One scene, without a place among those that the daemon tells of changes.
    ///
    /// # Errors
    /// As [`scenes`](Self::scenes), or what is there is no daemon.
    pub(super) async fn once(&self) -> anyhow::Result<String> {
        let once = fetch::address(&format!("{}?once=true", self.address))?;
        let scene = self.client.text(&once).await?;
        let is_scene = Scene::read(&scene).is_ok();
        ensure!(is_scene, "`{}` is no live view; name a daemon", self.address);
        Ok(scene)
    }

    /// The same again; or why it may be there later.
    async fn again(&self) -> anyhow::Result<Result<Scenes, String>> {
        match self.open().await {
            Ok(answer) if may_pass(answer.status()) => {
                Ok(Err(fetch::refusal(answer).await.to_string()))
            }
            Ok(answer) => self.read(answer).await.map(Ok),
            Err(error) => Ok(Err(format!("{error:#}"))),
        }
    }

    async fn open(&self) -> anyhow::Result<Response> {
        self.client.open(&self.address).await
    }

    async fn read(&self, answer: Response) -> anyhow::Result<Scenes> {
        let answer = fetch::require_ok(answer).await;
        let answer = answer.with_context(|| format!("can't get `{}`", self.address))?;
        let kind = answer.headers().get(CONTENT_TYPE);
        let is_stream = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        ensure!(is_stream, "`{}` is no live view; name a daemon", self.address);
        let keep_alive = keep_alive(answer.headers());
        Ok(Scenes { answer, events: Events::default(), keep_alive })
    }
}

fn keep_alive(headers: &HeaderMap) -> Duration {
    let told = headers.get(KEEP_ALIVE_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
    told.map_or(KEEP_ALIVE, Duration::from_millis).clamp(KEEP_ALIVE_MIN, KEEP_ALIVE_MAX)
}

/// Whether a daemon that answers this may let us in later.
fn may_pass(status: StatusCode) -> bool {
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}

/// Tells `news` of all that `source` tells, and comes again when that ends, for as long as
/// somebody hears it. Where it can't be had the first time, it isn't asked again.
pub(super) async fn follow(source: Source, news: mpsc::Sender<News>) {
    let mut scenes = source.scenes().await.map(Ok);
    let mut wait = AGAIN_FIRST;
    loop {
        let why = match scenes {
            Ok(Ok(connected)) => match tell_all(connected, &news, &mut wait).await {
                Ok(()) => "the daemon went away".to_owned(),
                Err(error) => format!("{error:#}"),
            },
            Ok(Err(why)) => why,
            Err(error) => {
                // Nobody hears it any more.
                let _ = news.send(News::Refused(error)).await;
                return;
            }
        };
        let away = format!("{why}; coming again in {}", told(wait));
        if news.send(News::Away(away)).await.is_err() {
            return;
        }
        pause(wait).await;
        wait = (wait * 2).min(AGAIN_MAX);
        if news.send(News::Away(format!("{why}; asking it again"))).await.is_err() {
            return;
        }
        scenes = source.again().await;
    }
}

async fn tell_all(
    mut scenes: Scenes,
    news: &mpsc::Sender<News>,
    wait: &mut Duration,
) -> anyhow::Result<()> {
    let mut told = News::Connected(scenes.keep_alive);
    while news.send(told).await.is_ok() {
        told = match scenes.hear().await? {
            Some(Heard::Scene(data)) => {
                *wait = AGAIN_FIRST;
                News::Scene(Scene::read(&data)?)
            }
            Some(Heard::Alive) => News::Alive,
            None => return Ok(()),
        };
    }
    Ok(())
}

impl Scenes {
    /// The data of the next event; none at the end of the stream.
    ///
    /// # Errors
    /// The connection breaks or is silent for too long, or an event is too large, or no
    /// text.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<String>> {
        loop {
            match self.hear().await? {
                Some(Heard::Scene(data)) => return Ok(Some(data)),
                Some(Heard::Alive) => {}
                None => return Ok(None),
            }
        }
    }

    /// The same, or that it lives.
    async fn hear(&mut self) -> anyhow::Result<Option<Heard>> {
        if let Some(data) = self.events.take()? {
            return Ok(Some(Heard::Scene(data)));
        }
        let patience = self.keep_alive * LOST_AFTER;
        let piece = tokio::select! {
            piece = self.answer.chunk() => piece,
            () = pause(patience) => bail!("the daemon was silent for {}", told(patience)),
        };
        let Some(bytes) = piece? else { return Ok(None) };
        self.events.put(&bytes)?;
        Ok(Some(self.events.take()?.map_or(Heard::Alive, Heard::Scene)))
    }
}

/// Server-sent events, out of the pieces that they come in.
#[derive(Debug, Default)]
struct Events(Vec<u8>);

impl Events {
    fn put(&mut self, bytes: &Bytes) -> anyhow::Result<()> {
        self.0.extend(bytes.iter().filter(|byte| **byte != b'\r'));
        ensure!(self.0.len() <= EVENT_MAX_BYTES, "an event has more than {EVENT_MAX_BYTES} bytes");
        Ok(())
    }

    /// The data of the next whole event that has some.
    fn take(&mut self) -> anyhow::Result<Option<String>> {
        while let Some(end) = self.0.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.0.drain(..end + 2).collect();
            let text = str::from_utf8(&event).context("an event is no text")?;
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
    fn events_are_found_however_they_are_cut_and_comments_are_none() {
        let stream =
            ":\n\nevent: live\r\ndata: {\"a\":\ndata:1}\n\n: alive\n\ndata: é\n\ndata: cut";
        for size in [1, 2, 7, stream.len()] {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for piece in stream.as_bytes().chunks(size) {
                events.put(&Bytes::copy_from_slice(piece)).expect("small");
                while let Some(data) = events.take().expect("text") {
                    found.push(data);
                }
            }
            assert_eq!(found, ["{\"a\":\n1}", "é"], "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_end_and_one_that_is_no_text_are_refused() {
        let mut events = Events::default();
        let piece = Bytes::from(vec![b'x'; EVENT_MAX_BYTES]);
        events.put(&piece).expect("just small enough");
        events.put(&Bytes::from_static(b"x")).expect_err("too large");
        let mut events = Events::default();
        events.put(&Bytes::from_static(b"data: \xff\n\n")).expect("small");
        events.take().expect_err("no text");
    }
}
