//! What other hosts of the cluster show in the live view, and how it is merged with what this host shows.
//!
//! While a client watches, one task asks each host four times a second, for all clients together. A host
//! in which nothing has happened says only that, so its last snapshot is kept and its times advance here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Request, header};
use futures_util::StreamExt as _;
use sandglass_http::timer::pause;
use sandglass_model::{HostId, Monotonic};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::millis;
use super::snapshot::{BLOCKED_MAX, ROWS_MAX};
use crate::Daemon;
use crate::access::Principal;
use crate::cluster::{Cluster, MissingView, Outgoing, Question, Reply, ask_all};
use crate::error::Error;
use crate::recent_kills::KEPT;
use crate::route::{HostLine, host_lines};

/// How long the task waits after each round.
const PACE: Duration = Duration::from_millis(250);

/// What the other hosts show.
#[derive(Debug, Default)]
pub(crate) struct Others {
    scenes: BTreeMap<HostId, Arc<Scene>>,
    missing: Vec<MissingView>,
    hosts: Vec<HostLine>,
}

/// The last snapshot of a host.
#[derive(Debug)]
struct Scene {
    tag: Option<HeaderValue>,
    received_at: Monotonic,
    content: Value,
}

impl Others {
    /// Asks the other hosts for their snapshots, or whether those of `self` are still the same.
    pub(crate) async fn next(
        &self,
        daemon: &Daemon,
        cluster: &Cluster,
        outgoing: &Outgoing,
    ) -> Self {
        let _permit = daemon.gathering().await;
        let mut next = Self { hosts: host_lines(&*cluster.peers), ..Self::default() };
        let request = |host: HostId| -> Request<Bytes> {
            let mut request = outgoing.request();
            if let Some(tag) = self.scenes.get(&host).and_then(|scene| scene.tag.clone()) {
                request.headers_mut().insert(header::IF_NONE_MATCH, tag);
            }
            request
        };
        let mut replies = std::pin::pin!(ask_all(cluster, request));
        while let Some((other, reply)) = replies.next().await {
            let scene = match reply {
                // A host of another version may have another view.
                Some(Reply::New { json: content, .. }) if !content["handlers"].is_array() => None,
                Some(Reply::New { tag, json: content }) => {
                    let received_at = daemon.parts().clock.now();
                    Some(Arc::new(Scene { tag, received_at, content }))
                }
                Some(Reply::Same) => self.scenes.get(&other.host).cloned(),
                None => None,
            };
            match scene {
                Some(scene) => drop(next.scenes.insert(other.host, scene)),
                None => next.missing.push(other.into()),
            }
        }
        next.missing.sort_by(|a, b| (&a.name, a.host).cmp(&(&b.name, b.host)));
        next
    }

    /// Whether nothing has happened between the two.
    fn is_same(&self, other: &Self) -> bool {
        let is_same = |(a, b): (&Arc<Scene>, &Arc<Scene>)| Arc::ptr_eq(a, b);
        self.scenes.keys().eq(other.scenes.keys())
            && self.scenes.values().zip(other.scenes.values()).all(is_same)
            && (&self.missing, &self.hosts) == (&other.missing, &other.hosts)
    }

    /// The view `own` of this host at `now`, with what the others show.
    pub(crate) fn merge(&self, own: Value, now: Monotonic) -> Value {
        let mut all = own;
        for scene in self.scenes.values() {
            let age = millis(now.since(scene.received_at));
            for field in ["in_flight", "blocked"] {
                let sum = |view: &Value| view[field].as_u64().unwrap_or_default();
                all[field] = json!(sum(&all).saturating_add(sum(&scene.content)));
            }
            for field in ["handlers", "kills", "blocked_sessions"] {
                let entries = scene.content[field].as_array().into_iter().flatten();
                // Foreign entries that are no objects could not be read by any client.
                let entries = entries.filter(|entry| entry.is_object()).cloned();
                let entries = entries.map(|mut entry| {
                    if field == "handlers" {
                        advance(&mut entry, age);
                    }
                    entry
                });
                if let Some(list) = all[field].as_array_mut() {
                    list.extend(entries);
                }
            }
        }
        if let Some(handlers) = all["handlers"].as_array_mut() {
            // A handler whose partition was taken over may be on two hosts for a moment.
            let mut seen = BTreeSet::new();
            let key = |one: &Value| (one["dispatch"].to_string(), one["attempt"].as_u64());
            handlers.retain(|handler| seen.insert(key(handler)));
        }
        order(&mut all, "handlers", ROWS_MAX, |handler| {
            (is_waiting(handler), handler["left_ms"].as_i64().unwrap_or(i64::MAX))
        });
        let newest_first = |entry: &Value| Reverse(entry["at"].as_i64().unwrap_or(i64::MIN));
        order(&mut all, "kills", KEPT, newest_first);
        order(&mut all, "blocked_sessions", BLOCKED_MAX, newest_first);
        all["hosts"] = json!(self.hosts);
        all["missing"] = json!(self.missing);
        all
    }
}

/// Sorts a list, and keeps its first `most` entries.
fn order<K: Ord>(all: &mut Value, field: &str, most: usize, key: impl FnMut(&Value) -> K) {
    if let Some(list) = all[field].as_array_mut() {
        list.sort_by_key(key);
        list.truncate(most);
    }
}

/// Whether a handler has not begun, so that its budget does not decrease.
fn is_waiting(handler: &Value) -> bool {
    matches!(handler["doing"].as_str(), Some("queued" | "pending"))
}

/// Lets the times of a handler advance by `age` milliseconds.
fn advance(handler: &mut Value, age: u64) {
    if !is_waiting(handler) {
        let left = handler["left_ms"].as_i64().unwrap_or_default();
        handler["left_ms"] = json!(left.saturating_sub_unsigned(age));
    }
    if let Some(time) = handler["for_ms"].as_u64() {
        handler["for_ms"] = json!(time.saturating_add(age));
    }
    if let Some(left) = handler["session"]["budget_left_ms"].as_u64() {
        handler["session"]["budget_left_ms"] = json!(left.saturating_sub(age));
    }
}

/// What the other hosts show, as it changes; `None` before all were asked once.
pub(crate) type OthersNow = watch::Receiver<Option<Arc<Others>>>;

/// The task that asks the other hosts, until the last client that watches drops it.
#[derive(Debug)]
pub(crate) struct Watching {
    latest: OthersNow,
    task: JoinHandle<()>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watching {
    /// # Errors
    /// Errors if this host cannot ask.
    pub(crate) fn begin(daemon: &Daemon, cluster: &Cluster) -> Result<Self, Error> {
        let question = Question::own("/v1/live?once");
        let outgoing = question.outgoing(cluster, &Principal::reading_peer())?;
        let (sender, latest) = watch::channel(None);
        let (daemon, cluster) = (daemon.clone(), cluster.clone());
        let task = tokio::spawn(async move {
            let mut last = Arc::new(Others::default());
            let mut is_first = true;
            loop {
                let next = last.next(&daemon, &cluster, &outgoing).await;
                if std::mem::take(&mut is_first) || !next.is_same(&last) {
                    last = Arc::new(next);
                    sender.send_replace(Some(Arc::clone(&last)));
                }
                pause(PACE).await;
            }
        });
        Ok(Self { latest, task })
    }

    /// What the other hosts show.
    pub(crate) fn latest(&self) -> OthersNow {
        self.latest.clone()
    }
}
