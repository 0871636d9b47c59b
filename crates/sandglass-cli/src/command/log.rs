//! `sandglass log`: prints the records of a journal, one per line.

use std::path::PathBuf;

use sandglass_insight::projection::{Projection, Shape};
use sandglass_journal::{Entry, Found, Salvage};
use sandglass_model::{EntityRef, Position, Record};
use sandglass_source::printable;
use serde_json::json;

use crate::exit::Exit;
use crate::journal_file;
use crate::narrate::Narrator;
use crate::terminal::{Output, Tone, note};

/// Prints the records of a journal, even while it is being written
///
/// Exit code: 0 printed, 2 the journal cannot be read, 3 some records are damaged or missing (all
/// others are printed, also those after them).
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass log run.journal\n  \
    sandglass log run.journal --entity Session/healthy\n  \
    sandglass log run.journal --json | jq 'select(.event.type == \"ended\").event.outcome'")]
pub(crate) struct Arguments {
    /// The journal file
    journal: PathBuf,
    /// Only the records of one entity
    #[arg(long, value_name = "TYPE/ID")]
    entity: Option<EntityRef>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Print what another system would have recorded about sessions, in its format and as JSON
    #[arg(long = "as", value_name = "SYSTEM")]
    shape: Option<System>,
}

/// A system whose format records can be printed in.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum System {
    /// A watchdog of a session's wall clock: `runtime.watchdog.cancel`
    Watchdog,
    /// An audit of tools: timeouts, failures, stops
    Audit,
    /// A detector of silence: `sdk_silence`
    Silence,
}

/// Prints a line for each record that has a form in `shape`.
fn print_projection(arguments: &Arguments, shape: Shape) -> anyhow::Result<Exit> {
    let mut projection = Projection::new(shape);
    let output = Output::new();
    let mut written = Ok(());
    let exit = journal_file::fold_records(&arguments.journal, |record| {
        let is_wanted = arguments.entity.is_none() || record.entity == arguments.entity;
        let projected = projection.feed(record)?;
        if let Some(projected) = projected.filter(|_| is_wanted && written.is_ok()) {
            written = output.json(&projected);
        }
        Ok(())
    })?;
    written?;
    Ok(exit)
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    if let Some(system) = arguments.shape {
        let shape = match system {
            System::Watchdog => Shape::Watchdog,
            System::Audit => Shape::Audit,
            System::Silence => Shape::Silence,
        };
        return print_projection(arguments, shape);
    }
    let Arguments { journal, entity, .. } = arguments;
    let mut salvage = Salvage::open(journal, entity.clone(), Position(1))?;
    let mut view =
        View { output: Output::new(), narrator: Narrator::default(), records: 0, gaps: 0 };
    while let Some(page) = salvage.page()? {
        for found in &page {
            if arguments.json { view.json(found)? } else { view.text(found)? }
        }
    }
    let exit = Exit::of_reading(view.records, view.gaps);
    if exit == Exit::Diverged {
        note("some records are damaged or missing; `sandglass journal export` saves the others");
    }
    Ok(exit)
}

struct View {
    output: Output,
    narrator: Narrator,
    records: u64,
    gaps: u64,
}

impl View {
    fn json(&mut self, found: &Found) -> anyhow::Result<()> {
        let line = match found {
            Found::Entry(Entry::Record(record)) => {
                self.records += 1;
                return Ok(self.output.json(record)?);
            }
            Found::Entry(Entry::Pruned { first, last }) => {
                json!({"position": first, "pruned": last})
            }
            gap => {
                let (position, what) = self.gap(gap);
                json!({"position": position, "damaged": what})
            }
        };
        Ok(self.output.json(&line)?)
    }

    fn text(&mut self, found: &Found) -> anyhow::Result<()> {
        let (position, tone, what) = match found {
            Found::Entry(Entry::Record(record)) => {
                self.records += 1;
                let line = self.record(record);
                return Ok(self.output.line(line)?);
            }
            Found::Entry(Entry::Pruned { first, last }) => {
                (*first, Tone::Quiet, format!("pruned (removed on purpose), up to position {last}"))
            }
            gap => {
                let (position, what) = self.gap(gap);
                (position, Tone::Bad, format!("damaged: {what}"))
            }
        };
        let what = self.output.paint(tone, printable(&what));
        Ok(self.output.line(format_args!("{:24} {:>6}  {what}", "", position.0))?)
    }

    /// Counts a gap. Returns its position, and what is wrong there.
    fn gap(&mut self, found: &Found) -> (Position, String) {
        self.gaps += 1;
        match found {
            Found::Entry(entry) => (entry.position(), entry.damage().unwrap_or_default()),
            Found::Unreadable { first, last: Some(last), what } if last > first => {
                (*first, format!("nothing up to position {last} can be read: {what}"))
            }
            Found::Unreadable { first, what, .. } => (*first, what.clone()),
        }
    }

    fn record(&mut self, record: &Record) -> String {
        let line = self.narrator.describe(record);
        let entity = match &record.entity {
            Some(entity) => format!("{entity} @{}", record.sequence),
            None => "-".to_owned(),
        };
        format!(
            "{} {:>6}  {:24} {:18} {}",
            self.output.paint(Tone::Quiet, record.at),
            record.position.0,
            printable(&entity),
            self.output.paint(line.tone, line.what),
            line.detail,
        )
    }
}
