//! One record as a row: its columns, its checksum, and back.

use rusqlite::{CachedStatement, params};
use sandglass_model::{EntityRef, Position, Record, Sequence, WallTime};

use super::fault;
use crate::batch::Line;
use crate::store::decode_event;
pub(super) use crate::store::{CHECKSUM_BYTES, checksum};
use crate::{Entry, RECORD_MAX_BYTES};

/// The columns that [`decode`] reads. A body that is larger than any journal writes is not even
/// loaded.
pub(super) fn columns() -> String {
    format!(
        "position, batch, at_ms, entity_type, entity_id, sequence, kind, \
         iif(octet_length(body) <= {RECORD_MAX_BYTES}, body, NULL), checksum"
    )
}

/// Inserts a row with the columns of [`Row`], in order.
pub(super) const INSERT: &str = "INSERT INTO records \
    (position, batch, at_ms, entity_type, entity_id, sequence, kind, body, checksum) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

/// A record, as it is stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub(super) position: i64,
    pub(super) batch: i64,
    pub(super) at_ms: i64,
    pub(super) entity: Option<(&'a str, &'a str)>,
    pub(super) sequence: i64,
    pub(super) kind: &'a str,
    pub(super) body: &'a str,
}

impl<'a> Row<'a> {
    /// The row of `line` at `position`; `None` if a number is out of the range of SQL.
    pub(super) fn new(
        (position, batch): (i64, i64),
        at: WallTime,
        entity: Option<&'a EntityRef>,
        line: &'a Line,
    ) -> Option<Self> {
        Some(Self {
            position,
            batch,
            at_ms: at.as_millis(),
            entity: entity.map(|entity| (entity.entity_type(), entity.id())),
            sequence: i64::try_from(line.sequence.0).ok()?,
            kind: line.kind,
            body: &line.body,
        })
    }

    pub(super) fn insert(&self, statement: &mut CachedStatement<'_>) -> rusqlite::Result<()> {
        let (entity_type, entity_id) = self.entity.unzip();
        statement.execute(params![
            self.position,
            self.batch,
            self.at_ms,
            entity_type,
            entity_id,
            self.sequence,
            self.kind,
            self.body,
            self.checksum(),
        ])?;
        Ok(())
    }

    /// SHA-256 over every column, each text preceded by its length, so that no two rows have the
    /// same input. Checksums are not chained, so any part of the journal can be checked alone; a
    /// missing row shows as a missing position.
    fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        let numbers = [self.position, self.batch, self.at_ms, self.sequence];
        let flags = [u8::from(self.entity.is_some())];
        let (entity_type, entity_id) = self.entity.unwrap_or_default();
        let texts = [entity_type, entity_id, self.kind, self.body].map(str::as_bytes);
        checksum("sandglass journal 1", &numbers, &flags, &texts)
    }

    fn record(&self) -> Result<Record, String> {
        let unsigned = |what, value: i64| {
            u64::try_from(value).map_err(|_| format!("its {what} {value} is negative"))
        };
        let event = decode_event(self.kind, self.body)?;
        let entity = self.entity.map(|(entity_type, id)| EntityRef::new(entity_type, id));
        let entity = entity.transpose().map_err(|error| fault::shown(&error))?;
        Ok(Record {
            position: Position(unsigned("position", self.position)?),
            at: WallTime::from_millis(self.at_ms),
            entity,
            sequence: Sequence(unsigned("sequence", self.sequence)?),
            event,
        })
    }
}

/// A decoded row.
#[derive(Debug)]
pub(super) struct Decoded {
    pub(super) entry: Entry,
    /// The size of its body, in bytes.
    pub(super) bytes: usize,
}

/// Reads [`columns`] at `position`, the row's key.
pub(super) fn decode(row: &rusqlite::Row<'_>) -> rusqlite::Result<Decoded> {
    let position: i64 = row.get(0)?;
    let place = Position(u64::try_from(position).unwrap_or(0));
    let mut bytes = 0;
    let mut read = || -> Result<Record, String> {
        let entity_type = optional_text(row, 3)?;
        let entity_id = optional_text(row, 4)?;
        let body = text(row, 7)?;
        bytes = body.len();
        let row_read = Row {
            position,
            batch: number(row, 1)?,
            at_ms: number(row, 2)?,
            entity: entity_type.zip(entity_id),
            sequence: number(row, 5)?,
            kind: text(row, 6)?,
            body,
        };
        let checksum = row.get_ref(8).ok().and_then(|value| value.as_blob().ok());
        if checksum != Some(&row_read.checksum()[..]) {
            return Err("its checksum does not match".to_owned());
        }
        row_read.record()
    };
    let entry = match read() {
        Ok(record) => Entry::Record(record),
        Err(what) => Entry::Damaged { position: place, what },
    };
    Ok(Decoded { entry, bytes })
}

fn number(row: &rusqlite::Row<'_>, column: usize) -> Result<i64, String> {
    row.get(column).map_err(|_| format!("its {} is no number", name(row, column)))
}

fn text<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> Result<&'a str, String> {
    optional_text(row, column)?.ok_or_else(|| format!("its {} is missing", name(row, column)))
}

fn optional_text<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> Result<Option<&'a str>, String> {
    let value = row.get_ref(column).ok();
    let text = value.and_then(|value| value.as_str_or_null().ok());
    text.ok_or_else(|| format!("its {} is no text", name(row, column)))
}

fn name(row: &rusqlite::Row<'_>, column: usize) -> String {
    let name = row.as_ref().column_name(column).unwrap_or("column");
    if name.starts_with("iif") { "body".to_owned() } else { name.to_owned() }
}
