//! The live view: what the handlers are doing, once or as a stream of changes.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::header::{ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt as _};
use sandglass_http::timer::within;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::event::{require_to_follow, stream_response, wait_for_key_removal};
use crate::Daemon;
use crate::access::Principal;
use crate::cluster::Question;
use crate::error::{Code, Error};
use crate::extract::{Caller, QueryParams};
use crate::feed::wake;
use crate::live::{LiveSnapshot, LiveView, Others, OthersNow, Watching};

/// The least time between two snapshots for one watcher: people cannot read more than four a second.
const PACE: Duration = Duration::from_millis(250);

/// How long one snapshot of a cluster may take: other hosts respond within half a second, or are missing,
/// but several clients may ask at the same time.
const ONCE_MAX: Duration = Duration::from_secs(5);

/// Whether to stream.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WatchParams {
    /// One snapshot instead of a stream: `?once`, or `once=true`.
    once: Option<String>,
}

/// What the handlers are doing, as it changes
///
/// Server-sent events of type `live`, each with a complete snapshot as its `data`: one at once, and
/// one after each change, at most four a second. The mere passing of time is not a change: a client
/// that shows `left_ms`, `for_ms` and `budget_left_ms` counts on its own. With `once`, one snapshot
/// as JSON. The stream ends when the daemon does, or when the key is removed.
///
/// In a cluster, the snapshot is of all hosts, except the hosts in `missing`, which did not respond within
/// 500 ms. `health` is that of the host that responds.
#[utoipa::path(get, path = "/v1/live", tag = "dispatches", params(WatchParams),
    responses(
        (status = 200, description = "The stream, or one snapshot",
            headers(("sandglass-keep-alive-ms" = u64,
                description = "Of a stream: the longest silence while the daemon is alive")),
            content((LiveView = "application/json"), (String = "text/event-stream"))),
    ))]
pub(crate) async fn watch(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    QueryParams(params): QueryParams<WatchParams>,
    question: Question,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let keys = daemon.watch_keys();
    require_to_follow(&principal)?;
    match params.once.as_deref() {
        None => {}
        Some("" | "true") => return once(&daemon, &principal, &question, &headers).await,
        Some(_) => return Err(Error::new(Code::BadQuery, "`once` must be `true` or absent")),
    }
    let slot = daemon.subscriber(&principal)?;
    let watching = question.cluster(&daemon).map(|cluster| daemon.watch_others(cluster));
    let snapshots = snapshots(&daemon, watching.transpose()?);
    let snapshots = snapshots.take_until(wait_for_key_removal(keys, uri, headers));
    let of = daemon.clone();
    let events = snapshots.map(move |shown| event(&of, &shown));
    Ok(stream_response(events, daemon.settings().keep_alive, slot))
}

/// One snapshot. For another host, only if it differs from the one whose tag that host has.
async fn once(
    daemon: &Daemon,
    principal: &Principal,
    question: &Question,
    headers: &HeaderMap,
) -> Result<Response, Error> {
    let host = daemon.own_host();
    let Some(cluster) = question.cluster(daemon) else {
        let snapshot = daemon.live_snapshot();
        let view = Json(LiveView::new(&snapshot, host));
        let Some(host) = host.filter(|_| question.is_of_host()) else {
            return Ok(view.into_response());
        };
        // With the id of the process, because another one counts changes anew.
        let tag = format!("\"{host}-{}\"", snapshot.change());
        if headers.get(IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == tag.as_bytes()) {
            return Ok(StatusCode::NOT_MODIFIED.into_response());
        }
        return Ok(([(ETAG, tag)], view).into_response());
    };
    let outgoing = question.outgoing(cluster, principal)?;
    let none = Others::default();
    let asked = within(ONCE_MAX, none.next(daemon, cluster, &outgoing));
    let others = asked.await.map_err(|_| super::too_long())?;
    let shown = Shown { own: daemon.live_snapshot(), others: Some(Arc::new(others)) };
    Ok(Json(shown.view(daemon)).into_response())
}

fn event(daemon: &Daemon, shown: &Shown) -> Event {
    let data = match shown.others {
        None => serde_json::to_string(&LiveView::new(&shown.own, daemon.own_host())),
        Some(_) => serde_json::to_string(&shown.view(daemon)),
    };
    Event::default().event("live").data(data.expect("plain data"))
}

/// A snapshot of this host, and what the other hosts show, if they were asked.
#[derive(Clone)]
struct Shown {
    own: Arc<LiveSnapshot>,
    others: Option<Arc<Others>>,
}

impl Shown {
    /// Whether nothing has happened between the two.
    fn is_same(&self, other: &Self) -> bool {
        let others = |shown: &Self| shown.others.as_ref().map(Arc::as_ptr);
        self.own.is_same(&other.own) && others(self) == others(other)
    }

    /// The view of all hosts.
    fn view(&self, daemon: &Daemon) -> Value {
        let own = LiveView::new(&self.own, daemon.own_host());
        let own = serde_json::to_value(own).expect("plain data with text for keys");
        match &self.others {
            Some(others) => others.merge(own, self.own.taken_at()),
            None => own,
        }
    }
}

/// A snapshot now, and another after each change; ends when the daemon is closing.
fn snapshots(
    daemon: &Daemon,
    watching: Option<Arc<Watching>>,
) -> impl Stream<Item = Shown> + use<> {
    let watcher = Watcher {
        daemon: daemon.clone(),
        recorded: daemon.feed().recorded(),
        closing: daemon.closing(),
        others: watching.map(|watching| (watching.latest(), watching)),
        sent: None,
    };
    unfold(watcher, async |mut watcher| {
        let shown = watcher.next().await?;
        Some((shown, watcher))
    })
}

struct Watcher {
    daemon: Daemon,
    recorded: watch::Receiver<()>,
    closing: watch::Receiver<bool>,
    /// What the other hosts show, and the task that asks them.
    others: Option<(OthersNow, Arc<Watching>)>,
    sent: Option<Shown>,
}

impl Watcher {
    async fn next(&mut self) -> Option<Shown> {
        loop {
            if let Some(sent) = &self.sent {
                if sent.own.is_idle() {
                    // Polls as well, because a failing ticker records nothing.
                    let _ = within(self.daemon.settings().keep_alive, self.wake()).await;
                }
                // Before the pause, so that a record during the pause wakes the next call.
                self.recorded.mark_unchanged();
                let _ = within(PACE, self.closing.wait_for(|closing| *closing)).await;
            } else if let Some((others, _)) = &mut self.others {
                let _ = within(ONCE_MAX, others.wait_for(Option::is_some)).await;
            }
            if *self.closing.borrow() {
                return None;
            }
            let others = self.others.as_mut();
            let others = others.and_then(|(others, _)| others.borrow_and_update().clone());
            let shown = Shown { own: self.daemon.live_snapshot(), others };
            if self.sent.as_ref().is_none_or(|sent| !sent.is_same(&shown)) {
                self.sent = Some(shown.clone());
                return Some(shown);
            }
        }
    }

    /// Waits until this or another host has something new to show, or the daemon is closing.
    async fn wake(&mut self) {
        let changed = async {
            match &mut self.others {
                Some((others, _)) => drop(others.changed().await),
                None => pending().await,
            }
        };
        tokio::select! {
            () = wake(&mut self.recorded, &mut self.closing) => {}
            () = changed => {}
        }
    }
}
