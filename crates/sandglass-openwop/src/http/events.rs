//! Events of runs: as a stream, as a list, and by polling.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use sandglass_http::timer::within;
use sandglass_model::Monotonic;
use sandglass_telemetry::metrics::OpenwopRefusal;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::error::Error;
use super::path::Segments;
use super::view::RunSnapshot;
use super::{OpenWop, ReaderPlace, answer};
use crate::code::Code;
use crate::log::{Line, RunLog, Stage, Standing};
use sandglass_workflow::event::{Entry, Kind, event_id};
use sandglass_workflow::masks::Masks;
use sandglass_workflow::state::RunState;

/// Most events that a reader is sent at once, and about how many bytes of them: a slow reader holds no
/// more than that, and all readers share the text of an event.
const HANDED_MAX: usize = 64;
const HANDED_MAX_BYTES: usize = 64 << 10;

/// Most readers that are sent snapshots: each has a state of the run of its own.
pub(super) const SNAPSHOT_READERS_MAX: usize = 64;
/// The type of the events of [`Mode::Values`].
const STATE_SNAPSHOT: &str = "state.snapshot";

/// Which events a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Everything.
    Debug,
    /// Each change of the status of the run, a node or an interrupt.
    Updates,
    /// A snapshot of the run after each of these changes, and after the start of a node.
    Values,
    /// The output of models as it comes. This host has no models, so there are no events.
    Messages,
}

impl Mode {
    const ALL: [(&'static str, Self); 4] = [
        ("values", Self::Values),
        ("updates", Self::Updates),
        ("messages", Self::Messages),
        ("debug", Self::Debug),
    ];

    /// The mode of this name, if there is one.
    fn of(name: Option<&str>) -> Result<Option<Self>, Error> {
        let Some(name) = name else { return Ok(None) };
        let found = Self::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, mode)| Some(mode)).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.iter().map(|(known, _)| *known).collect();
            let message = format!("`streamMode` must be one of {}", known.join(", "));
            Error::new(Code::UnsupportedStreamMode, message).detail("supported", known)
        })
    }

    const fn has(self, kind: Kind) -> bool {
        match self {
            Self::Debug => true,
            Self::Updates => kind.is_update(),
            Self::Values => kind.is_update() || matches!(kind, Kind::NodeStarted),
            Self::Messages => false,
        }
    }
}

/// The parameters of a query, each of which may be given once.
fn query(uri: &Uri, known: &[&str]) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
        let shown: String = name.chars().take(64).collect();
        let wrong = |why: &str| {
            let message = format!(
                "the query parameter `{shown}` {why}; the known ones are {}",
                known.join(", ")
            );
            Error::new(Code::Validation, message).detail("parameter", shown.clone())
        };
        if !known.contains(&&*name) {
            return Err(wrong("is unknown"));
        }
        if found.insert(name.into_owned(), value.into_owned()).is_some() {
            return Err(wrong("is given twice"));
        }
    }
    Ok(found)
}

/// Events of a run.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventList {
    events: Vec<Value>,
    /// Whether there will be no more.
    #[serde(skip_serializing_if = "Option::is_none")]
    is_complete: Option<bool>,
}

/// `GET /v1/runs/{runId}/events`
pub(super) async fn events(
    State(host): State<OpenWop>,
    Segments(run): Segments<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let query = query(&uri, &["streamMode", "bufferMs"])?;
    // The protocol has both checked whatever `Accept` is.
    let requested = Mode::of(query.get("streamMode").map(String::as_str))?;
    check_buffer(query.get("bufferMs").map(String::as_str))?;
    let last = last_event_id(&headers)?;
    if wants_stream(&headers)? {
        let place = host.reader()?;
        let log = host.service().log(&run).await?;
        let masks = masks(&host, &log).await?;
        return stream(&host, log, masks, (requested.unwrap_or(Mode::Updates), last), place).await;
    }
    // A list is complete unless the client requests less.
    let mode = requested.unwrap_or(Mode::Debug);
    let log = host.service().log(&run).await?;
    let masks = masks(&host, &log).await?;
    let lines = log.all();
    let events = if mode == Mode::Values {
        // A list of all snapshots has no bound that the events of the run would set.
        let standing = host.service().standing(&log).await?;
        let last = lines.last().map(|line| snapshot(&standing, &masks, &run, &line.entry));
        last.into_iter().collect()
    } else {
        let lines = lines.iter().filter(|line| mode.has(line.entry.event.kind()));
        lines.map(|line| masks.event(&run, &line.entry)).collect()
    };
    Ok(answer(StatusCode::OK, EventList { events, is_complete: None }))
}

