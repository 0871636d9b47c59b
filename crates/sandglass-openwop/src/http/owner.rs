//! Requests about runs that other hosts of the cluster own. Each is served by the owner of its run.
//!
//! ```text
//!  client ──▶ door ──▶ forward: which run? ──▶ Here: the route
//!                        (a new one: its id       │ 421: look again
//!                         is chosen here)         ▼
//!                                              At: the owner ──▶ response, or its stream of events
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use futures_util::stream::{StreamExt as _, unfold};
use sandglass_http::body::LARGE_BYTES;
use sandglass_http::{ForwardedRequest, NotForwarded, Owners};
use sandglass_model::{EntityRef, HostId};
use sandglass_telemetry::metrics::OpenwopRefusal;
use sandglass_workflow::step::ForkMode;
use serde::Deserialize;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::error::Error;
use super::runs::FORK;
use super::{OpenWop, request};
use crate::code::Code;
use crate::id;
use crate::sync::lock;

/// The header of a forwarded request with the id of the run that it creates.
const RUN: HeaderName = HeaderName::from_static("sandglass-run");
/// The header of a forwarded request with the digest of the definitions and packs of its sender.
const LIBRARY: HeaderName = HeaderName::from_static("sandglass-workflows");

/// Streams and polls of events at once that other hosts serve for clients of this one: another host can
/// be sent 800 requests at once, and these last long.
pub(super) const FORWARDED_READERS_MAX: usize = 512;
/// How long the owner may take for a response, besides the time that a poll waits.
const RESPONSE_MAX: Duration = Duration::from_secs(35);

/// Most hosts that are remembered because a warning about them was logged.
const WARNED_OF_MAX: usize = 64;

/// The extension of a request that another host has forwarded.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForwardedBy(pub(super) HostId);

/// The extension of a request with the id of the run that it creates, which was chosen before the
/// request was sent to the owner.
#[derive(Clone, Debug)]
pub(super) struct NewRun(pub(super) String);

/// Serves a request here, if this host owns its run, and otherwise sends it to the owner.
pub(super) async fn forward(State(host): State<OpenWop>, request: Request, next: Next) -> Response {
    let response = match host.0.owners.clone() {
        Some(owners) => in_cluster(&host, &*owners, request, next).await,
        None => Ok(next.run(request).await),
    };
    let response = response.unwrap_or_else(Error::into_response);
    if host.0.owners.is_none() && response.status() == StatusCode::MISDIRECTED_REQUEST {
        // Only hosts look for the owner.
        let message = "another process has taken the journal of this one; nothing was done";
        return Error::new(Code::Unavailable, message).into_response();
    }
    response
}

async fn in_cluster(
    host: &OpenWop,
    owners: &dyn Owners,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    let forwarded_by = parts.extensions.get::<ForwardedBy>().copied();
    // Without the door, a client could choose the id of its run.
    let chosen = parts.headers.remove(RUN).filter(|_| forwarded_by.is_some());
    let theirs = parts.headers.remove(LIBRARY);
    let is_safe = parts.method.is_safe();
    let body = if is_safe { Bytes::new() } else { host.bytes(&parts.headers, body).await? };
    let Some(target) = Target::find(&mut parts, &body, chosen).await? else {
        // The route states what is wrong.
        return Ok(next.run(Request::from_parts(parts, body.into())).await);
    };
    let run = target.run;
    if let Some(new) = &target.new {
        parts.extensions.insert(NewRun(new.clone()));
    }
    let here = || Request::from_parts(parts.clone(), Body::from(body.clone()));
    if let Some(ForwardedBy(sender)) = forwarded_by {
        if !owners.is_here(&run) {
            return Err(not_owner(&run));
        }
        host.compare_libraries(sender, theirs.as_ref());
        return Ok(next.run(here()).await);
    }
    // Held until there is a response, because the body may have to be sent again.
    let _slot = (body.len() > LARGE_BYTES).then(|| host.large_body()).transpose()?;
    let lasts = target.is_reading && !owners.is_here(&run);
    let slot = lasts.then(|| host.forwarded_reader()).transpose()?;
    let is_served_here = AtomicBool::new(false);
    let serve = || {
        is_served_here.store(true, Ordering::Relaxed);
        next.clone().run(here()).boxed()
    };
    let mut head = parts.clone();
    head.headers.insert(LIBRARY, host.0.library.clone());
    if let Some(new) = target.new.as_deref().and_then(|new| HeaderValue::from_str(new).ok()) {
        head.headers.insert(RUN, new);
    }
    let patience = host.engine().settings.max_poll.saturating_add(RESPONSE_MAX);
    let can_be_repeated = target.can_be_repeated;
    let onward = ForwardedRequest { head, body: body.clone(), can_be_repeated, patience };
    let mut closing = host.0.closing.subscribe();
    let forwarding = owners.forward(&run, onward, &serve);
    let response = if lasts {
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => {
                let message = "the host shuts down; send the request to another one";
                return Err(Error::new(Code::Unavailable, message));
            }
            response = forwarding => response,
        }
    } else {
        forwarding.await
    };
    let response = response.map_err(|why| not_forwarded(why, &run))?;
    if is_served_here.into_inner() || !is_stream(&response) {
        return Ok(response);
    }
    Ok(until_closing(response, closing, slot))
}

