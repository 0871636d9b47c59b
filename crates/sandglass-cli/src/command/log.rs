//! `sandglass log`: what a journal holds, one line a record.

use std::path::PathBuf;

use anyhow::Context;
use sandglass_journal::{Entry, PAGE_MAX_ENTRIES, SqliteJournal};
use sandglass_model::{EntityRef, Position, Record};
use sandglass_source::printable;
use serde_json::json;

use crate::exit::Exit;
use crate::narrate::Narrator;
use crate::terminal::{Output, Tone};

/// Prints the records of a journal, also while it is being written
///
/// Exit code: 0, 2 no readable journal, 3 some records are damaged or missing (the
/// rest is printed all the same).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass log run.journal\n  \
    sandglass log run.journal --entity Session/healthy\n  \
    sandglass log run.journal --json | jq 'select(.event.type == \"ended\").event.outcome'")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// Only the records of one entity
    #[arg(long, value_name = "TYPE/ID")]
    entity: Option<EntityRef>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut journal = SqliteJournal::open_read_only(&arguments.journal)?;
    let mut view = View { output: Output::new(), narrator: Narrator::default(), damaged: 0 };
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = match &arguments.entity {
            None => journal.read(start, PAGE_MAX_ENTRIES),
            Some(entity) => journal.read_entity(entity, start, PAGE_MAX_ENTRIES),
        };
        let page = page.with_context(|| format!("can't read on from position {start}"))?;
        for entry in &page.entries {
            if arguments.json { view.json(entry)? } else { view.text(entry)? }
        }
        from = page.next;
    }
    if view.damaged == 0 {
        return Ok(Exit::Ok);
    }
    tracing::warn!(damaged = view.damaged, "some records are damaged or missing");
    Ok(Exit::Diverged)
}

struct View {
    output: Output,
    narrator: Narrator,
    damaged: u64,
}

impl View {
    fn json(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let line = match (entry, entry.damage()) {
            (Entry::Record(record), _) => serde_json::to_string(record)?,
            (Entry::Pruned { first, last }, _) => {
                json!({"position": first, "pruned": last}).to_string()
            }
            (_, what) => {
                self.damaged += 1;
                json!({"position": entry.position(), "damaged": what}).to_string()
            }
        };
        Ok(self.output.line(line)?)
    }

    fn text(&mut self, entry: &Entry) -> anyhow::Result<()> {
        let line = match (entry, entry.damage()) {
            (Entry::Record(record), _) => self.record(record),
            (Entry::Pruned { first, last }, _) => {
                let what = format!("removed on purpose, up to position {last}");
                let what = self.output.paint(Tone::Quiet, &what).into_owned();
                format!("{:24} {:>6}  {what}", "", first.0)
            }
            (_, what) => {
                self.damaged += 1;
                let what = format!("damaged: {}", what.unwrap_or_default());
                let what = self.output.paint(Tone::Bad, &what).into_owned();
                format!("{:24} {:>6}  {what}", "", entry.position().0)
            }
        };
        Ok(self.output.line(line)?)
    }

    fn record(&mut self, record: &Record) -> String {
        let told = self.narrator.tell(record);
        let at = record.at.to_string();
        let entity = match &record.entity {
            Some(entity) => format!("{entity} @{}", record.sequence),
            None => "-".to_owned(),
        };
        format!(
            "{} {:>6}  {:24} {:18} {}",
            self.output.paint(Tone::Quiet, &at),
            record.position.0,
            printable(&entity),
            self.output.paint(told.tone, &told.what),
            told.detail,
        )
    }
}