/// Checks how long the client would have events gathered. The host sends each without delay, which the
/// protocol permits.
fn check_buffer(millis: Option<&str>) -> Result<(), Error> {
    match millis.map(str::parse::<u64>) {
        None | Some(Ok(_)) => Ok(()),
        Some(Err(_)) => {
            let message = "`bufferMs` must be a whole number of milliseconds from 0 on";
            Err(Error::new(Code::Validation, message).detail("parameter", "bufferMs"))
        }
    }
}

async fn masks(host: &OpenWop, log: &RunLog) -> Result<Arc<Masks>, Error> {
    let standing = host.service().definition_of(log).await?;
    Ok(Arc::new(host.engine().library.masks(&standing)))
}

/// Whether the client requests a stream, as one that accepts anything does; otherwise it must accept a
/// list.
fn wants_stream(headers: &HeaderMap) -> Result<bool, Error> {
    let mut accepted = Vec::new();
    for value in headers.get_all(header::ACCEPT) {
        let value = value.to_str().map_err(|_| {
            Error::new(Code::Validation, "`Accept` must be ASCII").detail("header", "Accept")
        })?;
        accepted.extend(value.split(',').filter_map(|range| {
            let mut parts = range.split(';').map(|part| part.trim().to_ascii_lowercase());
            let range = parts.next().unwrap_or_default();
            // A range with weight 0 is not acceptable (RFC 9110, 12.4.2).
            let is_refused = |part: String| {
                let weight = part.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
                weight == Some(0.0)
            };
            (!parts.any(is_refused)).then_some(range)
        }));
    }
    let takes = |types: &[&str]| accepted.iter().any(|range| types.contains(&range.as_str()));
    if takes(&["text/event-stream", "text/*"]) {
        Ok(true)
    } else if takes(&["application/json", "application/*"]) {
        Ok(false)
    } else if !headers.contains_key(header::ACCEPT) || takes(&["*/*"]) {
        Ok(true)
    } else {
        let message = "`Accept` must be `text/event-stream` or `application/json`";
        Err(Error::new(Code::NotAcceptable, message))
    }
}

/// The number of the last event that the client has received.
fn last_event_id(headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let Some(sent) = headers.get("last-event-id") else { return Ok(None) };
    let number = sent.to_str().ok().and_then(|sent| sent.trim().parse().ok());
    number.map(Some).ok_or_else(|| {
        let message = "`Last-Event-ID` must be the number of an event; omit it to receive all";
        Error::new(Code::Validation, message).detail("header", "Last-Event-ID")
    })
}

/// A reader of the stream of events of a run.
struct Reader {
    host: OpenWop,
    log: Arc<RunLog>,
    masks: Arc<Masks>,
    mode: Mode,
    next: u64,
    /// What it is sent of the state of the run, in [`Mode::Values`].
    snapshots: Option<Snapshots>,
    more: watch::Receiver<Stage>,
    closing: watch::Receiver<bool>,
    /// When it was sent something last.
    handed_at: Option<Monotonic>,
    /// Whether this host did not own the run at the end of the last silence.
    was_elsewhere: bool,
    is_done: bool,
    _place: ReaderPlace,
}

