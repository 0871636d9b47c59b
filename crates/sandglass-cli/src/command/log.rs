//! `sandglass log`: prints the records of a journal or of a daemon, one per line, and follows them.

mod daemon;
mod forms;

use std::ffi::OsString;
use std::future::ready;
use std::mem::{replace, take};
use std::time::Duration;

use sandglass_insight::projection::{Projection, Shape};
use sandglass_journal::{Entry, Error, Found};
use sandglass_model::{Cursor, EntityRef, Partition, Position, Record};
use sandglass_source::printable;
use serde_json::json;

use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::journal_place::{Place, is_url};
use crate::journal_reader::{InPartition, JournalReader, Located, Pages, format_position};
use crate::narrate::Narrator;
use crate::reader::Reader;
use crate::terminal::{Output, Tone, note};
use crate::wait::pause;
use crate::{fetch, journal_file, threads};

/// How often a journal that is followed is read: soon enough for people, and a thousandth of a core.
const POLL_EVERY: Duration = Duration::from_millis(250);

/// Prints the records of a journal, even while it is being written, or of a running daemon
///
/// A daemon gives its records only to a key that may read those of all tenants. With --follow, a lost
/// connection is made again, and no record is left out or printed twice.
///
/// Exit code: 0 printed, 2 the journal or the daemon cannot be read, 3 some records are damaged or
/// missing (all others are printed, also those after them), 130 Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass log run.journal\n  \
    sandglass log postgresql://sandglass@db.example/runs\n  \
    sandglass log run.journal --entity Session/healthy --follow\n  \
    sandglass log run.journal --json | jq 'select(.event.type == \"ended\").event.outcome'\n  \
    sandglass log http://127.0.0.1:7341 --as watchdog --follow | while read event; do ...")]
pub(crate) struct Arguments {
    /// The journal (a file, postgresql://USER@HOST/DATABASE or env:VAR), or the daemon
    /// (http://HOST:PORT or https://HOST:PORT)
    #[arg(value_name = "JOURNAL|URL")]
    from: OsString,
    #[command(flatten)]
    access: fetch::Access,
    /// Only the records of one entity
    #[arg(long, value_name = "TYPE/ID")]
    entity: Option<EntityRef>,
    /// Continue with each new record, until Ctrl-C
    #[arg(long)]
    follow: bool,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
    /// Print what another system would have recorded about sessions, in its format and as JSON
    #[arg(long = "as", value_name = "SYSTEM")]
    shape: Option<System>,
}

impl Arguments {
    /// The journal, if it is no daemon.
    fn place(&self) -> Place {
        self.from.clone().into()
    }
}

/// A system whose format records can be printed in.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum System {
    /// A watchdog of a session's wall clock: `runtime.watchdog.cancel`
    Watchdog,
    /// An audit of tools: timeouts, failures, status texts, stops
    Audit,
    /// A detector of silence: `sdk_silence`
    Silence,
}

impl System {
    const fn shape(self) -> Shape {
        match self {
            Self::Watchdog => Shape::Watchdog,
            Self::Audit => Shape::Audit,
            Self::Silence => Shape::Silence,
        }
    }

    /// The name that daemons know it by.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Watchdog => "watchdog",
            Self::Audit => "audit",
            Self::Silence => "silence",
        }
    }
}

