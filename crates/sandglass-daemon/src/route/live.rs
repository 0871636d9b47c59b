//! The live view: what the handlers are doing, once or as it changes.

use std::convert::Infallible;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::sse::Event;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt as _;
use serde::Deserialize;
use utoipa::IntoParams;

use super::event::{may_follow, shut_out, stream};
use crate::Daemon;
use crate::error::{Code, Envelope, Error};
use crate::extract::{Asked, By};
use crate::live::{self, LiveView, Scene};

/// How often to look.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct HowOften {
    /// One look and no stream: `?once`, or `once=true`.
    once: Option<String>,
}

/// What the handlers are doing now, as it changes
///
/// Server-sent events of the type `live`, each a whole scene as its `data`: one at once, and
/// one whenever something is different, four a second at most. What merely passes with time
/// makes none: whoever shows `left_ms`, `for_ms` and `budget_left_ms` goes on counting. With
/// `once`, one scene as JSON. The stream ends when the daemon does, or when the key is taken away.
#[utoipa::path(get, path = "/v1/live", tag = "dispatches", params(HowOften),
    responses(
        (status = 200, description = "The stream, or one scene",
            headers(("sandglass-keep-alive-ms" = u64,
                description = "Of a stream: how long it is silent at most while the daemon lives")),
            content((LiveView = "application/json"), (String = "text/event-stream"))),
        (status = "4XX", body = Envelope, description = "Not for you, or too many watch"),
        (status = "5XX", body = Envelope, description = "Not to be had now"),
    ))]
pub(crate) async fn watch(
    State(daemon): State<Daemon>,
    By(principal): By,
    Asked(how_often): Asked<HowOften>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let keys = daemon.watch_keys();
    may_follow(&principal)?;
    match how_often.once.as_deref() {
        None => {}
        Some("" | "true") => {
            let scene = daemon.live().scene(&daemon);
            return Ok(Json(LiveView::from(&*scene)).into_response());
        }
        Some(_) => return Err(Error::new(Code::BadQuery, "`once` is `true`, or isn't there")),
    }
    let place = daemon.subscriber(&principal)?;
    let scenes = live::scenes(&daemon).take_until(shut_out(keys, uri, headers));
    let events = scenes.map(move |scene| {
        // Kept as long as the stream.
        let _ = &place;
        Ok::<_, Infallible>(event(&scene))
    });
    Ok(stream(events, daemon.settings().keep_alive))
}

fn event(scene: &Scene) -> Event {
    let data = serde_json::to_string(&LiveView::from(scene)).expect("plain data");
    Event::default().event("live").data(data)
}
