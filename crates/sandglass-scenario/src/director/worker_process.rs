//! The worker as a child process: it is started, killed by its own id, and always reaped.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{self, Child, ChildStdin, ChildStdout};

use crate::error::{Error, Result};
use crate::protocol::{Command, Request, Start, WorkerMessage};
use crate::wait::pause;

/// The argument with which this program is started again as a worker. The program then has to call
/// [`worker::execute`](crate::worker::execute).
pub const WORKER_COMMAND: &str = "play-worker";

/// A worker that runs. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Lines<BufReader<ChildStdout>>,
    next_id: u64,
}

impl Worker {
    pub(super) async fn start(start: &Start) -> Result<Self> {
        let binary = std::env::current_exe()
            .map_err(Error::system("cannot find the file of this program"))?;
        let mut child = process::Command::new(binary)
            .arg(WORKER_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C goes to the director alone, which then stops the worker in order.
            .process_group(0)
            .spawn()
            .map_err(Error::system("cannot start the worker process"))?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::Failed(
                "the worker process has no standard input or output".to_owned(),
            ));
        };
        let replies = BufReader::new(replies).lines();
        let mut worker = Self { child, requests: Some(requests), replies, next_id: 0 };
        worker.write(start).await?;
        Ok(worker)
    }

    /// Sends a command, and returns the number that the reply will carry.
    pub(super) async fn send(&mut self, command: Command) -> Result<u64> {
        self.next_id += 1;
        let request = Request { id: self.next_id, command };
        self.write(&request).await?;
        Ok(request.id)
    }

    async fn write(&mut self, message: &impl Serialize) -> Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let requests = self.requests.as_mut().ok_or(Error::Stopped)?;
        let written = requests.write_all(&line).await;
        written.map_err(Error::system("the worker process has ended"))
    }

    /// The next message; `None` if the worker has ended. Nothing is lost if the future is dropped.
    pub(super) async fn next_message(&mut self) -> Result<Option<WorkerMessage>> {
        let line = self
            .replies
            .next_line()
            .await
            .map_err(Error::system("cannot read from the worker process"))?;
        let Some(line) = line else { return Ok(None) };
        serde_json::from_str(&line)
            .map(Some)
            .map_err(|why| Error::failed("the worker process sent an invalid message", &why))
    }

    /// Kills the worker, as a crash would, and waits until it is gone.
    pub(super) async fn kill(mut self) -> Result<()> {
        self.child.kill().await.map_err(Error::system("cannot kill the worker process"))
    }

    /// Closes the worker's standard input, and waits until it has ended by itself.
    pub(super) async fn wait_for_end(&mut self) -> Result<ExitStatus> {
        drop(self.requests.take());
        self.child.wait().await.map_err(Error::system("cannot wait for the worker process"))
    }

    /// Closes the worker's standard input, which ends it in order; kills it if that takes longer
    /// than `max`.
    pub(super) async fn end_within(mut self, max: Duration) -> Result<()> {
        let in_time = tokio::select! {
            ended = self.wait_for_end() => Some(ended),
            () = pause(max) => None,
        };
        match in_time {
            Some(ended) => ended.map(drop),
            None => self.kill().await,
        }
    }
}
