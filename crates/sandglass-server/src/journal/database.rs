//! The journal in a PostgreSQL database: how it is opened, and the work that it needs while the server
//! runs.

use std::future::pending;
use std::time::Duration;

use sandglass_cluster::Peers;
use sandglass_journal::Error as JournalError;
use sandglass_postgres::{Address, Counts, Database, Settings};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::Health as MetricsHealth;

use super::Opened;
use crate::Report;
use crate::base::{Base, every};
use crate::cluster::require_accepted;
use crate::config::ClusterConfig;
use crate::error::{Error, Result};

/// How often it is checked that the database responds, and that no other process has taken the journal.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Every how many beats a search for recordings begins that no record names; it goes on with each beat.
const SWEEP_EVERY: u64 = 300;

/// Opens the database: as a member of `cluster`, or, without one, alone, which takes the journal from a
/// process that has it. The latter fails while members beat.
pub(super) async fn open(
    address: &Address,
    cluster: Option<(&ClusterConfig, &Peers)>,
    base: &Base,
    report: &Report,
) -> Result<Opened> {
    let begun = base.clock.now();
    let database = match cluster {
        None => Database::open(address, Settings::default()).await?,
        Some((config, peers)) => {
            let settings = Settings::default().ttl(config.ttl);
            // Before others see this process, because they would leave partitions to it.
            let reading = Database::open_read_only(address, settings).await?;
            let accepted = require_accepted(config, peers, &reading).await;
            reading.close().await;
            accepted?;
            Database::join(address, settings, &config.advertise).await?
        }
    };
    let took = base.clock.now().since(begun);
    tracing::info!(database = address.place(), ?took, "opened the journal's database");
    report(&format!("the journal is in {}", address.place()));
    Ok(Opened { journals: database.journals(), database: Some(database) })
}

/// Works until another process has taken the journal, and returns what to tell the operator. A member of
/// a cluster works forever.
pub(crate) async fn keep(database: &Database, is_member: bool, metrics: &Metrics) -> Error {
    let beat = async {
        // A member's cluster beats itself, and takes and gives partitions.
        if is_member { pending().await } else { beat(database, metrics).await }
    };
    tokio::select! {
        error = beat => error,
        error = keep_counting(database, metrics) => error,
        // Beside the beats, because it waits for a connection for reading.
        error = keep_sweeping(database) => error,
    }
}

/// Beats until another process has taken the journal, and returns what to tell the operator.
async fn beat(database: &Database, metrics: &Metrics) -> Error {
    let mut ticks = every(BEAT_EVERY);
    let mut was_reached = true;
    loop {
        ticks.tick().await;
        let beaten = database.beat().await;
        if let Ok(taken) = &beaten
            && !taken.is_empty()
        {
            return Error::Taken(format!(
                "another process has taken {} of the journal's partitions in {}: this process stops, \
                 because nothing more can be recorded",
                taken.len(),
                database.place()
            ));
        }
        if beaten.is_ok() != was_reached {
            was_reached = beaten.is_ok();
            note_reached(beaten.err().as_ref(), metrics);
        }
    }
}

/// Reports what the database counts; never returns.
async fn keep_counting(database: &Database, metrics: &Metrics) -> Error {
    let (mut ticks, mut before) = (every(BEAT_EVERY), Counts::default());
    loop {
        ticks.tick().await;
        let now = database.counts();
        note_counts(before, now, metrics);
        before = now;
    }
}

/// Removes recordings that no record names, from time to time; never returns.
async fn keep_sweeping(database: &Database) -> Error {
    let mut ticks = every(BEAT_EVERY);
    let mut is_sweeping = false;
    for turn in 1_u64.. {
        ticks.tick().await;
        is_sweeping |= turn.is_multiple_of(SWEEP_EVERY);
        if is_sweeping {
            is_sweeping = sweep(database).await;
        }
    }
    pending().await
}

/// Removes some recordings that no record names, and returns whether there may be more.
async fn sweep(database: &Database) -> bool {
    if let Err(error) = database.sweep().await {
        tracing::warn!(%error, "recordings that no record names could not be removed");
        return false;
    }
    !database.has_swept().await
}

/// How long handlers may take to end when the server stops: no time if another process has taken the
/// journal, because nothing that they do can be recorded, and that process may have started them anew.
pub(crate) fn grace(database: Option<&Database>, grace: Duration) -> Duration {
    if database.is_some_and(Database::is_taken) { Duration::ZERO } else { grace }
}

/// Reports that the database does not respond, or does again.
fn note_reached(error: Option<&JournalError>, metrics: &Metrics) {
    if let Some(error) = error {
        metrics.journal_health(MetricsHealth::Unhealthy);
        tracing::error!(%error, "the journal's database does not respond");
    } else {
        metrics.journal_health(MetricsHealth::Healthy);
        tracing::info!("the journal's database responds again");
    }
}

/// Reports what has happened between two counts.
fn note_counts(before: Counts, now: Counts, metrics: &Metrics) {
    let unknown = now.unknown_commits.saturating_sub(before.unknown_commits);
    if unknown > 0 {
        metrics.journal_commits_unknown(unknown);
        tracing::warn!(
            unknown,
            "connections were lost during appends; their outcomes were looked up before anything \
             was reported"
        );
    }
    let lost = now.lost_records.saturating_sub(before.lost_records);
    if lost > 0 {
        metrics.journal_records_lost(lost);
        tracing::error!(
            lost,
            "the database has lost records that it had acknowledged, probably in a failover to an \
             asynchronous standby; nothing is written over the gap: see JournalRecordsLost in \
             docs/operating.md"
        );
    }
}
