//! `sandglass replay`: replays the decisions of a journal without a clock, and its recorded handlers
//! if their guests are given, and compares both with the records.

mod guests;
mod runs;

use std::collections::BTreeSet;
use std::path::PathBuf;

use sandglass_journal::{Error, Journal, PAGE_MAX_ENTRIES, Page, Snapshot};
use sandglass_liveness::replay::{Divergence, Summary};
use sandglass_model::{EntityRef, Event, Partition, Position, Record};
use sandglass_runtime::{ReplaySource, replay_journal};
use sandglass_source::printable;
use serde_json::{Value, json};

use self::runs::{Runs, Wanted};
use crate::compiling;
use crate::exit::Exit;
use crate::journal_file;
use crate::journal_place::Place;
use crate::journal_reader::{JournalReader, format_position};
use crate::open_database::OpenDatabase;
use crate::terminal::{Output, Tone, count};

/// Replays the decisions of a journal, and its handlers with --guests, and compares them
///
/// Each partition of a database is replayed alone. Specs that all of them contain count once, so a
/// journal has the same totals in a file and in a database. Snapshots are compared in both.
///
/// Exit code: 0 no divergence, 2 the journal cannot be read, 3 divergences.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass replay run.journal\n  \
    sandglass replay run.journal --json | jq .divergences\n  \
    sandglass replay postgresql://sandglass@db.example/runs\n  \
    sandglass replay run.journal --guests integrations/\n  \
    sandglass replay run.journal --guests integrations/ --dispatch ID --until 12 --trace\n\n\
    A module is found by the hash of its bytes, whatever the name of its file. Secrets of a handler\n\
    come from SANDGLASS_SECRET_NAME, as in its first execution.")]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "JOURNAL")]
    journal: Place,
    /// Replay each recorded handler with the modules of this folder
    #[arg(long, value_name = "DIR")]
    guests: Option<PathBuf>,
    #[command(flatten)]
    wanted: Wanted,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compiling: compiling::CachedArguments,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut journal = JournalReader::open(&arguments.journal)?;
    let mut runs = match &arguments.guests {
        Some(folder) => {
            let runs = Runs::new(folder, arguments.wanted, &arguments.compiling)?;
            // A second reader, because recordings are read in the middle of reading records.
            Some((runs, JournalReader::open(&arguments.journal)?))
        }
        None => None,
    };
    let summary = replay_all(&mut journal, |partition, record| {
        journal_file::check_rules(record)?;
        match &mut runs {
            Some((runs, recordings)) => runs.feed(partition, record, recordings),
            None => Ok(()),
        }
    })?;
    let runs = runs.map(|(runs, _)| runs.summary);
    if let (Some(dispatch), Some(runs)) = (arguments.wanted.dispatch, &runs)
        && !runs.found
    {
        anyhow::bail!("no dispatch {dispatch} has ended in `{}`", arguments.journal);
    }
    let output = Output::new();
    if arguments.json {
        output.json(&to_json(&summary, runs.as_ref())?)?;
    } else {
        print(&summary, runs.as_ref(), &output)?;
    }
    let diverged = summary.divergence_count + runs.map_or(0, |runs| runs.divergence_count);
    Ok(if diverged == 0 { Exit::Ok } else { Exit::Diverged })
}

/// Replays all journals, and passes each whole record to `each` with its partition.
fn replay_all(
    journal: &mut JournalReader,
    mut each: impl FnMut(Option<Partition>, &Record) -> anyhow::Result<()>,
) -> anyhow::Result<Summary> {
    let database = match journal {
        JournalReader::File(reader) => {
            return replay_journal(reader, None, |record| each(None, record));
        }
        JournalReader::Database(database) => database,
    };
    let (mut total, mut specs) = (Summary::default(), BTreeSet::new());
    for (partition, journal) in Partition::all().zip(database.journals().all()) {
        let mut source = PartitionSource { database, partition, journal: &**journal };
        let mut repeated = 0;
        let summary = replay_journal(&mut source, Some(partition), |record| {
            if let Event::SpecRegistered { digest, .. } = &record.event {
                repeated += u64::from(!specs.insert(*digest));
            }
            each(Some(partition), record)
        })?;
        total.add(summary);
        total.records -= repeated;
    }
    Ok(total)
}

/// The journal of a partition.
struct PartitionSource<'a> {
    database: &'a OpenDatabase,
    partition: Partition,
    journal: &'a dyn Journal,
}

