//! `sandglass journal prune`: removes entities that have ended from a journal.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use sandglass_journal::{
    Entry, Journal, PAGE_MAX_ENTRIES, PRUNE_MAX_ENTITIES, Place, SqliteJournal, SqliteReader,
};
use sandglass_liveness::Retention;
use sandglass_liveness::retention::{Ended, Survey};
use sandglass_model::{Clock, SystemClock};
use sandglass_source::{duration, printable};
use serde_json::json;

use super::Wish;
use crate::exit::Exit;
use crate::terminal::Output;
use crate::{journal_file, threads};

/// Most records that are removed in one transaction, but for one entity that has more.
const PIECE_RECORDS: u64 = 1_000;
/// The longest age that can be named: nobody's journal is older.
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Removes entities that have ended, with all of their records
///
/// Only whole entities go whose state is terminal, with no handler in flight; all others
/// stay as they are. Positions stay, too: what was removed is told as such from then on.
/// Refused while another process writes the journal. It can't be undone: make a backup.
///
/// Exit code: 0 done, 2 no journal that can be used, or it is in use, 130 interrupted, and
/// what was removed before is gone.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sandglass journal prune runs.db --older-than 30d --dry-run\n  \
    sandglass journal prune runs.db --keep 10000"
)]
#[command(group = clap::ArgGroup::new("retention").required(true).args(["older_than", "keep"]))]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// Those whose last record is older than this
    #[arg(long, value_name = "TIME", value_parser = age)]
    older_than: Option<Duration>,
    /// All but so many, the newest
    #[arg(long, value_name = "N")]
    keep: Option<u64>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn age(text: &str) -> Result<Duration, String> {
    duration::within(text, &(Duration::ZERO..=AGE_MAX))
}

impl Arguments {
    fn retention(&self) -> Retention {
        match (self.older_than, self.keep) {
            (Some(age), _) => Retention::OlderThan(age),
            (None, keep) => Retention::Keep(keep.unwrap_or(u64::MAX)),
        }
    }
}

pub(super) fn execute(arguments: &Arguments, wish: &Wish) -> anyhow::Result<Exit> {
    let now = SystemClock::new().wall();
    if arguments.dry_run {
        let mut reader = SqliteJournal::open_read_only(&arguments.journal)?;
        let going = arguments.retention().beyond(ended(&mut reader)?, now);
        return tell(arguments, &going, Exit::Ok);
    }
    // None is made where there is none.
    drop(SqliteJournal::open_read_only(&arguments.journal)?);
    // Before the look, so that nobody writes in between.
    let journal = journal_file::open(&arguments.journal)?;
    let mut reader = SqliteJournal::open_read_only(&arguments.journal)?;
    let mut going = arguments.retention().beyond(ended(&mut reader)?, now);
    drop(reader);
    let threads = threads::start(Some(1))?;
    let (gone, exit) = threads.block_on(async {
        let removed = remove(&journal, &going, wish).await;
        journal.close().await;
        removed
    })?;
    going.truncate(gone);
    tell(arguments, &going, exit)
}

/// The entities of a journal that have ended.
fn ended(journal: &mut SqliteReader) -> anyhow::Result<Vec<Ended>> {
    let mut survey = Survey::default();
    let mut after: Option<Place> = None;
    loop {
        let page = journal.read_by_entity(after.as_ref(), PAGE_MAX_ENTRIES)?;
        for record in page.entries.into_iter().map(Entry::into_record) {
            let record = record?;
            let fitted = survey.feed(&record);
            fitted.with_context(|| format!("position {} doesn't fit", record.position))?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(survey.finish());
        }
    }
}

/// Removes them piece by piece; how many, and whether somebody wished it to end.
async fn remove(
    journal: &SqliteJournal,
    going: &[Ended],
    wish: &Wish,
) -> anyhow::Result<(usize, Exit)> {
    let mut gone = 0;
    while gone < going.len() {
        if wish.go_on().is_break() {
            return Ok((gone, Exit::Cancelled));
        }
        let (mut piece, mut records) = (Vec::new(), 0);
        for one in going[gone..].iter().take(PRUNE_MAX_ENTITIES) {
            records += one.records;
            if !piece.is_empty() && records > PIECE_RECORDS {
                break;
            }
            piece.push((one.entity.clone(), one.last));
        }
        gone += piece.len();
        journal.prune(piece).await?;
    }
    Ok((gone, Exit::Ok))
}

fn tell(arguments: &Arguments, gone: &[Ended], exit: Exit) -> anyhow::Result<Exit> {
    let records: u64 = gone.iter().map(|one| one.records).sum();
    let mut output = Output::new();
    if arguments.json {
        let named: Vec<_> = gone.iter().map(|one| &one.entity).collect();
        output.json(&json!({
            "journal": arguments.journal,
            "dry_run": arguments.dry_run,
            "entities": gone.len(),
            "records": records,
            "removed": named,
        }))?;
        return Ok(exit);
    }
    let what = if arguments.dry_run { "would remove" } else { "removed" };
    let told = format!("{what} {} entities with {records} records", gone.len());
    output.line(printable(&told))?;
    Ok(exit)
}