/// What a request is about.
struct Target {
    run: EntityRef,
    /// The id of the run, if the request creates it.
    new: Option<String>,
    /// Whether it can be sent again although it may have been done.
    can_be_repeated: bool,
    /// Whether it is for events, and may last.
    is_reading: bool,
}

impl Target {
    /// The run that the request is about, which `chosen` names if it is a new one and its id was chosen
    /// before; `None` if the request is invalid.
    async fn find(
        parts: &mut Parts,
        body: &Bytes,
        chosen: Option<HeaderValue>,
    ) -> Result<Option<Self>, Error> {
        let path = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned());
        let Ok(params) = RawPathParams::from_request_parts(parts, &()).await else {
            return Ok(None);
        };
        let named = params.iter().find(|(name, _)| *name == "run").map(|(_, run)| run.to_owned());
        let source = named.as_deref().and_then(|run| run.strip_suffix(FORK));
        let is_new = named.is_none() || (source.is_some() && parts.method == "POST");
        if !is_new {
            let run = named.as_deref().and_then(id::entity_of);
            let ends_with = |end| path.as_deref().is_some_and(|path| path.ends_with(end));
            return Ok(run.map(|run| Self {
                run,
                new: None,
                // A run is cancelled once, however often that is requested.
                can_be_repeated: parts.method.is_safe() || ends_with("/cancel"),
                is_reading: ends_with("/events") || ends_with("/events/poll"),
            }));
        }
        let Ok(key) = request::idempotency_key(&parts.headers) else { return Ok(None) };
        let new = match (chosen, source) {
            (Some(chosen), _) => chosen.to_str().ok().map(str::to_owned),
            (None, None) => Some(match key {
                Some(key) => id::of_key(key),
                None => id::of_run().map_err(no_id)?,
            }),
            (None, Some(_)) => match (requested_mode(body), key) {
                (None, _) => None,
                (Some(mode), Some(key)) => Some(id::of_fork_key(key, mode)),
                (Some(mode), None) => Some(id::of_fork(mode).map_err(no_id)?),
            },
        };
        let run = new.as_deref().and_then(id::entity_of);
        // The run is found if it was created before.
        Ok(run.map(|run| Self { run, new, can_be_repeated: true, is_reading: false }))
    }
}

/// The mode of the fork that a body requests, if it states one.
fn requested_mode(body: &Bytes) -> Option<ForkMode> {
    #[derive(Deserialize)]
    struct Body {
        mode: ForkMode,
    }
    serde_json::from_slice::<Body>(body).ok().map(|body| body.mode)
}

fn no_id(error: sandglass_runtime::ActorError) -> Error {
    crate::service::Error::from(error).into()
}

fn not_owner(run: &EntityRef) -> Error {
    Error::new(Code::NotOwner, "another host owns the run").detail("runId", run.id())
}

fn not_forwarded(why: NotForwarded, run: &EntityRef) -> Error {
    let (code, message) = match why {
        NotForwarded::Moving => (
            Code::OwnerMoving,
            "the run is moving to another host, or its host cannot be reached; nothing was done, so try \
             again later",
        ),
        NotForwarded::Unknown => (
            Code::OutcomeUnknown,
            "the host that owns the run did not respond; read the run to see whether the request was done, \
             or send it again if it has an `Idempotency-Key`",
        ),
        NotForwarded::TooLong => {
            (Code::Unavailable, "the host that owns the run took too long; try again later")
        }
        NotForwarded::WrongKey => (
            Code::Unavailable,
            "the host that owns the run refuses the cluster key of this host; give all hosts the same one",
        ),
    };
    Error::new(code, message).detail("runId", run.id())
}

fn is_stream(response: &Response) -> bool {
    let sent = response.headers().get(header::CONTENT_TYPE);
    sent.and_then(|sent| sent.to_str().ok()).is_some_and(|sent| sent == "text/event-stream")
}

/// A stream of events that another host sends.
struct Forwarded {
    pieces: BodyDataStream,
    closing: watch::Receiver<bool>,
    /// How many line feeds what was sent so far ends with: two of them end an event.
    line_feeds: usize,
    _slot: Option<OwnedSemaphorePermit>,
}

