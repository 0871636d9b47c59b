//! `sandglass journal prune`: removes ended entities from a journal.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sandglass_journal::{Entry, Journal, Journals, PRUNE_MAX_ENTITIES, SqliteJournal};
use sandglass_liveness::Retention;
use sandglass_liveness::retention::{Ended, Survey};
use sandglass_model::{Clock, SystemClock};
use sandglass_source::duration;
use serde_json::json;

use super::{StopRequest, refuse_if_used, refuse_take_over_of_file};
use crate::exit::Exit;
use crate::journal_place::Place;
use crate::journal_reader::{JournalReader, format_position};
use crate::open_database::OpenDatabase;
use crate::terminal::{Output, count};
use crate::{journal_file, threads};

/// Most records that are removed in one transaction, unless one entity has more.
const PIECE_RECORDS: u64 = 1_000;
/// The highest age, above that of any journal.
const AGE_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Removes ended entities with all of their records
///
/// Removes only entities in a terminal state without a handler in flight. Positions of other
/// records do not change; removed ones are shown as removed on purpose. Refused while another
/// process writes the journal: a daemon prunes its journal itself (`retention`). Processes that use a
/// database are noticed because they report every second that they are alive. This cannot be undone:
/// make a backup first.
///
/// Exit code: 0 pruned, 2 the journal cannot be used, or is in use, 130 interrupted (what was
/// removed until then is gone).
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  sandglass journal prune runs.db --older-than 30d --dry-run\n  \
    sandglass journal prune runs.db --keep 10000\n  \
    sandglass journal prune postgresql://sandglass@db.example/runs --older-than 30d"
)]
#[command(group = clap::ArgGroup::new("retention").required(true).args(["older_than", "keep"]))]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "JOURNAL")]
    journal: Place,
    /// Remove entities whose last record is older than this
    #[arg(long, value_name = "TIME", value_parser = age)]
    older_than: Option<Duration>,
    /// Remove all but the N newest ended entities
    #[arg(long, value_name = "N")]
    keep: Option<u64>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Prune a database although a process uses it, which then stops; not while hosts of a cluster use it
    #[arg(long)]
    take_over: bool,
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

pub(super) fn execute(arguments: &Arguments, stop: &StopRequest) -> anyhow::Result<Exit> {
    refuse_take_over_of_file(&arguments.journal, arguments.take_over)?;
    let now = SystemClock::new().wall();
    if arguments.dry_run {
        let mut reader = JournalReader::open(&arguments.journal)?;
        let pruned = arguments.retention().beyond(read_ended(&mut reader)?, now);
        return print(arguments, &pruned, Exit::Ok);
    }
    let (mut pruned, (removed, exit)) = match (arguments.journal.address()?, &arguments.journal) {
        (None, Place::File(path)) => {
            // `open` would create a journal that does not exist.
            drop(SqliteJournal::open_read_only(path)?);
            // Opened for writing before it is read, so that no process writes in between.
            let journals = Journals::from(Arc::new(journal_file::open(path)?) as Arc<dyn Journal>);
            let mut reader = JournalReader::open(&arguments.journal)?;
            let pruned = arguments.retention().beyond(read_ended(&mut reader)?, now);
            drop(reader);
            let threads = threads::start(Some(1))?;
            let removed = threads.block_on(async {
                let result = remove(&journals, &pruned, stop).await;
                journals.close().await;
                result
            })?;
            (pruned, removed)
        }
        (address, _) => {
            let address = address.context("it is no journal")?;
            if !arguments.take_over {
                refuse_if_used(&OpenDatabase::open_read_only(&address)?)?;
            }
            let mut reader = JournalReader::Database(OpenDatabase::open(&address)?);
            let pruned = arguments.retention().beyond(read_ended(&mut reader)?, now);
            let JournalReader::Database(database) = reader else { return Ok(Exit::Unusable) };
            let removed = database.wait(remove(database.journals(), &pruned, stop))?;
            (pruned, removed)
        }
    };
    pruned.truncate(removed);
    print(arguments, &pruned, exit)
}

/// The entities of a journal that have ended.
fn read_ended(journal: &mut JournalReader) -> anyhow::Result<Vec<Ended>> {
    let mut survey = Survey::default();
    for index in 0..journal.start().positions().len() {
        let mut after = None;
        loop {
            let page = journal.read_by_entity(index, after.as_ref())?;
            for record in page.entries.into_iter().map(Entry::into_record) {
                let record = record?;
                let fitted = survey.feed(&record);
                fitted.with_context(|| {
                    let at = format_position(journal.partition(index), record.position);
                    format!("position {at} does not follow from the records before it")
                })?;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
    Ok(survey.finish())
}

/// Removes entities piece by piece. Returns how many, and whether it was interrupted.
async fn remove(
    journals: &Journals,
    ended: &[Ended],
    stop: &StopRequest,
) -> anyhow::Result<(usize, Exit)> {
    let mut removed = 0;
    while removed < ended.len() {
        if stop.check().is_break() {
            return Ok((removed, Exit::Cancelled));
        }
        let (mut piece, mut records) = (Vec::new(), 0);
        for one in ended[removed..].iter().take(PRUNE_MAX_ENTITIES) {
            records += one.records;
            if !piece.is_empty() && records > PIECE_RECORDS {
                break;
            }
            piece.push((one.entity.clone(), one.last));
        }
        removed += piece.len();
        journals.prune(piece).await?;
    }
    Ok((removed, Exit::Ok))
}

fn print(arguments: &Arguments, pruned: &[Ended], exit: Exit) -> anyhow::Result<Exit> {
    let records: u64 = pruned.iter().map(|one| one.records).sum();
    let output = Output::new();
    if arguments.json {
        let named: Vec<_> = pruned.iter().map(|one| &one.entity).collect();
        output.json(&json!({
            "journal": arguments.journal,
            "dry_run": arguments.dry_run,
            "entities": pruned.len(),
            "records": records,
            "removed": named,
        }))?;
        return Ok(exit);
    }
    let what = if arguments.dry_run { "would remove" } else { "removed" };
    let (entities, records) = (count(pruned.len(), "entity"), count(records, "record"));
    output.line(format_args!("{what} {entities} with {records}"))?;
    Ok(exit)
}
