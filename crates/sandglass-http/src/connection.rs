//! A connection with a write timeout: if the client reads nothing for too long, the connection is
//! closed, so that it cannot hold its slot forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use crate::slots::{Busy, ConnectionSlot};
use crate::timer::pause;

/// What a connection over HTTP/2 without TLS begins with (RFC 9113, 3.4), as far as no request over
/// HTTP/1.1 begins with it.
const HTTP2_PREFACE: &[u8] = b"PRI ";

#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    /// What was read ahead.
    ahead: Bytes,
    slot: ConnectionSlot,
    is_silent: bool,
    write_timeout: Duration,
    /// The write timeout, while the client reads nothing. An authenticated connection is not idle
    /// meanwhile; for others the time for a head continues.
    stuck: Option<(Pin<Box<Sleep>>, Option<Busy>)>,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, slot: ConnectionSlot, write_timeout: Duration) -> Self {
        Self { stream, ahead: Bytes::new(), slot, is_silent: true, write_timeout, stuck: None }
    }

    /// Waits for the first byte of the client and returns it unread; `None` if the client has closed
    /// its side.
    pub(crate) async fn peek(&self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let length = self.stream.peek(&mut first).await?;
        Ok((length > 0).then_some(first[0]))
    }

    /// Whether the client begins with HTTP/2, without negotiating it in a TLS handshake. Waits for the
    /// first bytes, which stay to be read.
    pub(crate) async fn begins_with_http2(&mut self) -> io::Result<bool> {
        let (mut first, mut length) = ([0; HTTP2_PREFACE.len()], 0);
        while HTTP2_PREFACE.starts_with(&first[..length]) && length < first.len() {
            match self.read(&mut first[length..]).await? {
                0 => break,
                read => length += read,
            }
        }
        self.ahead = Bytes::copy_from_slice(&first[..length]);
        Ok(first == *HTTP2_PREFACE)
    }

    /// Returns the result of a write, or an error if the client has read nothing for too long.
    fn limit_write<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stuck = None;
            return written;
        }
        let Self { slot, write_timeout, stuck, .. } = self;
        let (stuck, _) = stuck.get_or_insert_with(|| {
            (Box::pin(pause(*write_timeout)), slot.is_authenticated().then(|| slot.busy()))
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
        if !self.ahead.is_empty() {
            let length = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead.split_to(length));
            return Poll::Ready(Ok(()));
        }
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
        self.limit_write(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.limit_write(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.limit_write(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
