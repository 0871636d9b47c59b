//! What the daemon's handlers are doing at this moment, for those who watch. Nothing looks
//! while nobody watches, and all who do share a look.

mod kills;
mod scene;
mod sessions;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use sandglass_http::timer::within;
use sandglass_model::Monotonic;
use tokio::sync::watch;

use crate::Daemon;

pub(crate) use kills::Kills;
pub(crate) use scene::{LiveView, Scene};

/// How far apart two scenes are that one watcher is sent: four a second is as much as
/// somebody reads.
const PACE: Duration = Duration::from_millis(250);
/// How old a look may be that another watcher shares: much less than the pace, so that
/// what was recorded before a watcher waited for it is always in its next scene.
const SHARED_FOR: Duration = Duration::from_millis(100);

/// The last look, and what looks can't tell.
#[derive(Debug, Default)]
pub(crate) struct Live {
    kills: Arc<Kills>,
    last: Mutex<Option<Arc<Scene>>>,
}

impl Live {
    pub(crate) fn kills(&self) -> Arc<Kills> {
        Arc::clone(&self.kills)
    }

    /// What happens now, or did a moment ago.
    pub(crate) fn scene(&self, daemon: &Daemon) -> Arc<Scene> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = daemon.clock().now();
        let is_fresh = |scene: &&mut Arc<Scene>| now.since(scene.taken_at) < SHARED_FOR;
        if let Some(scene) = last.as_mut().filter(is_fresh) {
            return Arc::clone(scene);
        }
        let scene = Arc::new(Scene::look(daemon, &self.kills));
        *last = Some(Arc::clone(&scene));
        scene
    }
}

/// A scene now, and each that is another, at a pace that people follow; ends when the
/// daemon is closing.
pub(crate) fn scenes(daemon: &Daemon) -> impl Stream<Item = Arc<Scene>> + use<> {
    let watcher = Watcher {
        daemon: daemon.clone(),
        recorded: daemon.feed().recorded(),
        closing: daemon.closing(),
        shown: None,
    };
    unfold(watcher, async |mut watcher| Some((watcher.next().await?, watcher)))
}

struct Watcher {
    daemon: Daemon,
    recorded: watch::Receiver<()>,
    closing: watch::Receiver<bool>,
    shown: Option<Arc<Scene>>,
}

impl Watcher {
    async fn next(&mut self) -> Option<Arc<Scene>> {
        loop {
            if let Some(shown) = self.shown.clone() {
                if shown.is_idle() {
                    self.wake().await;
                }
                // Before the pause, so that what comes in it wakes the next time.
                self.recorded.mark_unchanged();
                let _ = within(PACE, self.closing.wait_for(|closing| *closing)).await;
            }
            if *self.closing.borrow() {
                return None;
            }
            let scene = self.daemon.live().scene(&self.daemon);
            if self.shown.as_ref().is_none_or(|shown| !shown.is_as(&scene)) {
                self.shown = Some(Arc::clone(&scene));
                return Some(scene);
            }
        }
    }

    /// Waits until there may be something to see, which a failing ticker doesn't tell.
    async fn wake(&mut self) {
        let Self { daemon, recorded, closing, .. } = self;
        let woken = async {
            tokio::select! {
                _ = recorded.changed() => {}
                _ = closing.changed() => {}
            }
        };
        let _ = within(daemon.settings().keep_alive, woken).await;
    }
}

/// In whole milliseconds, rounded down.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// How long after `now` this is, or how long before, in milliseconds.
fn left_ms(until: Monotonic, now: Monotonic) -> i64 {
    let signed = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    if until >= now { signed(until.since(now)) } else { -signed(now.since(until)) }
}
