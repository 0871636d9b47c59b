//! The bodies of HTTP requests and responses as streams. Each step of a stream that waits is a call of
//! its own: it passes the boundary, is recorded, and completes at a point of the guest.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use sandglass_supervisor::capability::http::{self, HttpError};
use sandglass_supervisor::capability::streams::{BodyWriter, IncomingResponse, Room};
use sandglass_supervisor::functions::FunctionId;
use sandglass_supervisor::race::Race;
use sandglass_supervisor::recording::Packer;
use sandglass_supervisor::run::Run;
use tokio::sync::{Mutex, oneshot};
use wasmtime::component::{
    Destination, Source, StreamConsumer, StreamProducer, StreamResult, VecBuffer,
};
use wasmtime::{AsContextMut, Error, Result, StoreContextMut};

use super::{Begun, Pending, Step};
use crate::abi::passed::{Passed, Recorded};
use crate::store::RunStore;

/// Largest piece of a body, in bytes: what socket buffers hold.
const PIECE_BYTES: u32 = 64 << 10;

/// A response whose body is being read. Several reads may wait for it, of which all but the last are
/// cancelled.
pub(super) type Received = Arc<Mutex<IncomingResponse>>;

/// The error of a body, in the form of one ABI.
pub(super) trait BodyError: Recorded + Send + 'static {
    fn of(error: HttpError) -> Self;
}

/// Produces the body of a response.
pub(super) struct ResponseBody<E> {
    function: FunctionId,
    /// `None` in a replay.
    received: Option<Received>,
    /// How long it waits for a piece.
    patience: Duration,
    /// Takes the error that ended the body; dropped at its end.
    ended: Option<oneshot::Sender<E>>,
    reading: Option<Pending<Result<(), HttpError>>>,
}

impl<E: BodyError> ResponseBody<E> {
    pub(super) fn new(
        function: FunctionId,
        received: Option<Received>,
        patience: Duration,
        ended: oneshot::Sender<E>,
    ) -> Self {
        Self { function, received, patience, ended: Some(ended), reading: None }
    }

    /// Begins to read the next piece, or goes on; the result is empty at the end.
    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        store: &mut RunStore,
    ) -> Poll<Result<Result<Vec<u8>, E>>> {
        let (received, arrived) = (self.received.clone(), self.received.clone());
        let patience = self.patience;
        let begin = |_: &mut RunStore, race: Race| {
            let read = async move {
                let received = received?;
                let read = async {
                    received.lock().await.ready().await;
                    Ok(())
                };
                race.call(http::within(patience, read)).await
            };
            Ok(Begun::waits(read))
        };
        // Taken only now, because a cancelled read may not take anything.
        let finish = |store: &mut RunStore, read: Result<(), HttpError>| {
            let received = arrived.as_ref().and_then(|arrived| arrived.try_lock().ok());
            let mut received = received.ok_or_else(|| Error::msg("the body is being read"))?;
            let piece = read.and_then(|()| received.take(PIECE_BYTES));
            Ok(piece.map(Vec::from).map_err(|error| failed(store, error)))
        };
        step(&mut self.reading, context, store, self.function, |_| {}, begin, finish)
    }
}

impl<E: BodyError> StreamProducer<RunStore> for ResponseBody<E> {
    type Item = u8;
    type Buffer = VecBuffer<u8>;

