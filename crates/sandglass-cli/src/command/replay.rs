//! `sandglass replay`: decides every record of a journal again, with no clock and
//! no guest, and compares.

use std::path::PathBuf;

use sandglass_journal::{Entry, Error, PAGE_MAX_ENTRIES, Snapshot, SqliteJournal, SqliteReader};
use sandglass_liveness::replay::{Divergence, Replay, Summary};
use sandglass_model::{EntityRef, Position};
use sandglass_source::printable;
use serde_json::{Value, json};

use crate::exit::Exit;
use crate::terminal::{Output, Tone};

/// Folds a journal again and compares each decision with its record
///
/// Exit code: 0 no divergence, 2 no readable journal, 3 divergences.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass replay run.journal\n  \
    sandglass replay run.journal --json | jq .divergences")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut journal = SqliteJournal::open_read_only(&arguments.journal)?;
    let summary = replayed(&mut journal)?;
    let mut output = Output::new();
    if arguments.json {
        output.line(as_json(&summary))?;
    } else {
        print(&summary, &mut output)?;
    }
    Ok(if summary.divergence_count == 0 { Exit::Ok } else { Exit::Diverged })
}

/// Replays all that can be read. Where the file ends being readable on the way,
/// that is a divergence, too; where it never was, it is an error.
pub(crate) fn replayed(journal: &mut SqliteReader) -> Result<Summary, Error> {
    let mut replay = Replay::new();
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = match journal.read(start, PAGE_MAX_ENTRIES) {
            Ok(page) => page,
            Err(Error::Damaged { what, .. }) => {
                replay.damaged(start, None, &format!("nothing more can be read: {what}"));
                break;
            }
            Err(error) => return Err(error),
        };
        let last = page.entries.last().map_or(start, Entry::position);
        let mut snapshots = Snapshots::of(journal, start, last);
        for entry in &page.entries {
            feed(&mut replay, entry);
            snapshots.compare(journal, &mut replay, entry.position());
        }
        from = page.next;
    }
    Ok(replay.finish())
}

/// The snapshots of the places of one page. One at a time is held, which are large; one that
/// a writer has replaced meanwhile is met further on.
struct Snapshots {
    names: std::vec::IntoIter<EntityRef>,
    next: Option<Snapshot>,
}

impl Snapshots {
    /// What can't be read of them isn't used by anybody either.
    fn of(journal: &mut SqliteReader, first: Position, last: Position) -> Self {
        let names = journal.snapshots(first, last).unwrap_or_default().into_iter();
        let mut snapshots = Self { names, next: None };
        snapshots.advance(journal);
        snapshots
    }

    fn compare(&mut self, journal: &mut SqliteReader, replay: &mut Replay, at: Position) {
        while let Some(one) = self.next.take_if(|one| one.position <= at) {
            if one.position == at {
                replay.snapshot(&one.entity, &one.body);
            }
            self.advance(journal);
        }
    }

    fn advance(&mut self, journal: &mut SqliteReader) {
        self.next = self.names.find_map(|name| journal.snapshot_of(&name).ok().flatten());
    }
}

fn feed(replay: &mut Replay, entry: &Entry) {
    match entry {
        Entry::Record(record) => replay.feed(record),
        Entry::Damaged { position, what } => replay.damaged(*position, None, what),
        Entry::Missing { first, last } => {
            replay.damaged(*last, None, &format!("nothing from position {first} to {last}"));
        }
    }
}

fn print(summary: &Summary, output: &mut Output) -> anyhow::Result<()> {
    for divergence in &summary.divergences {
        let Divergence { position, entity, what, recorded, expected } = divergence;
        let entity = entity.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        let head = format!("position {position}  {entity}  {what}");
        output.line(output.paint(Tone::Bad, &printable(&head)).into_owned())?;
        output.line(format_args!("  recorded  {}", printable(recorded)))?;
        output.line(format_args!("  expected  {}", printable(expected)))?;
    }
    let untold = summary.divergence_count - count(summary.divergences.len());
    if untold > 0 {
        output.line(format_args!("and {untold} more"))?;
    }
    output.line(sentence(summary))?;
    Ok(())
}

/// The line that scripts look for.
pub(crate) fn sentence(summary: &Summary) -> String {
    let Summary { dispatches, timeouts, divergence_count, .. } = summary;
    format!("{dispatches} dispatches, {timeouts} timeouts, {divergence_count} divergences")
}

fn as_json(summary: &Summary) -> Value {
    let divergence = |one: &Divergence| {
        json!({
            "position": one.position,
            "entity": one.entity,
            "what": one.what,
            "recorded": one.recorded,
            "expected": one.expected,
        })
    };
    json!({
        "records": summary.records,
        "entities": summary.entities,
        "dispatches": summary.dispatches,
        "timeouts": summary.timeouts,
        "open": summary.open,
        "snapshots": summary.snapshots,
        "snapshots_unusable": summary.snapshots_unusable,
        "divergence_count": summary.divergence_count,
        "divergences": summary.divergences.iter().map(divergence).collect::<Vec<Value>>(),
    })
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
