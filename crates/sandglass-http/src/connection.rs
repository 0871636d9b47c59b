//! A connection whose client has to take what it is sent: one that takes nothing for a
//! time is let go, so that it holds no place for ever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::slots::{Busy, ConnectionSlot};
use crate::timer::pause;

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    slot: ConnectionSlot,
    is_silent: bool,
    patience: Duration,
    /// Runs while the client takes nothing. The connection is not idle then if it is
    /// authenticated; otherwise, its time for a head goes on.
    stuck: Option<(Pin<Box<Sleep>>, Option<Busy>)>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, slot: ConnectionSlot, patience: Duration) -> Self {
        Self { stream, slot, is_silent: true, patience, stuck: None }
    }

    /// Waits for the first byte of the client and returns it, still unread; none if the client has
    /// closed its side.
    pub(crate) async fn peek(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let length = self.stream.peek(&mut first).await?;
        Ok((length > 0).then_some(first[0]))
    }

    /// What came of a write, or that the client has taken nothing for too long.
    fn patient<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let Self { slot, patience, stuck, .. } = self;
        let (stuck, _) = stuck.get_or_insert_with(|| {
            (Box::pin(pause(*patience)), slot.is_authenticated().then(|| slot.busy()))
        });
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.is_silent && read.is_ready() {
            self.is_silent = false;
            self.slot.note_received();
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.patient(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.patient(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.patient(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
