//! The stream of events: every record as it is written, or those with a form in the format of another
//! system, resumable at any position.

use std::convert::Infallible;
use std::future::{pending, ready};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt as _};
use sandglass_http::Slot;
use sandglass_insight::projection::Shape;
use sandglass_journal::{self as journal, Entry};
use sandglass_model::{Cursor, InvalidCursor, Partition};
use sandglass_runtime::{ActorError, Runtime};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use utoipa::{IntoParams, ToSchema};

use crate::Daemon;
use crate::access::{Keys, Permission, Principal};
use crate::error::{Code, Error};
use crate::extract::{Caller, QueryParams};
use crate::feed::{Extent, Found, Item};
use crate::view::EntryView;

/// The header with which a client that reconnects names the last event that it has received.
const LAST_EVENT_ID: &str = "last-event-id";

/// The header with the longest silence of a stream whose daemon is alive, in milliseconds. A client
/// that hears nothing for a multiple of that has lost the connection.
const KEEP_ALIVE: &str = "sandglass-keep-alive-ms";

/// A format of another system.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Format {
    /// A watchdog of a session's wall clock: `runtime.watchdog.cancel`.
    Watchdog,
    /// An audit of tools: timeouts, failures, status texts, stops.
    Audit,
    /// A detector of silence: `sdk_silence`.
    Silence,
}

impl From<Format> for Shape {
    fn from(format: Format) -> Self {
        match format {
            Format::Watchdog => Self::Watchdog,
            Format::Audit => Self::Audit,
            Format::Silence => Self::Silence,
        }
    }
}

/// What to read.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FollowParams {
    /// Only records after the event with this `id`, 0 for all; by default only new ones.
    /// `Last-Event-ID` takes precedence.
    after: Option<String>,
    /// Only records that have a form in this format, in that form.
    #[serde(rename = "as")]
    #[param(inline)]
    format: Option<Format>,
    /// `false` to end at the present end of the journal, with an event `end`; by default the stream
    /// continues with new records.
    follow: Option<bool>,
}

/// Every record as it is written
///
/// Server-sent events: `id` is the position in the journal, or a text that stands for the positions in
/// all partitions of a shared one; `event` the type of the record (or
/// `damaged`), `data` the record. A client that reconnects with `Last-Event-ID` continues after it;
/// no record is omitted, however slowly the client reads. The stream ends when the daemon does, or
/// when the key is removed.
///
/// With `as`, `event` is `runtime.watchdog.cancel`, `audit` or `sdk_silence`, and `data` the form of
/// the record in that format. A reader that resumes receives the same forms as one that did not.
#[utoipa::path(get, path = "/v1/events", tag = "events",
    params(FollowParams,
        ("Last-Event-ID" = Option<String>, Header, description = "The last event that was received")),
    responses(
        (status = 200, content_type = "text/event-stream", body = String, description = "The stream",
            headers(("sandglass-keep-alive-ms" = u64,
                description = "The longest silence while the daemon is alive"))),
    ))]
pub(crate) async fn follow(
    State(daemon): State<Daemon>,
    Caller(principal): Caller,
    QueryParams(params): QueryParams<FollowParams>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let keys = daemon.watch_keys();
    require_to_follow(&principal)?;
    let slot = daemon.subscriber(&principal)?;
    let journals = &daemon.parts().journals;
    let end = journals.end().await?;
    let after = match last_event_id(&headers)? {
        Some(after) => Some(after),
        None => params.after.as_deref().map(after_param).transpose()?,
    };
    let after = match after {
        Some(after) => within(after, &end)?,
        None => end.clone(),
    };
    let keep_alive = daemon.settings().keep_alive;
    let until = (params.follow == Some(false)).then_some(end);
    let extent = Extent { after, until, shape: params.format.map(Shape::from) };
    let items = daemon.feed().read(&extent, journals.clone(), daemon.closing(), keep_alive);
    let items = items.take_until(wait_for_key_removal(keys, uri, headers));
    let events: BoxStream<'static, Event> = match extent.shape {
        None => items.map(event).boxed(),
        Some(shape) => {
            let runtime = daemon.runtime().clone();
            // A look-up that fails ends the stream; its client continues with this record.
            items
                .then(move |item| {
                    let runtime = runtime.clone();
                    async move { projected_event(&runtime, shape, item).await }
                })
                .take_while(|event| ready(event.is_some()))
                .filter_map(|event| ready(event.flatten()))
                .boxed()
        }
    };
    Ok(stream_response(events, keep_alive, slot))
}