/// The state of a run before the next event that a reader is sent.
struct Snapshots {
    standing: Standing,
    /// The first piece of a stream that resumes: the snapshot after the event that the reader has.
    baseline: Option<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Snapshots {
    /// The state before number `next`, for a reader that resumes if `is_resumed`.
    async fn before(
        host: &OpenWop,
        log: &RunLog,
        masks: &Masks,
        next: u64,
        is_resumed: bool,
    ) -> Result<Self, Error> {
        let place = Arc::clone(&host.0.snapshot_readers).try_acquire_owned().map_err(|_| {
            host.engine().metrics().openwop_refused(OpenwopRefusal::Readers);
            let message = format!(
                "{SNAPSHOT_READERS_MAX} readers are sent snapshots (`streamMode=values`), which is \
                 the limit; use another mode, or try again later"
            );
            Error::new(Code::RateLimited, message)
        })?;
        let definition = host.service().definition_of(log).await?;
        let state = RunState::new(&definition);
        let mut standing = Standing { folded: log.folded().await, definition, state };
        let before = usize::try_from(next).unwrap_or(usize::MAX);
        let lines = log.from(0, before).0;
        lines.iter().for_each(|line| standing.apply(&line.entry));
        let last = lines.last().filter(|_| is_resumed);
        let baseline =
            last.map(|line| snapshot_frame(&standing, masks, log.run.id(), &line.entry).into());
        Ok(Self { standing, baseline, _place: place })
    }

    /// The snapshots after the first `lines`, and how many lines that covers.
    fn text(&mut self, masks: &Masks, run: &str, lines: &[Arc<Line>]) -> (Bytes, usize) {
        let (mut texts, mut bytes) = (Vec::new(), 0_usize);
        for (covered, line) in (1..).zip(lines) {
            self.standing.apply(&line.entry);
            if Mode::Values.has(line.entry.event.kind()) {
                let text = snapshot_frame(&self.standing, masks, run, &line.entry);
                bytes = bytes.saturating_add(text.len());
                texts.push(text.into());
                if bytes >= HANDED_MAX_BYTES {
                    return (joined(texts), covered);
                }
            }
        }
        (joined(texts), lines.len())
    }
}

async fn stream(
    host: &OpenWop,
    log: Arc<RunLog>,
    masks: Arc<Masks>,
    (mode, last): (Mode, Option<u64>),
    place: ReaderPlace,
) -> Result<Response, Error> {
    let next = last.map_or(0, |last| last.saturating_add(1));
    let snapshots = match mode {
        Mode::Values => Some(Snapshots::before(host, &log, &masks, next, last.is_some()).await?),
        _ => None,
    };
    let reader = Reader {
        more: log.watch(),
        closing: host.0.closing.subscribe(),
        host: host.clone(),
        log,
        masks,
        mode,
        next,
        snapshots,
        handed_at: None,
        was_elsewhere: false,
        is_done: false,
        _place: place,
    };
    let pieces = unfold(reader, async |mut reader| {
        let piece = reader.piece().await?;
        Some((Ok::<_, Infallible>(piece), reader))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, Body::from_stream(pieces)).into_response())
}

impl Reader {
    /// The next piece of the stream; `None` at its end.
    async fn piece(&mut self) -> Option<Bytes> {
        if self.is_done {
            return None;
        }
        let host = self.host.clone();
        let now = || host.engine().clock.now();
        // It has read what it was sent by now: the socket has room for more.
        let behind = self.handed_at.take().map(|handed| now().since(handed));
        if let Some(baseline) = self.snapshots.as_mut().and_then(|all| all.baseline.take()) {
            self.handed_at = Some(now());
            return Some(baseline);
        }
        loop {
            self.more.mark_unchanged();
            let (lines, is_end) = self.log.from(self.next, HANDED_MAX);
            let (text, handed) = self.text(&lines);
            let is_last = is_end && handed == lines.len();
            let patience = self.host.engine().settings.reader_patience;
            if !is_last && behind.is_some_and(|behind| behind > patience) {
                self.is_done = true;
                self.note_dropped("it was slow");
                let seconds = patience.as_secs();
                return Some(Bytes::from(format!(
                    ": dropped: nothing was taken for more than {seconds} s; resume with \
                     Last-Event-ID\n\n"
                )));
            }
            self.next += handed as u64;
            self.is_done = is_last;
            if !text.is_empty() {
                self.handed_at = Some(now());
                return Some(text);
            }
            if self.is_done {
                return None;
            }
            if lines.is_empty() {
                if self.log.stage() == Stage::Elsewhere {
                    return Some(self.leave());
                }
                match self.wait().await {
                    Waited::More => {}
                    Waited::Silence => {
                        // A host that does not reach the database does not learn who owns the run.
                        let is_elsewhere = !host.owns(&self.log.run);
                        if std::mem::replace(&mut self.was_elsewhere, is_elsewhere) && is_elsewhere
                        {
                            return Some(self.leave());
                        }
                        return Some(Bytes::from_static(b": keep-alive\n\n"));
                    }
                    Waited::Closing => {
                        self.is_done = true;
                        return Some(Bytes::from_static(
                            b": the host shuts down; resume with Last-Event-ID\n\n",
                        ));
                    }
                }
            }
        }
    }

    /// The end of the stream of a run that another host has.
    fn leave(&mut self) -> Bytes {
        self.is_done = true;
        Bytes::from_static(b": the run is on another host now; resume with Last-Event-ID\n\n")
    }

    /// The text of the first `lines` that it requests, and how many lines that covers.
    fn text(&mut self, lines: &[Arc<Line>]) -> (Bytes, usize) {
        let run = self.log.run.id();
        if let Some(snapshots) = &mut self.snapshots {
            return snapshots.text(&self.masks, run, lines);
        }
        let (mut texts, mut bytes) = (Vec::new(), 0_usize);
        for (nth, line) in lines.iter().enumerate() {
            if !self.mode.has(line.entry.event.kind()) {
                continue;
            }
            let text = line.text(|entry| frame(&self.masks, run, entry));
            bytes = bytes.saturating_add(text.len());
            if bytes > HANDED_MAX_BYTES && !texts.is_empty() {
                return (joined(texts), nth);
            }
            texts.push(text);
        }
        (joined(texts), lines.len())
    }

