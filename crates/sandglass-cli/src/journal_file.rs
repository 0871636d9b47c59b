//! The journal of a command: opened to be written, or read through; what is not whole is told.

use std::path::Path;

use sandglass_journal::{Entry, Error, Found, Opened, Salvage, Settings, SqliteJournal};
use sandglass_liveness::fold::Unfit;
use sandglass_model::{Event, Position, Record};

use crate::exit::Exit;
use crate::terminal::{note, report_progress};

/// Opens the journal at `path` for writing, or makes one. Blocks while it is read.
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

/// Has `see` see each record of the journal at `path` that can be read, in their order, and
/// none where there are some that can't; answers how a command ends that did no more: well,
/// where all could be.
///
/// # Errors
/// As [`Salvage::open`] and [`Salvage::page`].
pub(crate) fn read(path: &Path, see: impl FnMut(Option<&Record>)) -> Result<Exit, Error> {
    let exit = read_again(path, see)?;
    if exit != Exit::Ok {
        note("some of the journal is damaged or missing; `sandglass log` says what");
    }
    Ok(exit)
}

/// The same, folded by `fold`; how many records don't fit the ones before them is told.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_folded(
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
        note(&format!("{unfit} of its records don't fit the ones before them"));
    }
    Ok(exit)
}

/// Refuses a spec whose rules this build does not know: all that follows would seem to diverge.
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

/// The same as [`read`], of a journal of which all that is wrong has been told.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_again(path: &Path, mut see: impl FnMut(Option<&Record>)) -> Result<Exit, Error> {
    let mut salvage = Salvage::open(path, None, Position(1))?;
    let (mut records, mut gaps) = (0, 0);
    while let Some(page) = salvage.page()? {
        for found in &page {
            if let Found::Entry(Entry::Record(record)) = found {
                records += 1;
                see(Some(record));
            } else if found.is_gap() {
                gaps += 1;
                see(None);
            }
        }
    }
    Ok(Exit::of_reading(records, gaps))
}
