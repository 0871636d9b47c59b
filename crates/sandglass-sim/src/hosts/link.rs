//! The connection of one process to the database: statements take time, get lost, or are executed when
//! nobody waits for them any more.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::Error;
use tokio::sync::oneshot;

use super::database::Database;
use super::process::Host;
use super::sim::Sim;
use super::timeline::{MS, SECOND};

/// How long a process waits for a statement.
pub(crate) const STATEMENT_LIMIT: Duration = Duration::from_secs(2);

/// Why there is no result of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It was not executed, and never will be.
    Refused,
    /// It may have been executed, or may be later.
    Unknown,
}

impl Fate {
    pub(crate) fn error(self) -> Error {
        let what = match self {
            Self::Refused => "the database does not respond",
            Self::Unknown => "the connection to the database was lost",
        };
        Error::Unavailable { what: what.to_owned() }
    }
}

/// How a statement fares.
struct Journey {
    to: u64,
    back: u64,
    arrives: bool,
    returns: bool,
}

impl Host {
    /// Has the database execute `work`.
    ///
    /// # Errors
    /// There is no result within `limit`.
    pub(crate) async fn statement<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        work: impl FnOnce(&Arc<Sim>, &mut Database) -> T + Send + 'static,
    ) -> Result<T, Fate> {
        let (sim, life) = (&self.sim, self.life);
        if sim.database().down_until > sim.now() && !self.is_cut() {
            // Its machine refuses the connection.
            self.pause(MS).await;
            return Err(Fate::Refused);
        }
        let Journey { to, back, arrives, returns } = self.journey();
        let (reply, result) = oneshot::channel();
        let timeline = sim.database().timeline;
        if arrives {
            sim.after(to, None, move |sim| {
                let is_away = {
                    let database = sim.database();
                    database.down_until > sim.now() || database.timeline != timeline
                };
                let result = if is_away {
                    Err(Fate::Unknown)
                } else {
                    let mut database = sim.database();
                    Ok(work(sim, &mut database))
                };
                let is_cut = sim.slots()[life.slot].cut_until > sim.now();
                if returns && !is_cut {
                    sim.after(back, Some(life), move |_| drop(reply.send(result)));
                }
            });
        }
        let result = async {
            match result.await {
                Ok(result) => result,
                // The process learns that from the silence.
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            result = result => result,
            () = self.pause_for(limit) => Err(Fate::Unknown),
        }
    }

    fn journey(&self) -> Journey {
        let (sim, dice) = (&self.sim, &self.sim.delays);
        let now = sim.now();
        let (cut_until, is_slow) = {
            let slots = sim.slots();
            let slot = &slots[self.life.slot];
            (slot.cut_until, slot.slow_until > now)
        };
        let delay = || match is_slow {
            true => dice.within(1..=700) * MS,
            false => dice.within(100..=1_500) * MS / 1_000,
        };
        let (mut to, back) = (delay(), delay());
        let (mut arrives, mut returns) = (true, true);
        if cut_until > now {
            // It arrives when its packets are sent again, or never.
            arrives = dice.per_mille(300);
            returns = false;
            to += cut_until - now + dice.within(0..=1_000) * MS;
        }
        if !sim.is_calm() {
            returns &= !dice.per_mille(sim.plan.lost_responses);
            if dice.per_mille(sim.plan.late_statements) {
                to += dice.within(0..=8 * SECOND / MS) * MS;
            }
        }
        Journey { to, back, arrives, returns }
    }

    /// Whether the process does not reach the database.
    fn is_cut(&self) -> bool {
        let now = self.sim.now();
        self.sim.slots()[self.life.slot].cut_until > now
    }
}
