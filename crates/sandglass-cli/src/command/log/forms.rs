//! Follows the records of a journal in the format of another system. Records of other kinds are
//! passed over, and what a form needs besides its record is looked up, so that following a busy
//! journal takes little time and memory.

use sandglass_insight::projection::{Context, Needs, Projected, Projection, Shape};
use sandglass_liveness::Fold;
use sandglass_model::{DispatchId, EntityRef, Event, Position, Record};

use super::{Arguments, is_interrupted_before_next};
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::journal_reader::{JournalReader, format_position};
use crate::terminal::{Output, note};

/// Prints the form of each record in `shape`, and then those of new records, until Ctrl-C.
pub(super) async fn follow(
    arguments: &Arguments,
    shape: Shape,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Exit> {
    let mut reader = JournalReader::open(&arguments.place())?;
    let output = Output::new();
    let mut after = reader.start();
    loop {
        let page = reader.read_kinds(shape.kinds(), &after)?;
        after = page.next;
        for (index, entry) in page.entries {
            let position = format_position(reader.partition(index), entry.position());
            let form = entry.into_record().map_err(anyhow::Error::from).and_then(|record| {
                let is_wanted = arguments.entity.is_none() || record.entity == arguments.entity;
                if is_wanted { project(&mut reader, shape, &record) } else { Ok(None) }
            });
            match form {
                Ok(Some(form)) => output.json(&form)?,
                Ok(None) => {}
                // The others can be printed nevertheless.
                Err(error) => note(&format!("record {position} has no form: {error:#}")),
            }
        }
        if is_interrupted_before_next(interrupts, page.is_end).await {
            return Ok(Exit::Cancelled);
        }
    }
}

fn project(
    reader: &mut JournalReader,
    shape: Shape,
    record: &Record,
) -> anyhow::Result<Option<Projected>> {
    match (shape.needs(&record.event), &record.entity) {
        (None, _) | (_, None) => Ok(None),
        (Some(Needs::Nothing), _) => Ok(shape.project(record, Context::default())),
        (Some(Needs::Integration(dispatch)), _) => {
            let integration = integration_of(reader, dispatch)?;
            let integration = integration.as_deref();
            Ok(shape.project(record, Context { integration, ..Context::default() }))
        }
        (Some(Needs::Entity), Some(name)) => {
            let before = fold_before(reader, name, record.position)?;
            Ok(Projection::behind(shape, before).feed(record)?)
        }
    }
}

fn integration_of(
    reader: &mut JournalReader,
    dispatch: DispatchId,
) -> anyhow::Result<Option<String>> {
    Ok(match reader.first_of(dispatch)?.map(|record| record.event) {
        Some(Event::Dispatched(dispatched)) => Some(dispatched.integration),
        _ => None,
    })
}

/// The specs of the journal, and the entity as its records before `before` make it.
fn fold_before(
    reader: &mut JournalReader,
    name: &EntityRef,
    before: Position,
) -> anyhow::Result<Fold> {
    let mut fold = Fold::new();
    for spec in reader.specs_of(name)? {
        fold.apply(&spec)?;
    }
    let mut next = Some(Position(1));
    while let Some(from) = next {
        let page = reader.read_entity(name, from)?;
        next = page.next;
        for entry in page.entries {
            let record = entry.into_record()?;
            if record.position >= before {
                return Ok(fold);
            }
            fold.apply(&record)?;
        }
    }
    Ok(fold)
}
