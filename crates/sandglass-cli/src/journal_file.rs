//! Opens and reads the journal of a command, and reports what is damaged or missing.

use std::path::Path;

use sandglass_journal::{Entry, Error, Found, Opened, Salvage, Settings, SqliteJournal};
use sandglass_liveness::fold::Unfit;
use sandglass_model::{Event, Position, Record};

use crate::exit::Exit;
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

/// Calls `visit` with each record of the journal at `path`, in order, and with `None` for each gap of
/// records that cannot be read. Reports gaps on standard error. Returns the exit code of a command
/// that only reads.
///
/// # Errors
/// As [`Salvage::open`] and [`Salvage::page`].
pub(crate) fn read(path: &Path, visit: impl FnMut(Option<&Record>)) -> Result<Exit, Error> {
    let exit = read_silently(path, visit)?;
    if exit != Exit::Ok {
        note("some of the journal is damaged or missing; `sandglass log` shows where");
    }
    Ok(exit)
}

/// Folds the records of the journal at `path`, and reports how many do not follow from those before
/// them.
///
/// # Errors
/// As [`read`].
pub(crate) fn fold_records(
    path: &Path,
    mut fold: impl FnMut(&Record) -> Result<(), Unfit>,
) -> Result<Exit, Error> {
    let (mut unfit, mut unknown) = (0_u64, None);
    let exit = read(path, |record| {
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
    path: &Path,
    mut visit: impl FnMut(Option<&Record>),
) -> Result<Exit, Error> {
    let mut salvage = Salvage::open(path, None, Position(1))?;
    let (mut records, mut gaps) = (0, 0);
    while let Some(page) = salvage.page()? {
        for found in &page {
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
