//! Reads the live view from a daemon's server-sent events, and reconnects when they end.

use std::time::Duration;

use anyhow::ensure;
use tokio::sync::mpsc;

use super::scene::Scene;
use crate::duration::format_duration;
use crate::fetch::{self, EventStream, Feed, RECONNECT_FIRST, RECONNECT_MAX, Received};
use crate::wait::pause;

/// The live view. Its events have several times the bytes of the largest snapshot that a daemon
/// sends.
const LIVE: Feed<'_> = Feed { path: "/v1/live", what: "a live view", event_max_bytes: 4 << 20 };

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

impl Source {
    /// # Errors
    /// Errors if the daemon cannot be reached, or refuses the request.
    pub(super) async fn connect(&self) -> anyhow::Result<EventStream> {
        self.client.events(LIVE).await
    }

    /// Returns one snapshot, without taking one of the daemon's places for subscribers.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), or if the response is not a live view.
    pub(super) async fn once(&self) -> anyhow::Result<String> {
        let scene = self.client.text(&format!("{}?once=true", LIVE.path)).await?;
        ensure!(Scene::read(&scene).is_ok(), self.client.no_stream(LIVE));
        Ok(scene)
    }
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
        scenes = source.client.events_again(LIVE).await;
    }
}

/// Forwards what one connection sends. A snapshot resets `wait`, because the daemon is back.
async fn forward(
    mut scenes: EventStream,
    updates: &mpsc::Sender<Update>,
    wait: &mut Duration,
) -> anyhow::Result<()> {
    let mut update = Update::Connected(scenes.keep_alive());
    while updates.send(update).await.is_ok() {
        update = match scenes.next().await? {
            Some(Received::Event(event)) => {
                *wait = RECONNECT_FIRST;
                Update::Scene(Scene::read(&event.data)?)
            }
            Some(Received::KeepAlive) => Update::Alive,
            None => return Ok(()),
        };
    }
    Ok(())
}