/// Prints a line for each record that has a form in `shape`.
fn print_projection(arguments: &Arguments, shape: Shape) -> anyhow::Result<Exit> {
    let mut projection = Projection::new(shape);
    let output = Output::new();
    let mut written = Ok(());
    let exit = journal_file::fold_records(&arguments.place(), |record| {
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
    let is_daemon = |text: &&str| text.contains("://") && !is_url(text);
    let url = arguments.from.to_str().filter(is_daemon);
    match (url, arguments.follow, arguments.shape) {
        (Some(url), ..) => execute_live(async |interrupts| {
            let url = url.trim_end_matches('/');
            daemon::print(arguments, url, interrupts).await
        }),
        (None, true, Some(system)) => execute_live(async |interrupts| {
            forms::follow(arguments, system.shape(), interrupts).await
        }),
        (None, true, None) => {
            execute_live(async |interrupts| follow_journal(arguments, interrupts).await)
        }
        (None, false, Some(system)) => print_projection(arguments, system.shape()),
        (None, false, None) => print_journal(arguments),
    }
}

/// Executes `work`, which waits, until it ends or the reader of standard output is gone.
fn execute_live(
    work: impl AsyncFnOnce(&mut Interrupts) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    threads::start(Some(1))?.block_on(async {
        let mut interrupts = Interrupts::listen()?;
        let reader = Reader::of_stdout();
        tokio::select! {
            done = work(&mut interrupts) => done,
            () = reader.gone() => Ok(Exit::Ok),
        }
    })
}

fn print_journal(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut pages = Pages::open(&arguments.place(), arguments.entity.clone(), Position(1))?;
    let mut view = View::new(arguments);
    while let Some(page) = pages.page()? {
        page.iter().try_for_each(|located| view.print(located))?;
    }
    let exit = Exit::of_reading(view.records, view.gaps);
    match exit {
        Exit::Diverged => {
            note(
                "some records are damaged or missing; `sandglass journal export` saves the others",
            );
        }
        _ if view.gaps > 0 => note("no record of the journal can be read; restore a backup"),
        _ => {}
    }
    Ok(exit)
}

/// Prints what the journal has, damaged or not, and then what is appended, until Ctrl-C.
async fn follow_journal(
    arguments: &Arguments,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Exit> {
    let (entity, place) = (&arguments.entity, arguments.place());
    let mut view = View::new(arguments);
    let mut pages = Pages::open(&place, entity.clone(), Position(1))?;
    let mut after = pages.start();
    while let Some(page) = pages.page()? {
        for located in &page {
            advance(&mut after, located);
            view.print(located)?;
        }
        if is_interrupted(interrupts).await {
            return Ok(Exit::Cancelled);
        }
    }
    let mut reader = match pages {
        Pages::Database { reader, .. } => reader,
        Pages::File(_) => JournalReader::open(&place)?,
    };
    let mut is_lost = false;
    loop {
        let read = match entity {
            None => reader.read_behind(&after),
            Some(entity) => reader.read_entity_behind(entity, &after),
        };
        let page = match read {
            Ok(page) => page,
            // It connects anew with the next read.
            Err(error @ Error::Unavailable { .. })
                if matches!(reader, JournalReader::Database(_)) =>
            {
                if !replace(&mut is_lost, true) {
                    note(&format!("{error}; trying again"));
                }
                if is_interrupted_before_next(interrupts, true).await {
                    return Ok(Exit::Cancelled);
                }
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if take(&mut is_lost) {
            note("the database responds again");
        }
        for (index, entry) in page.entries {
            view.print(&Located { partition: reader.partition(index), found: entry.into() })?;
        }
        after = page.next;
        if is_interrupted_before_next(interrupts, page.is_end).await {
            return Ok(Exit::Cancelled);
        }
    }
}

/// Waits until the journal is to be read again; returns whether Ctrl-C came first.
async fn is_interrupted_before_next(interrupts: &mut Interrupts, is_end: bool) -> bool {
    if !is_end {
        return is_interrupted(interrupts).await;
    }
    tokio::select! {
        biased;
        _ = interrupts.next() => true,
        () = pause(POLL_EVERY) => false,
    }
}

async fn is_interrupted(interrupts: &mut Interrupts) -> bool {
    tokio::select! {
        biased;
        () = interrupts.next() => true,
        () = ready(()) => false,
    }
}

/// Moves on behind what was found, as far as that is known.
fn advance(after: &mut Cursor, Located { partition, found }: &Located) {
    let last = match found {
        Found::Entry(entry) => entry.last_position(),
        Found::Unreadable { last, first, .. } => {
            last.unwrap_or(Position(first.0.saturating_sub(1)))
        }
    };
    after.advance(partition.map_or(0, Partition::index), last);
}

/// Prints what a journal contains.
struct View {
    output: Output,
    narrator: Narrator,
    is_json: bool,
    records: u64,
    gaps: u64,
}

impl View {
    fn new(arguments: &Arguments) -> Self {
        // The formats of other systems are JSON.
        let is_json = arguments.json || arguments.shape.is_some();
        let (output, narrator) = (Output::new(), Narrator::default());
        Self { output, narrator, is_json, records: 0, gaps: 0 }
    }

    fn print(&mut self, located: &Located) -> anyhow::Result<()> {
        if self.is_json { self.json(located) } else { self.text(located) }
    }

    fn json(&mut self, Located { partition, found }: &Located) -> anyhow::Result<()> {
        let partition = *partition;
        let line = match found {
            Found::Entry(Entry::Record(record)) => {
                self.records += 1;
                return Ok(self.output.json(&InPartition { value: record, partition })?);
            }
            Found::Entry(Entry::Pruned { first, last }) => {
                json!({"position": first, "pruned": last})
            }
            gap => {
                let (position, what) = self.gap(gap);
                json!({"position": position, "damaged": what})
            }
        };
        Ok(self.output.json(&InPartition { value: line, partition })?)
    }

    fn text(&mut self, Located { partition, found }: &Located) -> anyhow::Result<()> {
        let (position, tone, what) = match found {
            Found::Entry(Entry::Record(record)) => {
                self.records += 1;
                let line = self.record(*partition, record);
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
        let position = format_position(*partition, position);
        Ok(self.output.line(format_args!("{:24} {position:>6}  {what}", ""))?)
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

    fn record(&mut self, partition: Option<Partition>, record: &Record) -> String {
        let line = self.narrator.describe(record);
        let entity = match &record.entity {
            Some(entity) => format!("{entity} @{}", record.sequence),
            None => "-".to_owned(),
        };
        format!(
            "{} {:>6}  {:24} {:18} {}",
            self.output.paint(Tone::Quiet, record.at),
            format_position(partition, record.position),
            printable(&entity),
            self.output.paint(line.tone, line.what),
            line.detail,
        )
    }
}
