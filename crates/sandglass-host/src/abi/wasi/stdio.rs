//! WASI's standard output and error, which go line by line to the guest's log.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use sandglass_model::Clock;
use tokio::io::AsyncWrite;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

use crate::measured::Measured;
use sandglass_supervisor::capability::log::{GuestLog, LINE_MAX_BYTES, Level};
use sandglass_supervisor::capability::outside::Outside;
use sandglass_supervisor::run::Run;

/// How much of a line is kept, in bytes: more than is logged, because where it is cut, parts of secrets
/// are removed with their surroundings.
const KEPT_BYTES: usize = 4 * LINE_MAX_BYTES as usize;

/// One of the two streams. Clones write to the same.
#[derive(Clone)]
pub(in crate::abi) struct LogStream(Arc<Mutex<Lines>>);

struct Lines {
    log: GuestLog,
    level: Level,
    run: Arc<Run>,
    clock: Arc<dyn Clock>,
    /// The beginning of a line whose end has not been written.
    partial: Vec<u8>,
}

impl Measured for LogStream {
    fn uncharged_bytes(&self) -> u64 {
        // At most the beginning of one line.
        0
    }
}

impl LogStream {
    pub(super) fn new(log: GuestLog, level: Level, outside: &Outside) -> Self {
        let (run, clock) = (Arc::clone(&outside.run), Arc::clone(&outside.clock));
        Self(Arc::new(Mutex::new(Lines { log, level, run, clock, partial: Vec::new() })))
    }

    /// Appends `bytes`.
    pub(in crate::abi) fn append(&self, bytes: &[u8]) {
        self.lines().write(bytes);
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    /// Writes the lines of one call, until the log is full or the run must end: there may be millions of
    /// lines.
    fn write(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.log.is_full() || self.run.due(self.clock.now()).is_some() {
                return;
            }
            let room = KEPT_BYTES.saturating_sub(self.partial.len());
            self.partial.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.partial);
        let text = String::from_utf8_lossy(&line).into_owned();
        if line.len() < KEPT_BYTES {
            self.log.write(self.level, text);
        } else {
            self.log.write_start(self.level, text);
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if !self.partial.is_empty() {
            self.end_line();
        }
    }
}

impl IsTerminal for LogStream {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for LogStream {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for LogStream {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.lines().write(&bytes);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        /// How much one write may have: the largest buffers of guests.
        const WRITE_BYTES: usize = 64 * 1024;
        Ok(WRITE_BYTES)
    }
}

impl Pollable for LogStream {
    fn ready<'a, 'b>(&'a mut self) -> Pin<Box<dyn Future<Output = ()> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(std::future::ready(()))
    }
}

impl AsyncWrite for LogStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.lines().write(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
