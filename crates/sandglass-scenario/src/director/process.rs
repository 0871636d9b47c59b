//! The worker as a child process: started, talked to, killed by its own id, and
//! always reaped.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::protocol::{Ask, Request, Said, Start};
use crate::wait::pause;

/// The hidden subcommand that a worker is started with.
pub const WORKER_COMMAND: &str = "play-worker";

/// A worker that runs. Dropped, it is killed.
#[derive(Debug)]
pub(super) struct Worker {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Lines<BufReader<ChildStdout>>,
    next_id: u64,
}

impl Worker {
    /// Starts a worker and tells it what to start with.
    pub(super) async fn start(start: &Start) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("can't find this program's own file")?;
        let mut child = Command::new(binary)
            .arg(WORKER_COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // Ctrl-C is for the director, which then ends the worker orderly.
            .process_group(0)
            .spawn()
            .context("can't start the process that runs the runtime")?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("the process that runs the runtime has no standard input or output");
        };
        let replies = BufReader::new(replies).lines();
        let mut worker = Self { child, requests: Some(requests), replies, next_id: 0 };
        worker.write(start).await?;
        Ok(worker)
    }

    /// Asks for something; the reply carries the number that this gives.
    pub(super) async fn ask(&mut self, ask: Ask) -> anyhow::Result<u64> {
        self.next_id += 1;
        let request = Request { id: self.next_id, ask };
        self.write(&request).await?;
        Ok(request.id)
    }

    async fn write(&mut self, message: &impl Serialize) -> anyhow::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        let Some(requests) = &mut self.requests else { bail!("the runtime is stopped") };
        let written = requests.write_all(&line).await;
        written.context("the process that runs the runtime has gone away")
    }

    /// The next reply; none where the worker has ended. Nothing is lost where the
    /// future is dropped.
    pub(super) async fn reply(&mut self) -> anyhow::Result<Option<Said>> {
        let line = self.replies.next_line().await.context("can't read from the runtime")?;
        let Some(line) = line else { return Ok(None) };
        let reply = serde_json::from_str(&line);
        reply.map(Some).context("the process that runs the runtime says what nobody understands")
    }

    /// Kills it as a crash would, and waits until it is gone.
    pub(super) async fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("can't kill the process that runs the runtime")
    }

    /// Waits until it has ended by itself; its standard input closes.
    pub(super) async fn ended(&mut self) -> anyhow::Result<ExitStatus> {
        drop(self.requests.take());
        self.child.wait().await.context("can't wait for the process that runs the runtime")
    }

    /// Closes its standard input, which ends it orderly, and kills it where that
    /// takes longer than `max`.
    pub(super) async fn end_within(mut self, max: Duration) -> anyhow::Result<()> {
        let in_time = tokio::select! {
            ended = self.ended() => Some(ended),
            () = pause(max) => None,
        };
        match in_time {
            Some(ended) => ended.map(drop),
            None => self.kill().await,
        }
    }
}
