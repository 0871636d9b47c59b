//! `sandglass journal copy`: copies a journal between a file and a database.

mod appending;
mod causes;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use sandglass_journal::{Entry, Error, Journal, NewFile, Recording, SqliteJournal};
use sandglass_model::{Cursor, Event, Record, Recorded};
use sandglass_source::printable;
use serde_json::json;

use self::appending::{Appending, Copied};
use self::causes::Causes;
use super::{StopRequest, refuse_if_used, refuse_take_over_of_file};
use crate::exit::Exit;
use crate::journal_file;
use crate::journal_place::Place;
use crate::journal_reader::{JournalReader, format_position};
use crate::open_database::OpenDatabase;
use crate::terminal::{Output, count, note, report_error};

/// Copies a journal between a file and a database, with its recordings
///
/// Stop the process that uses FROM first. TO is a new file, or a database with an empty journal. Each
/// entity keeps its records in their order, so `replay` and `why` have the same results for the copy.
/// Positions change: in a database, each partition has its own, and pruned positions are left out.
/// Snapshots are not copied, because they are made again.
///
/// If the copy fails, no file is left; a database then is not opened any more, because it lacks
/// records: remove its journal (DROP SCHEMA sandglass CASCADE), create it and copy again.
///
/// The role needs UPDATE on sandglass.cluster, as the role that created the journal has.
///
/// Exit code: 0 copied, 2 FROM cannot be read or is in use, or TO cannot be written or is not empty,
/// 3 FROM is damaged, 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    sandglass journal copy runs.db postgresql://sandglass@db.example/runs\n  \
    sandglass journal copy env:RUNS_URL runs.db")]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    from: Place,
    /// A new file, or a database with an empty journal
    to: Place,
    /// Copy into a database although a process uses it, which then stops; not while hosts of a cluster
    /// use it
    #[arg(long)]
    take_over: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn execute(arguments: &Arguments, stop: &StopRequest) -> anyhow::Result<Exit> {
    let Arguments { from, to, take_over, json } = arguments;
    refuse_take_over_of_file(to, *take_over)?;
    let to_address = to.address().context("TO")?;
    let mut source = JournalReader::open(from)?;
    refuse_used_source(from, &source)?;
    let copied = match (to_address, to) {
        (Some(address), _) => {
            let present = OpenDatabase::open_read_only(&address)?;
            refuse_records(to, &present)?;
            if !take_over {
                refuse_if_used(&present)?;
            }
            drop(present);
            into_database(&mut source, to, &OpenDatabase::open(&address)?, stop)
        }
        (None, Place::File(path)) => into_file(&mut source, path, stop),
        (None, _) => bail!("`{to}` is no place for a journal"),
    };
    show("\u{1b}[K");
    match copied {
        Ok(Some(Copied { records, recordings })) => {
            let output = Output::new();
            if *json {
                output.json(
                    &json!({"from": from, "to": to, "records": records, "recordings": recordings}),
                )?;
            } else {
                let records = count(records, "record");
                let text =
                    format!("`{to}`: copied {records} and {}", count(recordings, "recording"));
                output.line(printable(&text))?;
            }
            Ok(Exit::Ok)
        }
        Ok(None) => Ok(Exit::Cancelled),
        Err(error) if matches!(error.downcast_ref(), Some(Error::Damaged { .. })) => {
            let advice = "only intact journals are copied; `sandglass journal export` saves what can be read";
            report_error(&error.context(advice));
            Ok(Exit::Diverged)
        }
        Err(error) => Err(error),
    }
}

/// The copy would lack what the process appends meanwhile.
fn refuse_used_source(from: &Place, source: &JournalReader) -> anyhow::Result<()> {
    match (source, from) {
        (JournalReader::Database(database), _) => {
            let writers = database.writers()?;
            ensure!(
                writers.is_empty(),
                "{} (machine and process) uses `{from}`; stop it first",
                writers.join(", ")
            );
        }
        (JournalReader::File(_), Place::File(path)) => ensure!(
            SqliteJournal::has_writer(path) != Some(true),
            "a process uses `{from}`; stop it first, or copy a backup (`sandglass journal backup`)"
        ),
        (JournalReader::File(_), _) => {}
    }
    Ok(())
}

fn refuse_records(to: &Place, database: &OpenDatabase) -> anyhow::Result<()> {
    let end = database.wait(database.journals().end())?;
    ensure!(
        end == Cursor::start(end.positions().len()),
        "`{to}` contains records, and a copy needs an empty journal. If nobody needs them, remove them \
         with `DROP SCHEMA sandglass CASCADE`, and create the journal again"
    );
    Ok(())
}

