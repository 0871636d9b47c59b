//! Writes a request to a helper and reads its response at the same time, on one thread and within a
//! deadline, so that a helper that never reads, floods its output or never ends is killed on time.

use std::fs::File;
use std::io::{self, Read, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandglass_model::{Clock, Monotonic};

use super::ending::Ending;
use crate::compiled_folder::file_in_memory;
use crate::compiling::message::{
    Body, REJECTION_MAX_BYTES, RESPONSE_HEAD_BYTES, read_response_head,
};

/// Longest time from the host's shutdown to the kill of a helper.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How much is read at once, in bytes: the default size of a pipe.
const PIECE_BYTES: usize = 64 << 10;

/// How much of the standard error is kept, from its end, in bytes: there, a program states why it
/// aborts.
const ERROR_KEPT_BYTES: usize = 4 << 10;

/// How much of it is read before the helper is killed, in bytes. A compiler writes a few lines.
const ERROR_MAX_BYTES: usize = 1 << 20;

pub(super) struct Exchange<'a> {
    /// What is written, in order.
    pub(super) request: &'a [&'a [u8]],
    /// The most code that is read, in bytes.
    pub(super) most_code_bytes: u64,
    pub(super) deadline: Monotonic,
    pub(super) clock: &'a dyn Clock,
    pub(super) closed: &'a AtomicBool,
}

impl Exchange<'_> {
    /// Ends when there is a response, the helper has closed its output, or a limit is exceeded. The
    /// helper may still be running then.
    ///
    /// # Errors
    /// A system call fails that should not.
    pub(super) fn run(&self, child: &mut Child) -> io::Result<Ending> {
        let (Some(input), Some(output), Some(error)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("it has no standard input and output"));
        };
        for fd in [input.as_fd(), output.as_fd(), error.as_fd()] {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let mut writing = Writing { input: Some(input), parts: self.request, written: 0 };
        let mut reading = Reading {
            output,
            most_code_bytes: self.most_code_bytes,
            head: Vec::new(),
            body: file_in_memory()?,
        };
        let mut errors = Errors { from: Some(error), kept: Vec::new(), read_bytes: 0 };
        loop {
            if self.closed.load(Ordering::Acquire) {
                return Ok(Ending::Closed);
            }
            let remaining = self.deadline.since(self.clock.now());
            if remaining.is_zero() {
                return Ok(Ending::TimedOut);
            }
            self.wait(&writing, &reading, &errors, remaining.min(POLL_INTERVAL))?;
            writing.write();
            if errors.read()? {
                return Ok(Ending::Nonsense);
            }
            let Some(response) = reading.read()? else { continue };
            return Ok(match response {
                Response::Complete(body) => {
                    reading.body.rewind()?;
                    Ending::Responded(body, reading.body)
                }
                Response::TooLarge(bytes) => Ending::TooMuchCode(bytes),
                Response::Nonsense => Ending::Nonsense,
                Response::Cut => {
                    errors.read()?;
                    // It has ended, or it has only closed its output. If it has ended, the kill does
                    // not change its status.
                    child.kill()?;
                    let error = String::from_utf8_lossy(&errors.kept).into_owned();
                    Ending::Ended(child.wait()?, error)
                }
            });
        }
    }

    /// Waits until one of the pipes is ready, at most for `most`.
    fn wait(
        &self,
        writing: &Writing<'_>,
        reading: &Reading,
        errors: &Errors,
        most: Duration,
    ) -> io::Result<()> {
        let mut pipes: Vec<PollFd<'_>> = Vec::with_capacity(3);
        pipes.extend(writing.input.as_ref().map(|input| PollFd::new(input, PollFlags::OUT)));
        pipes.push(PollFd::new(&reading.output, PollFlags::IN));
        pipes.extend(errors.from.as_ref().map(|from| PollFd::new(from, PollFlags::IN)));
        let most = Timespec::try_from(most).map_err(io::Error::other)?;
        match poll(&mut pipes, Some(&most)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The request, as far as it is written.
struct Writing<'a> {
    /// Closed when everything is written, or the helper reads no more.
    input: Option<ChildStdin>,
    parts: &'a [&'a [u8]],
    /// Bytes of the first of `parts` that are written.
    written: usize,
}

