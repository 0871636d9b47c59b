//! Opens and reads the journal of a command, and reports what is damaged or missing.

use std::path::Path;

use sandglass_journal::{Entry, Error, Found, Opened, Settings, SqliteJournal};
use sandglass_liveness::fold::Unfit;
use sandglass_model::{Event, Position, Record};

use crate::exit::Exit;
use crate::journal_place::Place;
use crate::journal_reader::{Located, Pages};
use crate::terminal::{note, report_progress};

/// Opens the journal at `path` for writing, and creates it if there is none. Blocks while it is read.
///
/// # Errors
/// As [`SqliteJournal::open`].
pub(crate) fn open(path: &Path) -> Result<SqliteJournal, Error> {
    let Opened { journal, recovered } = SqliteJournal::open(path, Settings::default())?;
    for torn in recovered {
        report_progress(&format!(
            "recovered the journal: position {}: {}",
            torn.position, torn.what
        ));
    }
    Ok(journal)
}

/// Calls `visit` with each record of the journal at `place`, in order, and with `None` for each gap of
/// records that cannot be read. Reports gaps on standard error. Returns the exit code of a command
/// that only reads.
///
/// # Errors
/// As [`Pages::open`] and [`Pages::page`].
pub(crate) fn read(place: &Place, visit: impl FnMut(Option<&Record>)) -> anyhow::Result<Exit> {
    let exit = read_silently(place, visit)?;
    if exit != Exit::Ok {
        note("some of the journal is damaged or missing; `sandglass log` shows where");
    }
    Ok(exit)
}

/// Folds the records of the journal at `place`, and reports how many do not follow from those before
/// them.
///
/// # Errors
/// As [`read`].
pub(crate) fn fold_records(
    place: &Place,
    mut fold: impl FnMut(&Record) -> Result<(), Unfit>,
) -> anyhow::Result<Exit> {
    let (mut unfit, mut unknown) = (0_u64, None);
    let exit = read(place, |record| {
        let Some(Err(error)) = record.map(&mut fold) else { return };
        unfit += 1;
        if let Unfit::UnknownRules { .. } = error {
            unknown.get_or_insert(error);
        }
    })?;
    if let Some(error) = unknown {
        note(&error.to_string());
    }
    if unfit > 0 {
        note(&format!("{unfit} of its records do not follow from those before them"));
    }
    Ok(exit)
}

/// Rejects a spec whose rules this build does not know, because everything after it would seem to
/// diverge.
///
/// # Errors
/// [`Unfit::UnknownRules`].
pub(crate) fn check_rules(record: &Record) -> Result<(), Unfit> {
    match record.event {
        Event::SpecRegistered { digest, rules, .. } if !rules.is_known() => {
            Err(Unfit::UnknownRules { digest, rules })
        }
        _ => Ok(()),
    }
}

/// As [`read`], but without a report, for a journal that was read before.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_silently(
    place: &Place,
    mut visit: impl FnMut(Option<&Record>),
) -> anyhow::Result<Exit> {
    let mut pages = Pages::open(place, None, Position(1))?;
    let (mut records, mut gaps) = (0, 0);
    while let Some(page) = pages.page()? {
        for Located { found, .. } in &page {
            if let Found::Entry(Entry::Record(record)) = found {
                records += 1;
                visit(Some(record));
            } else if found.is_gap() {
                gaps += 1;
                visit(None);
            }
        }
    }
    Ok(Exit::of_reading(records, gaps))
}
