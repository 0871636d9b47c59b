//! The standard streams of WASI 0.3: what a guest writes goes line by line to its log, and its input is
//! empty.

use std::pin::Pin;
use std::task::{Context, Poll};

use sandglass_supervisor::capability::log::Level;
use sandglass_supervisor::functions::FunctionId;
use sandglass_supervisor::recording::Packer;
use tokio::sync::oneshot;
use wasmtime::component::{
    Access, Destination, FutureReader, HasSelf, Source, StreamConsumer, StreamProducer,
    StreamReader, StreamResult, VecBuffer,
};
use wasmtime::{AsContextMut, Error, Result, StoreContextMut};
use wasmtime_wasi::p3::bindings::cli::types::ErrorCode;

use super::{instant, pass};
use crate::abi::passed::Passed;
use crate::abi::wasi::LogStream;
use crate::store::RunStore;

/// The name of a write to a standard stream, which is a step of a stream and no function.
pub(super) const WRITE: &str = "[write]data";

/// Largest piece of one write, in bytes: the largest buffers of guests.
const WRITE_BYTES: usize = 64 << 10;

/// Lets a guest write `data` to its log.
pub(super) fn write(
    mut store: Access<'_, RunStore, HasSelf<RunStore>>,
    (function, write): (FunctionId, FunctionId),
    level: Level,
    data: StreamReader<u8>,
) -> Result<FutureReader<Result<(), ErrorCode>>> {
    pass(store.get(), function)?;
    let log = store.get().wasi().log_stream(level);
    let (ended, has_ended) = oneshot::channel();
    data.pipe(&mut store, ToLog { log, write, _ended: ended })?;
    FutureReader::new(&mut store, async {
        // The sender is dropped with the stream.
        let _ = has_ended.await;
        Ok::<_, Error>(Ok(()))
    })
}

/// Writes a stream to the log.
struct ToLog {
    log: LogStream,
    write: FunctionId,
    _ended: oneshot::Sender<()>,
}

impl StreamConsumer<RunStore> for ToLog {
    type Item = u8;

    fn poll_consume(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        mut store: StoreContextMut<'_, RunStore>,
        mut source: Source<'_, u8>,
        _finish: bool,
    ) -> Poll<Result<StreamResult>> {
        let bytes = {
            let mut source = source.reborrow().as_direct(store.as_context_mut());
            let piece = source.remaining();
            let piece = piece.get(..WRITE_BYTES).unwrap_or(piece).to_vec();
            source.mark_read(piece.len());
            piece
        };
        if bytes.is_empty() {
            // It asks whether it may write.
            return Poll::Ready(Ok(StreamResult::Completed));
        }
        let pass_bytes = |to: &mut Packer<'_>| bytes.pass(to);
        let append = |_: &mut RunStore| self.log.append(&bytes);
        let written = instant(store.data_mut(), self.write, pass_bytes, append);
        Poll::Ready(written.map(|()| StreamResult::Completed))
    }
}

/// An input that has ended.
pub(super) struct Empty;

impl StreamProducer<RunStore> for Empty {
    type Item = u8;
    type Buffer = VecBuffer<u8>;

    fn poll_produce<'a>(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: StoreContextMut<'a, RunStore>,
        _: Destination<'a, u8, VecBuffer<u8>>,
        _: bool,
    ) -> Poll<Result<StreamResult>> {
        Poll::Ready(Ok(StreamResult::Dropped))
    }
}