impl Writing<'_> {
    /// Writes as much as the pipe takes.
    fn write(&mut self) {
        while let Some(input) = &mut self.input {
            let Some((part, rest)) = self.parts.split_first() else {
                self.input = None;
                return;
            };
            match part.get(self.written..) {
                None | Some([]) => {
                    self.parts = rest;
                    self.written = 0;
                }
                Some(part) => match input.write(part) {
                    Ok(written) => self.written = self.written.saturating_add(written),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // It reads no more; its output states why.
                    Err(_) => self.input = None,
                },
            }
        }
    }
}

/// What a pipe has at the moment.
enum Piece {
    Bytes(usize),
    NothingYet,
    End,
}

fn read_piece(from: &mut impl Read, into: &mut [u8]) -> io::Result<Piece> {
    loop {
        return match from.read(into) {
            Ok(0) => Ok(Piece::End),
            Ok(bytes) => Ok(Piece::Bytes(bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Piece::NothingYet),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

/// The response, as far as it is read.
struct Reading {
    output: ChildStdout,
    most_code_bytes: u64,
    head: Vec<u8>,
    body: File,
}

/// How a response ends.
enum Response {
    /// Its body is in the file.
    Complete(Body),
    /// Its body would have this many bytes.
    TooLarge(u64),
    Nonsense,
    /// The pipe was closed before it was complete.
    Cut,
}

impl Reading {
    /// Reads what the pipe has. Returns how the response ends, if it does.
    fn read(&mut self) -> io::Result<Option<Response>> {
        let mut piece = [0; PIECE_BYTES];
        loop {
            let bytes = match read_piece(&mut self.output, &mut piece)? {
                Piece::Bytes(bytes) => bytes,
                Piece::NothingYet => return Ok(None),
                Piece::End => return Ok(Some(Response::Cut)),
            };
            let piece = piece.get(..bytes).unwrap_or_default();
            let missing = RESPONSE_HEAD_BYTES - self.head.len();
            let (head, body) = piece.split_at(missing.min(piece.len()));
            self.head.extend_from_slice(head);
            let Some(head) = self.head.first_chunk() else { continue };
            let Some((kind, length)) = read_response_head(head) else {
                return Ok(Some(Response::Nonsense));
            };
            match kind {
                Body::Code if length > self.most_code_bytes => {
                    return Ok(Some(Response::TooLarge(length)));
                }
                Body::Rejection if length > REJECTION_MAX_BYTES as u64 => {
                    return Ok(Some(Response::Nonsense));
                }
                _ => {}
            }
            self.body.write_all(body)?;
            if self.body.stream_position()? >= length {
                // What may follow has no meaning.
                self.body.set_len(length)?;
                return Ok(Some(Response::Complete(kind)));
            }
        }
    }
}

/// The standard error. Only its end is kept.
struct Errors {
    /// Closed when the helper has closed it.
    from: Option<ChildStderr>,
    kept: Vec<u8>,
    read_bytes: usize,
}

impl Errors {
    /// Reads what the pipe has. Returns whether it is more than any compiler writes.
    fn read(&mut self) -> io::Result<bool> {
        let mut piece = [0; ERROR_KEPT_BYTES];
        while let Some(from) = &mut self.from {
            match read_piece(from, &mut piece)? {
                Piece::Bytes(bytes) => {
                    self.read_bytes = self.read_bytes.saturating_add(bytes);
                    self.kept.extend_from_slice(piece.get(..bytes).unwrap_or_default());
                    let excess = self.kept.len().saturating_sub(ERROR_KEPT_BYTES);
                    self.kept.drain(..excess);
                    if self.read_bytes > ERROR_MAX_BYTES {
                        return Ok(true);
                    }
                }
                Piece::NothingYet => return Ok(false),
                Piece::End => self.from = None,
            }
        }
        Ok(false)
    }
}
