//! HTTP bodies piece by piece, in both directions, with backpressure: the slower side holds back the
//! faster one, so that neither fills memory.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;

use super::http::{HttpError, Opened, Pieces};
use super::outside::headers_bytes;
use crate::covered;
use crate::measured::Measured;
use crate::opaque::opaque;
use crate::secret::Answer;

/// Largest piece that one read returns, in bytes: what socket buffers hold.
const READ_MAX_BYTES: usize = 64 << 10;

/// Largest piece of one write, in bytes: more than any socket buffer holds.
const WRITE_MAX_BYTES: usize = 1 << 20;

/// A request whose body is being written.
pub struct OutgoingRequest {
    pieces: mpsc::Sender<Result<Bytes, HttpError>>,
    response: Answer<'static, Result<Opened, HttpError>>,
    /// The response or error, if it arrived before the end of the body.
    early: Option<Result<Opened, HttpError>>,
}

opaque!(OutgoingRequest as "OutgoingRequest", IncomingResponse as "IncomingResponse" { status });

// Pieces are charged, and so are the open request and the head of its response.
covered!(OutgoingRequest: pieces, response, early);

/// Creates a body: the sender that writes it, and the pieces that are sent.
pub fn body() -> (mpsc::Sender<Result<Bytes, HttpError>>, Pieces) {
    // One piece may wait while another is being sent.
    let (sender, receiver) = mpsc::channel(1);
    let pieces = futures_util::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|piece| (piece, receiver))
    });
    (sender, Box::pin(pieces))
}

/// The writing end of a body that is sent while its request waits for the response. Dropped without
/// [`BodyWriter::finish`], it makes the request fail.
#[derive(Debug)]
pub struct BodyWriter {
    pieces: mpsc::Sender<Result<Bytes, HttpError>>,
    is_complete: Arc<AtomicBool>,
}

/// Creates a body that is complete only if its writer says so: its writer, and the pieces that are
/// sent.
#[must_use]
pub fn unfinished_body() -> (BodyWriter, Pieces) {
    let (writer, pieces) = body();
    let is_complete = Arc::new(AtomicBool::new(false));
    let complete = Arc::clone(&is_complete);
    let unfinished = move || {
        let why = "the body was not written to its end";
        let is_complete = complete.load(Ordering::Acquire);
        (!is_complete).then(|| Err(HttpError::Transport(why.to_owned())))
    };
    let end = futures_util::stream::once(async move { unfinished() });
    let end = end.filter_map(std::future::ready);
    (BodyWriter { pieces: writer, is_complete }, Box::pin(pieces.chain(end)))
}

/// Room for one piece of a body. Dropped, nothing is written.
#[derive(Debug)]
pub struct Room(mpsc::OwnedPermit<Result<Bytes, HttpError>>);

impl Room {
    /// Writes a piece.
    pub fn write(self, piece: Bytes) {
        self.0.send(Ok(piece));
    }
}

impl BodyWriter {
    /// Waits until the connection can take a piece.
    pub fn room(&self) -> Answer<'static, Result<Room, HttpError>> {
        let pieces = self.pieces.clone();
        Box::pin(async move {
            let closed = |_| HttpError::Transport("the body is no longer read".to_owned());
            pieces.reserve_owned().await.map(Room).map_err(closed)
        })
    }

    /// Ends the body, which is complete.
    pub fn finish(self) {
        self.is_complete.store(true, Ordering::Release);
    }
}

impl OutgoingRequest {
    /// Creates a request that sends what is written to `pieces`, and then waits for `response`.
    pub fn new(
        pieces: mpsc::Sender<Result<Bytes, HttpError>>,
        response: Answer<'static, Result<Opened, HttpError>>,
    ) -> Self {
        Self { pieces, response, early: None }
    }

    /// Writes a piece of the body. Waits until the connection can take it.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), HttpError> {
        if piece.len() > WRITE_MAX_BYTES {
            return Err(HttpError::InvalidRequest(format!(
                "the piece has {} bytes, and {WRITE_MAX_BYTES} are allowed",
                piece.len()
            )));
        }
        let Self { pieces, response, early } = self;
        if early.is_none() {
            let answer = tokio::select! {
                biased;
                answer = &mut *response => answer,
                sent = pieces.send(Ok(piece)) => match sent {
                    Ok(()) => return Ok(()),
                    // The client no longer reads the body; the response states why.
                    Err(_) => response.await,
                },
            };
            *early = Some(answer);
        }
        Err(match early {
            Some(Err(error)) => error.clone(),
            _ => HttpError::Transport("the request was answered before its body ended".to_owned()),
        })
    }

    /// Ends the body, and waits for the response's head.
    pub async fn finish(self) -> Result<IncomingResponse, HttpError> {
        drop(self.pieces);
        let opened = match self.early {
            Some(early) => early?,
            None => self.response.await?,
        };
        Ok(IncomingResponse::new(opened))
    }
}

/// A response whose body is being read.
pub struct IncomingResponse {
    /// The status code.
    pub status: u16,
    /// The headers, in the order in which they came.
    pub headers: Vec<(String, String)>,
    body: Pieces,
    /// Received bytes that the guest has not read yet, or the error that ended the body.
    rest: Result<Bytes, HttpError>,
    has_ended: bool,
}

impl Measured for IncomingResponse {
    fn uncharged_bytes(&self) -> u64 {
        let Self { status: _, headers, body: _, rest, has_ended: _ } = self;
        rest.as_ref().map_or(0, Bytes::len) as u64 + headers_bytes(headers)
    }
}

impl IncomingResponse {
    /// Creates a response whose body is read piece by piece.
    pub fn new(opened: Opened) -> Self {
        let Opened { status, headers, body } = opened;
        Self { status, headers, body, rest: Ok(Bytes::new()), has_ended: false }
    }

    /// Reads the next piece, of at most `max` bytes; an empty one at the end.
    pub async fn read(&mut self, max: u32) -> Result<Bytes, HttpError> {
        self.ready().await;
        self.take(max)
    }

    /// Waits until there is something to take. Dropped before or after, it loses nothing.
    pub async fn ready(&mut self) {
        while !self.has_ended && self.rest.as_ref().is_ok_and(Bytes::is_empty) {
            match self.body.next().await {
                Some(piece) => self.rest = piece,
                None => self.has_ended = true,
            }
        }
    }

    /// Takes what has arrived, at most `max` bytes; nothing at the end.
    pub fn take(&mut self, max: u32) -> Result<Bytes, HttpError> {
        let max = (max as usize).clamp(1, READ_MAX_BYTES);
        match mem::replace(&mut self.rest, Ok(Bytes::new())) {
            Ok(mut rest) => {
                let piece = rest.split_to(max.min(rest.len()));
                self.rest = Ok(rest);
                Ok(piece)
            }
            Err(error) => {
                // An error ends the body.
                self.body = Box::pin(futures_util::stream::empty());
                self.has_ended = true;
                Err(error)
            }
        }
    }
}
