//! The live view: what the handlers are doing, once or as a stream of changes.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use futures_util::{Stream, StreamExt as _};
use sandglass_http::timer::within;
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::event::{require_to_follow, stream_response, wait_for_key_removal};
use crate::Daemon;
use crate::error::{Code, Error};
use crate::extract::{Caller, QueryParams};
use crate::feed::wake;
use crate::live::{LiveSnapshot, LiveView};

/// The least time between two snapshots for one watcher: people cannot read more than four a second.
const PACE: Duration = Duration::from_millis(250);

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
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let keys = daemon.watch_keys();
    require_to_follow(&principal)?;
    match params.once.as_deref() {
        None => {}
        Some("" | "true") => {
            return Ok(Json(LiveView::from(&*daemon.live_snapshot())).into_response());
        }
        Some(_) => return Err(Error::new(Code::BadQuery, "`once` must be `true` or absent")),
    }
    let slot = daemon.subscriber(&principal)?;
    let snapshots = snapshots(&daemon).take_until(wait_for_key_removal(keys, uri, headers));
    let events = snapshots.map(|snapshot| event(&snapshot));
    Ok(stream_response(events, daemon.settings().keep_alive, slot))
}

fn event(snapshot: &LiveSnapshot) -> Event {
    let data = serde_json::to_string(&LiveView::from(snapshot)).expect("plain data");
    Event::default().event("live").data(data)
}

/// A snapshot now, and another after each change; ends when the daemon is closing.
fn snapshots(daemon: &Daemon) -> impl Stream<Item = Arc<LiveSnapshot>> + use<> {
    let watcher = Watcher {
        daemon: daemon.clone(),
        recorded: daemon.feed().recorded(),
        closing: daemon.closing(),
        sent: None,
    };
    unfold(watcher, async |mut watcher| Some((watcher.next().await?, watcher)))
}

struct Watcher {
    daemon: Daemon,
    recorded: watch::Receiver<()>,
    closing: watch::Receiver<bool>,
    sent: Option<Arc<LiveSnapshot>>,
}

impl Watcher {
    async fn next(&mut self) -> Option<Arc<LiveSnapshot>> {
        loop {
            if let Some(sent) = &self.sent {
                if sent.is_idle() {
                    // Polls as well, because a failing ticker records nothing.
                    let keep_alive = self.daemon.settings().keep_alive;
                    let _ = within(keep_alive, wake(&mut self.recorded, &mut self.closing)).await;
                }
                // Before the pause, so that a record during the pause wakes the next call.
                self.recorded.mark_unchanged();
                let _ = within(PACE, self.closing.wait_for(|closing| *closing)).await;
            }
            if *self.closing.borrow() {
                return None;
            }
            let snapshot = self.daemon.live_snapshot();
            if self.sent.as_ref().is_none_or(|sent| !sent.is_same(&snapshot)) {
                self.sent = Some(Arc::clone(&snapshot));
                return Some(snapshot);
            }
        }
    }
}
