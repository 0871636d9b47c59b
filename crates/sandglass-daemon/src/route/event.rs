//! Events: every record as it comes, to be read on from where a reader left off.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt as _};
use sandglass_journal::Entry;
use sandglass_model::Position;
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use crate::Daemon;
use crate::access::{Keys, Permission, Principal};
use crate::error::{Code, Envelope, Error};
use crate::extract::{Asked, By};
use crate::view::EntryView;

/// The header by which a client that comes again says where it left off.
const LAST_EVENT_ID: &str = "last-event-id";

/// The header that tells of a stream how long it is silent at most while its daemon lives,
/// in milliseconds: who hears nothing for some times as long has lost it.
const KEEP_ALIVE: &str = "sandglass-keep-alive-ms";

/// Where to begin.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct From {
    /// From behind this position of the journal on, 0 for everything; from now on, unless
    /// it is said. `Last-Event-ID` goes before it.
    after: Option<u64>,
}

/// Every record, as it comes
///
/// Server-sent events: `id` is the position in the journal, `event` the record's type (or
/// `damaged`), `data` the record. Whoever comes again with `Last-Event-ID` goes on behind
/// it, and none is left out, however slowly they are read. The stream ends when the
/// daemon does, or when the key is taken away.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(From, ("Last-Event-ID" = Option<u64>, Header, description = "Where a client left off")),
    responses(
        (status = 200, content_type = "text/event-stream", body = String, description = "The stream",
            headers(("sandglass-keep-alive-ms" = u64,
                description = "How long it is silent at most while the daemon lives"))),
        (status = "4XX", body = Envelope, description = "Not understood, or there are too many readers"),
        (status = "5XX", body = Envelope, description = "The journal can't be read now"),
    ))]
pub(crate) async fn follow(
    State(daemon): State<Daemon>,
    By(principal): By,
    Asked(from): Asked<From>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let keys = daemon.watch_keys();
    may_follow(&principal)?;
    let place = daemon.subscriber(&principal)?;
    let last = daemon.journal().last().await?;
    let after = match left_off(&headers)?.or(from.after.map(Position)) {
        Some(after) if after > last => {
            let message = format!(
                "the journal ends at {last}, before {after}: it is another one; begin again \
                 without a position"
            );
            return Err(Error::new(Code::AheadOfJournal, message));
        }
        after => after.unwrap_or(last),
    };
    let journal = daemon.journal().clone();
    let settings = daemon.settings();
    let entries = daemon.feed().after(after, journal, daemon.closing(), settings);
    let entries = entries.take_until(shut_out(keys, uri, headers));
    let events = entries.map(move |entry| {
        // Kept as long as the stream.
        let _ = &place;
        Ok(event(entry))
    });
    Ok(stream(events, settings.keep_alive))
}

/// Events as a response that is never silent for longer than `keep_alive`, and says so.
pub(super) fn stream(
    events: impl Stream<Item = Result<Event, Infallible>> + Send + 'static,
    keep_alive: Duration,
) -> Response {
    let told = [(KEEP_ALIVE, keep_alive.as_millis().to_string())];
    let alive = KeepAlive::new().interval(keep_alive);
    (told, Sse::new(events).keep_alive(alive)).into_response()
}

/// Refuses who may not see what concerns every tenant.
pub(super) fn may_follow(principal: &Principal) -> Result<(), Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()
}

/// Ends when who sent this request would no more be let in.
pub(super) async fn shut_out(mut keys: watch::Receiver<Arc<Keys>>, uri: Uri, headers: HeaderMap) {
    while keys.changed().await.is_ok() {
        let present = Arc::clone(&keys.borrow_and_update());
        let admitted = present.admit(&uri, &headers);
        if admitted.and_then(|principal| may_follow(&principal)).is_err() {
            return;
        }
    }
    // The daemon is gone, and the stream ends by itself.
    pending().await
}

fn left_off(headers: &HeaderMap) -> Result<Option<Position>, Error> {
    let Some(value) = headers.get(LAST_EVENT_ID) else { return Ok(None) };
    // A client that has seen no event yet sends nothing in it.
    if value.is_empty() {
        return Ok(None);
    }
    let position = value.to_str().ok().and_then(|text| text.parse().ok());
    position.map(|position| Some(Position(position))).ok_or_else(|| {
        Error::new(Code::BadHeader, "`Last-Event-ID` must be the position of an event")
    })
}

fn event(entry: Entry) -> Event {
    // Who comes again goes on behind all that is missing.
    let last = entry.position().0.saturating_add(entry.places()).saturating_sub(1);
    let kind = match &entry {
        Entry::Record(record) => record.event.kind(),
        _ => "damaged",
    };
    let data = serde_json::to_string(&EntryView(entry)).expect("plain data with text for keys");
    Event::default().id(last.to_string()).event(kind).data(data)
}
