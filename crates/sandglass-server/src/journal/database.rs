//! The journal in a PostgreSQL database: how it is opened, and the work that it needs while the server
//! runs.

use std::time::Duration;

use sandglass_journal::Health;
use sandglass_postgres::{Address, Counts, Database, Settings};

use super::Opened;
use crate::Report;
use crate::base::{Base, every};
use crate::error::{Error, Result};

/// How often it is noticed that another process has taken the journal, which can append nothing more
/// from then on.
const WATCH_EVERY: Duration = Duration::from_millis(500);
/// Every how many of these times recordings are removed that no record names.
const SWEEP_EVERY: u32 = 600;

/// Opens the database, and takes the journal from a process that has it.
pub(super) async fn open(address: &Address, base: &Base, report: &Report) -> Result<Opened> {
    let begun = base.clock.now();
    let database = Database::open(address, Settings::default()).await?;
    let took = base.clock.now().since(begun);
    tracing::info!(database = address.place(), ?took, "opened the journal's database");
    report(&format!(
        "the journal is in {}; a process that had it can record nothing more",
        address.place()
    ));
    Ok(Opened { journals: database.journals(), database: Some(database) })
}

/// Works until another process has taken the journal, and returns what to tell the operator.
pub(crate) async fn keep(database: &Database) -> Error {
    let journals = database.journals();
    let (mut ticks, mut before, mut turn) = (every(WATCH_EVERY), Counts::default(), 0_u32);
    loop {
        ticks.tick().await;
        if let Health::Disowned { what } = journals.health() {
            return Error::Unusable(format!(
                "another process has taken the journal, so this one stops: {what}"
            ));
        }
        before = note(before, database.counts());
        turn = turn.wrapping_add(1);
        if turn % SWEEP_EVERY == 0
            && let Err(error) = database.sweep().await
        {
            tracing::warn!(%error, "recordings that no record names could not be removed");
        }
    }
}

/// Logs what has happened since `before`.
fn note(before: Counts, now: Counts) -> Counts {
    let unknown = now.unknown_commits.saturating_sub(before.unknown_commits);
    if unknown > 0 {
        tracing::warn!(
            unknown,
            "connections were lost during appends; their outcomes were looked up before anything \
             was reported"
        );
    }
    let lost = now.lost_records.saturating_sub(before.lost_records);
    if lost > 0 {
        tracing::error!(
            lost,
            "the database has lost records that were acknowledged, probably in a failover to an \
             asynchronous standby; nothing is written over the gap: see docs/postgres.md"
        );
    }
    now
}
