//! `sandglass journal export`: writes every readable record of a journal as JSON lines.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use sandglass_journal::{Entry, Found, NewFile};
use sandglass_model::{EntityRef, Position};
use serde_json::{Value, json};

use super::StopRequest;
use crate::exit::Exit;
use crate::journal_place::Place;
use crate::journal_reader::{InPartition, Located, Pages, format_position};
use crate::json;
use crate::terminal::note;

/// The version of the format: it changes when its readers have to.
const VERSION: u32 = 1;
/// Most gaps that are reported on standard error. All of them are in the export.
const GAPS_SHOWN: u64 = 20;

/// Exports a journal as JSON lines, even while it is being written or if it is damaged
///
/// The first line is {"type":"header","format":"sandglass-journal","version":1}. Every other line
/// without a type is a record, with the keys of `sandglass log --json`. Lines of the types damaged,
/// missing and unreadable stand for records that cannot be read: position, last and what. They are
/// also reported on standard error, and the records after them are exported. Lines of the type pruned
/// stand for records that were removed on purpose, with the same keys. Records of a database have the
/// number of their partition, and are in the order of their times.
///
/// Exit code: 0 all records are exported, 2 no record can be read, or FILE exists or cannot be
/// written, 3 some records are damaged or missing (the rest is exported), 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass journal export runs.db --to runs.jsonl\n  \
    sandglass journal export postgresql://sandglass@db.example/runs --to runs.jsonl\n  \
    sandglass journal export runs.db --entity Session/healthy | jq .event.type\n  \
    sandglass journal export runs.db --from 1001 | gzip > newer.jsonl.gz")]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "JOURNAL")]
    journal: Place,
    /// Only the records of one entity; missing records are not reported then
    #[arg(long, value_name = "TYPE/ID")]
    entity: Option<EntityRef>,
    /// Only from this position on; of a database, together with --entity
    #[arg(long, value_name = "N", default_value_t = 1)]
    from: u64,
    /// Write to this new file, which appears when it is complete
    #[arg(long, value_name = "FILE")]
    pub(super) to: Option<PathBuf>,
}

pub(super) fn execute(arguments: &Arguments, stop: &StopRequest) -> anyhow::Result<Exit> {
    let Arguments { journal, entity, from, to } = arguments;
    let mut pages = Pages::open(journal, entity.clone(), Position(*from))?;
    let Some(to) = to else {
        return Export::to(io::stdout().lock()).all(&mut pages, stop);
    };
    let mut file = NewFile::begin(to)?;
    let exit = Export::to(&mut file).all(&mut pages, stop)?;
    if matches!(exit, Exit::Ok | Exit::Diverged) {
        file.finish()?;
    }
    Ok(exit)
}

struct Export<W: Write> {
    lines: BufWriter<W>,
    records: u64,
    gaps: u64,
}

impl<W: Write> Export<W> {
    fn to(output: W) -> Self {
        Self { lines: BufWriter::new(output), records: 0, gaps: 0 }
    }

    fn all(mut self, pages: &mut Pages, stop: &StopRequest) -> anyhow::Result<Exit> {
        match self.write(pages, stop) {
            Ok(exit) => Ok(exit),
            // A reader that closes the pipe has seen enough.
            Err(error) if is_broken_pipe(&error) => Ok(self.exit()),
            Err(error) => Err(error.context("the export failed")),
        }
    }

    fn write(&mut self, pages: &mut Pages, stop: &StopRequest) -> anyhow::Result<Exit> {
        let header = json!({"type": "header", "format": "sandglass-journal", "version": VERSION});
        writeln!(self.lines, "{header}")?;
        while let Some(page) = pages.page()? {
            page.iter().try_for_each(|located| self.found(located))?;
            // So that a reader that follows sees each page at once.
            self.lines.flush()?;
            if stop.check().is_break() {
                return Ok(Exit::Cancelled);
            }
        }
        self.lines.flush()?;
        if self.gaps > GAPS_SHOWN {
            note(&format!("{} more gaps", self.gaps - GAPS_SHOWN));
        }
        Ok(self.exit())
    }

    fn found(&mut self, Located { partition, found }: &Located) -> anyhow::Result<()> {
        let partition = *partition;
        let line = if let Found::Entry(Entry::Record(record)) = found {
            self.records += 1;
            json::line(&InPartition { value: record, partition })
        } else if let Found::Entry(Entry::Pruned { first, last }) = found {
            let what = "removed on purpose";
            let value = json!({"type": "pruned", "position": first, "last": last, "what": what});
            json::line(&InPartition { value, partition })
        } else {
            let gap = gap(found);
            self.gaps += 1;
            if self.gaps <= GAPS_SHOWN {
                let at = format_position(partition, first_of(found));
                let what = gap["what"].as_str().unwrap_or_default();
                note(&format!("position {at}: {what}"));
            }
            json::line(&InPartition { value: gap, partition })
        };
        Ok(writeln!(self.lines, "{}", line?)?)
    }

    fn exit(&self) -> Exit {
        Exit::of_reading(self.records, self.gaps)
    }
}

fn first_of(found: &Found) -> Position {
    match found {
        Found::Entry(entry) => entry.position(),
        Found::Unreadable { first, .. } => *first,
    }
}

/// The line that stands for positions without a readable record.
fn gap(found: &Found) -> Value {
    let (kind, first, last, what) = match found {
        Found::Entry(entry) => {
            let kind = if matches!(entry, Entry::Missing { .. }) { "missing" } else { "damaged" };
            (
                kind,
                entry.position(),
                Some(entry.last_position()),
                entry.damage().unwrap_or_default(),
            )
        }
        Found::Unreadable { first, last, what } => ("unreadable", *first, *last, what.clone()),
    };
    json!({"type": kind, "position": first, "last": last, "what": what})
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().map(io::Error::kind) == Some(io::ErrorKind::BrokenPipe)
}
