//! Waiting in real time: for a scenario's clock, or for Ctrl-C.

use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior};

/// Waits in real time.
pub(super) async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "a scenario is played in real time")]
    let wait = tokio::time::sleep(time);
    wait.await;
}

/// Ticks in real time, the first time at once; a tick that is late puts off the next.
pub(super) fn every(time: Duration) -> Interval {
    #[expect(clippy::disallowed_methods, reason = "upkeep of what is in real memory")]
    let mut ticks = tokio::time::interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Ctrl-C, or the wish of an operating system or container to end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub(crate) struct Interrupted;

/// Listens from its making on, so that no Ctrl-C falls between two waits.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("can't listen for Ctrl-C");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Nothing is lost where the future is dropped.
    pub(super) async fn next(&mut self) -> Interrupted {
        tokio::select! {
            _ = self.interrupt.recv() => Interrupted,
            _ = self.terminate.recv() => Interrupted,
        }
    }
}
