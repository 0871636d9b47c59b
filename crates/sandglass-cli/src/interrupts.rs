//! Ctrl-C and its like, heard from the moment that somebody listens.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, or the wish of an operating system or container to end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Listens from its making on, so that no Ctrl-C falls between two waits.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("can't listen for Ctrl-C");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Nothing is lost where the future is dropped.
    pub(crate) async fn next(&mut self) -> Interrupted {
        tokio::select! {
            _ = self.interrupt.recv() => Interrupted,
            _ = self.terminate.recv() => Interrupted,
        }
    }
}