impl Forwarded {
    /// Whether no event has been sent in part.
    const fn is_whole(&self) -> bool {
        self.line_feeds >= 2
    }

    /// Notes what is sent.
    fn note(&mut self, piece: &Bytes) {
        let line_feeds = piece.iter().rev().take_while(|byte| **byte == b'\n').count();
        let before = if line_feeds == piece.len() { self.line_feeds } else { 0 };
        self.line_feeds = before.saturating_add(line_feeds);
    }
}

/// The stream of another host, which ends between two events if this host shuts down, or if its connection
/// to the other one breaks.
fn until_closing(
    response: Response,
    closing: watch::Receiver<bool>,
    slot: Option<OwnedSemaphorePermit>,
) -> Response {
    let (parts, body) = response.into_parts();
    let pieces = body.into_data_stream();
    let stream = Forwarded { pieces, closing, line_feeds: 2, _slot: slot };
    let pieces = unfold(Some(stream), async |stream| {
        let mut stream = stream?;
        let piece = tokio::select! {
            biased;
            _ = stream.closing.wait_for(|closing| *closing), if stream.is_whole() => {
                let end = b": the host shuts down; resume with Last-Event-ID\n\n";
                return Some((Ok(Bytes::from_static(end)), None));
            }
            piece = stream.pieces.next() => piece?,
        };
        match piece {
            Ok(piece) => {
                stream.note(&piece);
                Some((Ok(piece), Some(stream)))
            }
            Err(_) if stream.is_whole() => {
                let end = b": the host of the run is gone; resume with Last-Event-ID\n\n";
                Some((Ok(Bytes::from_static(end)), None))
            }
            Err(error) => Some((Err(error), None)),
        }
    });
    Response::from_parts(parts, Body::from_stream(pieces))
}

impl OpenWop {
    /// Whether this host owns `run`, as far as it knows.
    pub(super) fn owns(&self, run: &EntityRef) -> bool {
        self.0.owners.as_ref().is_none_or(|owners| owners.is_here(run))
    }

    /// A slot for a stream or poll of events that another host serves.
    fn forwarded_reader(&self) -> Result<OwnedSemaphorePermit, Error> {
        Arc::clone(&self.0.forwarded_readers).try_acquire_owned().map_err(|_| {
            self.engine().metrics().openwop_refused(OpenwopRefusal::Readers);
            let message = format!(
                "{FORWARDED_READERS_MAX} streams and polls of events of this host's clients are served by \
                 other hosts, which is the limit; try again at another host"
            );
            Error::new(Code::RateLimited, message)
        })
    }

    /// Warns once if another host has other definitions or packs.
    fn compare_libraries(&self, sender: HostId, theirs: Option<&HeaderValue>) {
        let Some(theirs) = theirs.filter(|theirs| **theirs != self.0.library) else { return };
        let mut warned_of = lock(&self.0.warned_of);
        if warned_of.get(&sender) != Some(theirs) {
            if warned_of.len() >= WARNED_OF_MAX {
                // Most of them are hosts that have ended. The others are warned of again.
                warned_of.clear();
            }
            warned_of.insert(sender, theirs.clone());
            tracing::warn!(
                %sender,
                "another host has other workflows or packs than this one, so runs depend on where they are; \
                 give all hosts the same folders"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream::iter;

    use super::*;

    /// What a client gets of a stream of these pieces, whose connection breaks behind them.
    fn passed_on(pieces: &'static [&str], is_closing: bool) -> Vec<Option<Bytes>> {
        let pieces = pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes())));
        let broken = std::iter::once(Err(axum::Error::new(std::fmt::Error)));
        let response = Response::new(Body::from_stream(iter(pieces.chain(broken))));
        let closing = watch::Sender::new(is_closing);
        let passed_on = until_closing(response, closing.subscribe(), None);
        let pieces = passed_on.into_body().into_data_stream().map(Result::ok);
        pieces.collect().now_or_never().expect("nothing waits")
    }

    #[test]
    fn a_stream_that_is_passed_on_ends_between_two_events() {
        let is_end = |piece: &Option<Bytes>| {
            piece.as_ref().is_some_and(|piece| piece.ends_with(b"resume with Last-Event-ID\n\n"))
        };
        let whole = passed_on(&["id: 1\n\n", "id: 2\n", "\n"], false);
        assert!(whole.len() == 4 && is_end(&whole[3]), "{whole:?}");
        let half = passed_on(&["id: 1\n\n", "id: 2\n"], false);
        assert!(half.len() == 3 && half[2].is_none(), "{half:?}");
        let closing = passed_on(&["id: 1\n\n"], true);
        assert!(closing.len() == 1 && is_end(&closing[0]), "{closing:?}");
    }
}
