//! A reader of a run's events: its connection, chunks and frames (RFC 9112, 7.1; WHATWG HTML,
//! 9.2.6).

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use super::client::head_end;
use super::server::KEY;
use crate::Failure;

/// Largest piece that is received at once, in bytes.
const PIECE_BYTES: usize = 2 << 10;

#[derive(Debug)]
pub(super) struct Events {
    stream: TcpStream,
    received: Vec<u8>,
    /// The decoded contents of the chunks, from the first incomplete frame on.
    text: Vec<u8>,
    is_over: bool,
}

/// One frame of a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Event { id: u64, kind: &'a str, data: &'a str },
    Comment(&'a str),
}

impl Events {
    /// Reads the events of `run` that follow number `last`, or all of them. A small `window`
    /// imitates a client that receives little at once.
    pub(super) async fn open(
        address: SocketAddr,
        run: &str,
        last: Option<u64>,
        window: Option<u32>,
    ) -> Result<Self, Failure> {
        let socket = TcpSocket::new_v4()?;
        if let Some(bytes) = window {
            socket.set_recv_buffer_size(bytes)?;
        }
        let mut stream = socket.connect(address).await?;
        let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
        let request = format!(
            "GET /v1/runs/{run}/events?streamMode=debug HTTP/1.1\r\nhost: localhost\r\n\
             authorization: Bearer {KEY}\r\naccept: text/event-stream\r\n{last}\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        Ok(Self { stream, received: Vec::new(), text: Vec::new(), is_over: false })
    }

    /// Waits for the head of the response.
    pub(super) async fn read_head(mut self) -> Result<Self, Failure> {
        let end = loop {
            if let Some(end) = head_end(&self.received) {
                break end;
            }
            if self.receive(PIECE_BYTES).await? == 0 {
                return Err("no answer to a reader of events".into());
            }
        };
        if !self.received.starts_with(b"HTTP/1.1 200 ") {
            return Err(String::from_utf8_lossy(&self.received).into());
        }
        self.received.drain(..end);
        Ok(self)
    }

    /// Receives once, at most `most` bytes, and passes each complete frame to `take`. Returns
    /// whether there may be more.
    pub(super) async fn receive_frames(
        &mut self,
        most: usize,
        take: &mut impl FnMut(Frame<'_>),
    ) -> Result<bool, Failure> {
        // `read_head` may have received chunks together with the head.
        self.unchunk()?;
        self.hand_on(take)?;
        if self.is_over {
            return Ok(false);
        }
        if self.receive(most).await? == 0 {
            self.is_over = true;
        }
        self.unchunk()?;
        self.hand_on(take)?;
        Ok(!self.is_over)
    }

    async fn receive(&mut self, most: usize) -> Result<usize, Failure> {
        let mut piece = (&mut self.stream).take(most as u64);
        Ok(piece.read_buf(&mut self.received).await?)
    }

    /// Decodes the chunks that are complete.
    fn unchunk(&mut self) -> Result<(), Failure> {
        let mut at = 0;
        while let Some(line) = self.received[at..].windows(2).position(|two| two == b"\r\n") {
            let size = std::str::from_utf8(&self.received[at..at + line])?;
            let size = usize::from_str_radix(size, 16)?;
            let from = at + line + 2;
            if self.received.len() < from + size + 2 {
                break;
            }
            self.text.extend_from_slice(&self.received[from..from + size]);
            self.is_over |= size == 0;
            at = from + size + 2;
        }
        self.received.drain(..at);
        Ok(())
    }

    fn hand_on(&mut self, take: &mut impl FnMut(Frame<'_>)) -> Result<(), Failure> {
        let mut at = 0;
        while let Some(length) = self.text[at..].windows(2).position(|two| two == b"\n\n") {
            take(frame(std::str::from_utf8(&self.text[at..at + length])?)?);
            at += length + 2;
        }
        self.text.drain(..at);
        Ok(())
    }
}

fn frame(text: &str) -> Result<Frame<'_>, Failure> {
    if let Some(comment) = text.strip_prefix(':') {
        return Ok(Frame::Comment(comment.trim()));
    }
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.ok_or_else(|| format!("a frame without `{name}`: {text}"))
    };
    let id = field("id: ")?.parse()?;
    Ok(Frame::Event { id, kind: field("event: ")?, data: field("data: ")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_an_event_or_a_comment() {
        let event = frame("id: 7\nevent: run.started\ndata: {}").expect("a frame");
        assert_eq!(event, Frame::Event { id: 7, kind: "run.started", data: "{}" });
        assert_eq!(frame(": keep-alive").expect("a frame"), Frame::Comment("keep-alive"));
        frame("event: run.started\ndata: {}").expect_err("it has no id");
    }
}