    fn poll_produce<'a>(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut store: StoreContextMut<'a, RunStore>,
        mut destination: Destination<'a, u8, VecBuffer<u8>>,
        finish: bool,
    ) -> Poll<Result<StreamResult>> {
        if destination.remaining(store.as_context_mut()) == Some(0) {
            return Poll::Ready(Ok(StreamResult::Completed));
        }
        match self.poll_read(context, store.data_mut())? {
            Poll::Ready(Ok(piece)) if piece.is_empty() => {
                self.ended = None;
                Poll::Ready(Ok(StreamResult::Dropped))
            }
            Poll::Ready(Ok(piece)) => {
                destination.set_buffer(piece.into());
                Poll::Ready(Ok(StreamResult::Completed))
            }
            Poll::Ready(Err(error)) => {
                if let Some(ended) = self.ended.take() {
                    // The guest may have dropped the future.
                    let _ = ended.send(error);
                }
                Poll::Ready(Ok(StreamResult::Dropped))
            }
            Poll::Pending if finish => {
                // Dropped, it cancels the call.
                self.reading = None;
                Poll::Ready(Ok(StreamResult::Cancelled))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

/// What happens when the guest has ended the body of a request.
pub(super) trait BodyEnd: Send + 'static {
    type Error: BodyError;

    /// All of it was passed to `writer`.
    fn ended(&mut self, writer: BodyWriter);

    /// It could not be written.
    fn failed(&mut self, _error: Self::Error) {}
}

/// Consumes the body of a request. Dropped by the guest, it ends the body.
pub(super) struct RequestBody<D: BodyEnd> {
    function: FunctionId,
    /// `None` in a replay.
    writer: Option<BodyWriter>,
    end: D,
    /// The length of the piece that is being written.
    piece: usize,
    writing: Option<Pending<Result<(Room, Bytes), HttpError>>>,
    /// Whether the host ended the run, and the guest not the body.
    run: Arc<Run>,
}

impl<D: BodyEnd> RequestBody<D> {
    pub(super) fn new(
        function: FunctionId,
        writer: Option<BodyWriter>,
        end: D,
        store: &RunStore,
    ) -> Self {
        let run = Arc::clone(store.run());
        Self { function, writer, end, piece: 0, writing: None, run }
    }
}

impl<D: BodyEnd + Unpin> StreamConsumer<RunStore> for RequestBody<D> {
    type Item = u8;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut store: StoreContextMut<'_, RunStore>,
        mut source: Source<'_, u8>,
        finish: bool,
    ) -> Poll<Result<StreamResult>> {
        let mut piece = Vec::new();
        if self.writing.is_none() {
            let mut source = source.reborrow().as_direct(store.as_context_mut());
            let written = source.remaining();
            piece = written.get(..PIECE_BYTES as usize).unwrap_or(written).to_vec();
            if piece.is_empty() {
                return Poll::Ready(Ok(StreamResult::Completed));
            }
            self.piece = piece.len();
        }
        let this = &mut *self;
        let writer = &this.writer;
        let recorded = |to: &mut Packer<'_>| piece.pass(to);
        let begin = |store: &mut RunStore, race: Race| {
            let bytes = store.guest().memory.bytes(piece.clone());
            Ok(match (bytes, writer) {
                (Ok(bytes), Some(writer)) => {
                    let room = writer.room();
                    let room = async move { race.call(room).await };
                    Begun::waits(async move { Some(room.await?.map(|room| (room, bytes))) })
                }
                (Ok(_), None) => Begun::Has(Ok(())),
                (Err(error), _) => Begun::Has(Err(failed::<D::Error>(store, error.into()))),
            })
        };
        // Written only now, because a cancelled write may not write anything.
        let finished = |store: &mut RunStore, room: Result<(Room, Bytes), HttpError>| {
            let written = room.map(|(room, bytes)| room.write(bytes));
            Ok(written.map_err(|error| failed::<D::Error>(store, error)))
        };
        let function = this.function;
        let written =
            step(&mut this.writing, context, store.data_mut(), function, recorded, begin, finished);
        match written? {
            Poll::Ready(Ok(())) => {
                let length = std::mem::take(&mut self.piece);
                source.as_direct(store).mark_read(length);
                Poll::Ready(Ok(StreamResult::Completed))
            }
            Poll::Ready(Err(error)) => {
                // Dropped without its end, the body makes the request fail.
                self.writer = None;
                self.end.failed(error);
                Poll::Ready(Ok(StreamResult::Dropped))
            }
            Poll::Pending if finish => {
                self.writing = None;
                Poll::Ready(Ok(StreamResult::Cancelled))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<D: BodyEnd> Drop for RequestBody<D> {
    fn drop(&mut self) {
        // A run that has ended did not end the body.
        if let Some(writer) = self.writer.take().filter(|_| self.run.cause().is_none()) {
            self.end.ended(writer);
        }
    }
}

/// Notes why a step fails, for reports, and returns the error as the guest gets it.
fn failed<E: BodyError>(store: &mut RunStore, error: HttpError) -> E {
    store.guest_mut().note_error(&error);
    E::of(error)
}

/// Begins a step of a stream, or goes on with the one that is `pending`.
fn step<W: Send + 'static, R: Recorded>(
    pending: &mut Option<Pending<W>>,
    context: &mut Context<'_>,
    store: &mut RunStore,
    function: FunctionId,
    arguments: impl FnOnce(&mut Packer<'_>),
    begin: impl FnOnce(&mut RunStore, Race) -> Result<Begun<W, R>>,
    finish: impl FnOnce(&mut RunStore, W) -> Result<R>,
) -> Poll<Result<R>> {
    let mut call = match pending.take() {
        Some(call) => call,
        None => match super::enter(store, function, arguments, begin)? {
            Step::Returned(result) => return Poll::Ready(Ok(result)),
            Step::Ready(call) => return Poll::Ready(call.leave(store, finish)),
            Step::Suspended(call) => call,
        },
    };
    if Pin::new(&mut call).poll(context).is_pending() {
        *pending = Some(call);
        return Poll::Pending;
    }
    Poll::Ready(call.resume(store).and_then(|call| call.leave(store, finish)))
}