impl ReplaySource for PartitionSource<'_> {
    fn page(&mut self, from: Position) -> Result<Page, Error> {
        self.database.wait(self.journal.read(from, PAGE_MAX_ENTRIES))
    }

    fn snapshots(&mut self, first: Position, last: Position) -> Result<Vec<EntityRef>, Error> {
        let names = self.database.database().snapshots(self.partition, first, last);
        self.database.wait(names)
    }

    fn snapshot_of(&mut self, entity: &EntityRef) -> Result<Option<Snapshot>, Error> {
        self.database.wait(self.journal.snapshot(entity.clone()))
    }
}

fn print(summary: &Summary, runs: Option<&runs::Summary>, output: &Output) -> anyhow::Result<()> {
    for divergence in &summary.divergences {
        let Divergence { partition, position, entity, what, recorded, expected } = divergence;
        let position = format_position(*partition, *position);
        let heading = format!("position {position}  {}  {what}", or_dash(entity.as_ref()));
        print_divergence(&heading, recorded, ("expected", expected), output)?;
    }
    let omitted = summary.divergence_count - summary.divergences.len() as u64;
    if omitted > 0 {
        output.line(format_args!("and {omitted} more"))?;
    }
    if let Some(runs) = runs {
        print_divergences_of_guests(runs, output)?;
    }
    output.line(sentence(summary, runs.map_or(0, |runs| runs.divergence_count)))?;
    // Without an end: they are in flight, or their host was lost and not restarted.
    if summary.open > 0 {
        output
            .line(format_args!("{} of them in flight at the end of the journal", summary.open))?;
    }
    let Some(runs) = runs else { return Ok(()) };
    let decision_only = runs.decision_only();
    output
        .line(format_args!("guests: {} replayed, {decision_only} decision-only", runs.replayed))?;
    for (why, runs::DecisionOnly { runs, dispatch }) in &runs.decision_only {
        output.line(format_args!("  {runs}  {}; the first: {dispatch}", printable(why)))?;
    }
    Ok(())
}

fn print_divergences_of_guests(runs: &runs::Summary, output: &Output) -> anyhow::Result<()> {
    for divergence in &runs.divergences {
        let runs::Divergence { partition, position, entity, dispatch, attempt, run } = divergence;
        let position = format_position(*partition, *position);
        let call = run.call.map(|call| format!(" (host call {call})")).unwrap_or_default();
        let heading = format!(
            "position {position}  {}  dispatch {dispatch} attempt {attempt}  {}{call}",
            or_dash(entity.as_ref()),
            run.what
        );
        print_divergence(&heading, &run.recorded, ("replayed", &run.came), output)?;
    }
    let omitted = runs.divergence_count - runs.divergences.len() as u64;
    if omitted > 0 {
        output.line(format_args!("and {omitted} more handlers"))?;
    }
    Ok(())
}

fn print_divergence(
    heading: &str,
    recorded: &str,
    (label, other): (&str, &str),
    output: &Output,
) -> anyhow::Result<()> {
    output.line(output.paint(Tone::Bad, printable(heading)))?;
    output.line(format_args!("  recorded  {}", printable(recorded)))?;
    output.line(format_args!("  {label}  {}", printable(other)))?;
    Ok(())
}

/// The line of totals, which scripts parse.
fn sentence(summary: &Summary, of_runs: u64) -> String {
    let Summary { dispatches, timeouts, divergence_count, .. } = summary;
    let divergences = divergence_count + of_runs;
    let counts = [
        count(*dispatches, "dispatch"),
        count(*timeouts, "timeout"),
        count(divergences, "divergence"),
    ];
    counts.join(", ")
}

fn or_dash(entity: Option<&EntityRef>) -> String {
    entity.map_or_else(|| "-".to_owned(), ToString::to_string)
}

fn to_json(summary: &Summary, runs: Option<&runs::Summary>) -> serde_json::Result<Value> {
    let mut whole = serde_json::to_value(summary)?;
    if let Some(runs) = runs {
        let reason = |(why, one): (&String, &runs::DecisionOnly)| json!({ "reason": why, "runs": one.runs, "first": one.dispatch });
        whole["divergence_count"] = json!(summary.divergence_count + runs.divergence_count);
        whole["guests"] = json!({
            "replayed": runs.replayed,
            "decision_only": runs.decision_only(),
            "reasons": runs.decision_only.iter().map(reason).collect::<Vec<Value>>(),
            "divergence_count": runs.divergence_count,
            "divergences": runs.divergences,
        });
    }
    Ok(whole)
}