    fn note_dropped(&self, reason: &'static str) {
        self.host.engine().metrics().openwop_reader_dropped();
        tracing::warn!(run = %self.log.run, reason, "a reader of events was dropped");
    }

    async fn wait(&mut self) -> Waited {
        let Self { host, more, closing, .. } = self;
        let woken = async {
            tokio::select! {
                biased;
                _ = closing.wait_for(|closing| *closing) => Waited::Closing,
                _ = more.changed() => Waited::More,
            }
        };
        let silence = host.engine().settings.keep_alive;
        within(silence, woken).await.unwrap_or(Waited::Silence)
    }
}

/// One text of several; a single one is shared.
fn joined(mut texts: Vec<Bytes>) -> Bytes {
    match texts.pop() {
        None => Bytes::new(),
        Some(only) if texts.is_empty() => only,
        Some(last) => {
            texts.push(last);
            texts.concat().into()
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Its connection was cut off while it read nothing, so nothing can be sent to it.
        let service = self.host.service();
        let patience = service.engine().settings.reader_patience;
        let waited = self.handed_at.map(|handed| service.engine().clock.now().since(handed));
        if waited.is_some_and(|waited| waited >= patience) {
            self.note_dropped("it took nothing");
        }
    }
}

enum Waited {
    More,
    Silence,
    Closing,
}

/// An event in the format of a stream.
fn frame(masks: &Masks, run: &str, entry: &Entry) -> String {
    let data = masks.event(run, entry);
    format!("id: {}\nevent: {}\ndata: {data}\n\n", entry.sequence, entry.event.kind())
}

/// The event with the state of the run after `entry`. The log does not contain it.
fn snapshot(standing: &Standing, masks: &Masks, run: &str, entry: &Entry) -> Value {
    json!({
        "eventId": event_id(run, entry.sequence),
        "runId": run,
        "type": STATE_SNAPSHOT,
        "payload": RunSnapshot::new(run, standing, masks, false),
        "timestamp": entry.at.to_string(),
        "sequence": entry.sequence,
    })
}

/// That event in the format of a stream.
fn snapshot_frame(standing: &Standing, masks: &Masks, run: &str, entry: &Entry) -> String {
    let data = snapshot(standing, masks, run, entry);
    format!("id: {}\nevent: {STATE_SNAPSHOT}\ndata: {data}\n\n", entry.sequence)
}

/// `GET /v1/runs/{runId}/events/poll`
pub(super) async fn poll(
    State(host): State<OpenWop>,
    Segments(run): Segments<String>,
    uri: Uri,
) -> Result<Response, Error> {
    let query = query(&uri, &["lastSequence", "timeout"])?;
    let wrong = |name: &str, what: &str| {
        Error::new(Code::Validation, format!("`{name}` must be {what}")).detail("parameter", name)
    };
    let next = match query.get("lastSequence").map(String::as_str) {
        None | Some("-1") => 0,
        Some(last) => last
            .parse::<u64>()
            .map_err(|_| wrong("lastSequence", "the number of an event, or -1"))?
            .saturating_add(1),
    };
    let most = host.engine().settings.max_poll;
    let timeout = match query.get("timeout").map(|timeout| timeout.parse::<f64>()) {
        None => std::time::Duration::ZERO,
        Some(Ok(seconds)) if seconds.is_finite() && seconds >= 0.0 => {
            std::time::Duration::try_from_secs_f64(seconds).unwrap_or(most).min(most)
        }
        Some(_) => return Err(wrong("timeout", "a number of seconds from 0 on")),
    };
    let log = host.service().log(&run).await?;
    let masks = masks(&host, &log).await?;
    let (mut lines, mut is_complete) = log.from(next, usize::MAX);
    if lines.is_empty() && !is_complete && !timeout.is_zero() {
        let _place = host.polling()?;
        let mut more = log.watch();
        let mut closing = host.0.closing.subscribe();
        let come = async {
            loop {
                more.mark_unchanged();
                let stage = log.stage();
                let found = log.from(next, usize::MAX);
                if !found.0.is_empty() || stage != Stage::Open {
                    return found;
                }
                tokio::select! {
                    biased;
                    _ = closing.wait_for(|closing| *closing) => return found,
                    _ = more.changed() => {}
                }
            }
        };
        if let Ok(found) = within(timeout, come).await {
            (lines, is_complete) = found;
        }
    }
    let events: Vec<Value> = lines.iter().map(|line| masks.event(&run, &line.entry)).collect();
    Ok(answer(StatusCode::OK, EventList { events, is_complete: Some(is_complete) }))
}