fn into_database(
    source: &mut JournalReader,
    to: &Place,
    database: &OpenDatabase,
    stop: &StopRequest,
) -> anyhow::Result<Option<Copied>> {
    // Again, now that no other process appends to it.
    refuse_records(to, database)?;
    database.wait(database.database().note_incomplete(true))?;
    let mut appending = Appending::new(database.journals().clone())?;
    let copied = copy_all(source, &mut appending, stop);
    let is_empty = appending.appended() == 0;
    if matches!(copied, Ok(Some(_))) {
        let end = database.wait(database.journals().end())?;
        let found: u64 = end.positions().iter().map(|position| position.0).sum();
        let due = appending.appended();
        ensure!(found == due, "`{to}` contains {found} records after {due} were appended");
    } else if database.database().is_taken() {
        note(&format!(
            "another process has taken `{to}`: if it is another copy, see what that one reports"
        ));
        return copied;
    } else if !is_empty {
        note(&format!(
            "`{to}` is incomplete and is not opened any more: remove its journal with `DROP SCHEMA \
             sandglass CASCADE`, create it and copy again"
        ));
        return copied;
    }
    database.wait(database.database().note_incomplete(false))?;
    copied
}

/// Copies into a file beside the destination, which is verified before it gets that name.
fn into_file(
    source: &mut JournalReader,
    to: &Path,
    stop: &StopRequest,
) -> anyhow::Result<Option<Copied>> {
    // Fails if it exists.
    drop(NewFile::begin(to)?);
    let beside = to.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut folder = tempfile::Builder::new();
    folder.prefix(".sandglass-copy-");
    let folder = folder.tempdir_in(beside.unwrap_or(Path::new(".")))?;
    let path = folder.path().join("journal");
    let journal: Arc<dyn Journal> = Arc::new(journal_file::open(&path)?);
    let mut appending = Appending::new(journal.into())?;
    let copied = copy_all(source, &mut appending, stop);
    appending.close();
    let Some(copied) = copied? else { return Ok(None) };
    let mut whole = SqliteJournal::open_read_only(&path)?;
    let finished = whole.back_up(to, |_| stop.check())?;
    Ok(finished.map(|_| copied))
}

/// Copies all records up to the present end; `None` if it was interrupted.
fn copy_all(
    source: &mut JournalReader,
    target: &mut Appending,
    stop: &StopRequest,
) -> anyhow::Result<Option<Copied>> {
    let end = source.end()?;
    let of: u64 = end.positions().iter().map(|position| position.0).sum();
    let (mut after, mut causes, mut specs) = (source.start(), Causes::default(), BTreeSet::new());
    let is_file = matches!(source, JournalReader::File(_));
    while after != end {
        let page = source.read_behind(&after)?;
        for (index, entry) in page.entries {
            if entry.position() > end.at(index) || matches!(entry, Entry::Pruned { .. }) {
                continue;
            }
            let at = format_position(source.partition(index), entry.position());
            let record = entry.into_record().map_err(|error| match error {
                Error::Damaged { what, .. } => {
                    Error::Damaged { place: format!("position {at}"), what }
                }
                error => error,
            })?;
            let is_repeated = match &record.event {
                Event::SpecRegistered { digest, .. } => !specs.insert(*digest),
                _ => false,
            };
            if is_repeated {
                continue;
            }
            // The records of a file are in their order.
            let ordered = if is_file { vec![(index, record)] } else { causes.put(index, record) };
            add_all(source, target, ordered)?;
        }
        if stop.check().is_break() {
            return Ok(None);
        }
        target.flush()?;
        after = page.next;
        show(&format!("copied {} of at most {of} records\u{1b}[K", target.copied().records));
        if page.is_end {
            break;
        }
    }
    add_all(source, target, causes.finish())?;
    target.finish()?;
    Ok(Some(target.copied()))
}

fn add_all(
    source: &mut JournalReader,
    target: &mut Appending,
    records: Vec<(usize, Record)>,
) -> anyhow::Result<()> {
    for (index, record) in records {
        let at = format_position(source.partition(index), record.position);
        let recording = recording_of(source, &record, &at)?;
        target.add(record, recording)?;
    }
    Ok(())
}

/// The recording of the handler whose end this is.
fn recording_of(
    source: &mut JournalReader,
    record: &Record,
    at: &str,
) -> anyhow::Result<Option<Recording>> {
    let Event::Ended(ended) = &record.event else { return Ok(None) };
    if !matches!(ended.recording, Some(Recorded::Bytes(_))) {
        return Ok(None);
    }
    let (dispatch, attempt) = (ended.dispatch, ended.attempt);
    let body = source.recording(record.entity.as_ref(), dispatch, attempt)?;
    let body = body.ok_or_else(|| Error::Damaged {
        place: format!("position {at}"),
        what: format!("the recording of attempt {attempt} of dispatch {dispatch} is missing"),
    })?;
    Ok(Some(Recording { dispatch, attempt, body: body.into() }))
}

/// Shows progress on a terminal. The copy does not depend on whether it can be written.
fn show(text: &str) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r{text}");
    }
}