/// A response that streams `events`, is never silent for longer than `keep_alive`, and holds `slot`
/// until it ends.
pub(super) fn stream_response(
    events: impl Stream<Item = Event> + Send + 'static,
    keep_alive: Duration,
    slot: Slot,
) -> Response {
    let events = events.map(move |event| {
        let _held = &slot;
        Ok::<_, Infallible>(event)
    });
    let headers = [(KEEP_ALIVE, keep_alive.as_millis().to_string())];
    let keep_alive = KeepAlive::new().interval(keep_alive);
    (headers, Sse::new(events).keep_alive(keep_alive)).into_response()
}

/// Refuses a principal that may not see the entities of all tenants.
pub(super) fn require_to_follow(principal: &Principal) -> Result<(), Error> {
    principal.require(Permission::Read)?;
    principal.require_all_tenants()
}

/// Returns when the sender of this request would no longer be admitted.
pub(super) async fn wait_for_key_removal(
    mut keys: watch::Receiver<Arc<Keys>>,
    uri: Uri,
    headers: HeaderMap,
) {
    while keys.changed().await.is_ok() {
        let present = Arc::clone(&keys.borrow_and_update());
        let admitted = present.admit(&uri, &headers);
        if admitted.and_then(|principal| require_to_follow(&principal)).is_err() {
            return;
        }
    }
    // The daemon was dropped, which ends the stream by other means.
    pending().await
}

fn last_event_id(headers: &HeaderMap) -> Result<Option<Cursor>, Error> {
    // A client that has not received any event sends an empty header.
    let Some(value) = headers.get(LAST_EVENT_ID).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let cursor = value.to_str().map_err(|_| InvalidCursor).and_then(str::parse);
    cursor
        .map(Some)
        .map_err(|invalid| Error::new(Code::BadHeader, format!("`Last-Event-ID` is {invalid}")))
}

fn after_param(after: &str) -> Result<Cursor, Error> {
    after.parse().map_err(|invalid| Error::new(Code::BadQuery, format!("`after` is {invalid}")))
}

/// A cursor of a client, if it can be one of a journal that ends at `end`.
fn within(after: Cursor, end: &Cursor) -> Result<Cursor, Error> {
    if after.is_within(end) {
        return Ok(after);
    }
    if after == Cursor::start(1) {
        return Ok(Cursor::start(end.positions().len()));
    }
    let message = match (after.positions(), end.positions()) {
        ([after], [end]) => format!("the journal ends at {end}, before {after}"),
        ([_], _) => "the journal has partitions, and the position is of one without".to_owned(),
        (_, [_]) => "the journal has no partitions, and the position is of one with".to_owned(),
        _ => match after.first_beyond(end) {
            Some((partition, after, end)) => {
                format!("partition {partition} of the journal ends at {end}, before {after}")
            }
            None => "the journal ends before the position".to_owned(),
        },
    };
    let message = format!("{message}: it is a different journal; start without a position");
    Err(Error::new(Code::AheadOfJournal, message))
}

/// An entry in its partition.
#[derive(Serialize)]
struct InPartition {
    #[serde(flatten)]
    entry: EntryView,
    partition: Partition,
}

fn event(item: Item) -> Event {
    let Found { entry, partition, cursor } = match item {
        Item::Entry(found) => found,
        Item::End => return Event::default().event("end").data("{}"),
    };
    let kind = match &entry {
        Entry::Record(record) => record.event.kind(),
        _ => "damaged",
    };
    let entry = EntryView(entry);
    let data = match partition {
        Some(partition) => serde_json::to_string(&InPartition { entry, partition }),
        None => serde_json::to_string(&entry),
    };
    let data = data.expect("plain data with text for keys");
    Event::default().id(cursor.to_string()).event(kind).data(data)
}

/// The event of an item in the format `shape`: `Some(None)` if it has none there, `None` if the
/// journal cannot be read now.
async fn projected_event(runtime: &Runtime, shape: Shape, item: Item) -> Option<Option<Event>> {
    let (record, partition, cursor) = match item {
        Item::Entry(Found { entry: Entry::Record(record), partition, cursor }) => {
            (record, partition, cursor)
        }
        other => return Some(Some(event(other))),
    };
    match runtime.project(shape, &record).await {
        Ok(None) => Some(None),
        Ok(Some(projected)) => {
            let data = serde_json::to_string(&projected).expect("plain data with text for keys");
            let event = Event::default().id(cursor.to_string()).event(projected.kind());
            Some(Some(event.data(data)))
        }
        // The records before it are gone for good, which its reader has to know.
        Err(ActorError::Journal(error @ journal::Error::Damaged { .. })) => {
            let what = format!("it cannot be projected: {error}");
            let entry = Entry::Damaged { position: record.position, what };
            Some(Some(event(Item::Entry(Found { entry, partition, cursor }))))
        }
        Err(error) => {
            tracing::warn!(%error, "failed to read the journal; a stream of events ends");
            None
        }
    }
}
