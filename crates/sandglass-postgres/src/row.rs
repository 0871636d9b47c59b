//! One record as a row: its columns, its checksum, and back.

use sandglass_journal::store::{CHECKSUM_BYTES, Line, checksum, decode_event, printable};
use sandglass_journal::{Entry, RECORD_MAX_BYTES};
use sandglass_model::{DispatchId, EntityRef, Partition, Position, Record, Sequence, WallTime};
use tokio_postgres::Row;

/// A record, as it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    pub(crate) partition: Partition,
    pub(crate) position: i64,
    pub(crate) batch: i64,
    pub(crate) epoch: i64,
    pub(crate) at_ms: i64,
    /// The position of the entity's first record, and its name.
    pub(crate) entity: Option<(i64, &'a str, &'a str)>,
    pub(crate) sequence: i64,
    pub(crate) kind: &'a str,
    pub(crate) dispatch: Option<i64>,
    pub(crate) body: &'a str,
}

impl Stored<'_> {
    /// Over every column, and the entity's name, which is in another table.
    pub(crate) fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        let (entity, of_type, id) = self.entity.unwrap_or_default();
        let numbers = [
            self.partition.number().into(),
            self.position,
            self.batch,
            self.epoch,
            self.at_ms,
            entity,
            self.sequence,
            self.dispatch.unwrap_or_default(),
        ];
        let flags = [u8::from(self.entity.is_some()), u8::from(self.dispatch.is_some())];
        let texts = [of_type, id, self.kind, self.body].map(str::as_bytes);
        checksum("sandglass shared record 1", &numbers, &flags, &texts)
    }

    fn record(&self) -> Result<Record, String> {
        let unsigned = |what, value: i64| {
            u64::try_from(value).map_err(|_| format!("its {what} {value} is negative"))
        };
        let event = decode_event(self.kind, self.body)?;
        let entity = self.entity.map(|(_, entity_type, id)| EntityRef::new(entity_type, id));
        Ok(Record {
            position: Position(unsigned("position", self.position)?),
            at: WallTime::from_millis(self.at_ms),
            entity: entity.transpose().map_err(|error| printable(&error))?,
            sequence: Sequence(unsigned("sequence", self.sequence)?),
            event,
        })
    }
}

/// The column `dispatch` of a record: the half of the id that begins with the time.
pub(crate) fn dispatch_key(dispatch: DispatchId) -> i64 {
    let mut half = [0; 8];
    half.copy_from_slice(&dispatch.as_bytes()[8..]);
    i64::from_be_bytes(half)
}

/// The checksum of a row that is about positions of a partition.
pub(crate) fn checksum_of(
    prefix: &str,
    partition: Partition,
    numbers: [i64; 2],
    texts: &[&[u8]],
) -> [u8; CHECKSUM_BYTES] {
    let [first, second] = numbers;
    checksum(prefix, &[partition.number().into(), first, second], &[], texts)
}

/// A position as SQL stores it.
pub(crate) fn key(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}

/// A position that SQL stores.
pub(crate) fn position(key: i64) -> Position {
    Position(u64::try_from(key).unwrap_or_default())
}

/// The sequence of a line as SQL stores it.
pub(crate) fn sequence(line: &Line) -> Option<i64> {
    i64::try_from(line.sequence.0).ok()
}

/// Reads the row at position `at`, of the columns that [`crate::page`] selects.
pub(crate) fn decode(partition: Partition, row: &Row, at: i64) -> Entry {
    match decode_whole(partition, row, at) {
        Ok(record) => Entry::Record(record),
        Err(what) => Entry::Damaged { position: position(at), what },
    }
}

fn decode_whole(partition: Partition, row: &Row, at: i64) -> Result<Record, String> {
    let unreadable = |column: &str| format!("its {column} cannot be read");
    let number = |name: &'static str| row.try_get::<_, i64>(name).map_err(|_| unreadable(name));
    let text = |name: &'static str| row.try_get::<_, &str>(name).map_err(|_| unreadable(name));
    let entity: Option<i64> = row.try_get("entity").map_err(|_| unreadable("entity"))?;
    let entity = match entity {
        Some(key) => {
            let name = text("type").and_then(|of_type| Ok((key, of_type, text("id")?)));
            Some(name.map_err(|_| "its entity is missing in the table of entities".to_owned())?)
        }
        None => None,
    };
    let body: Option<&str> = row.try_get("body").map_err(|_| unreadable("body"))?;
    let stored = Stored {
        partition,
        position: at,
        batch: number("batch")?,
        epoch: number("epoch")?,
        at_ms: number("at_ms")?,
        entity,
        sequence: number("sequence")?,
        kind: text("kind")?,
        dispatch: row.try_get("dispatch").map_err(|_| unreadable("dispatch"))?,
        body: body.ok_or_else(|| format!("its body is larger than {RECORD_MAX_BYTES} bytes"))?,
    };
    if row.try_get::<_, &[u8]>("checksum").ok() != Some(&stored.checksum()[..]) {
        return Err("its checksum does not match".to_owned());
    }
    stored.record()
}

/// The partition in the first column; `None` if there is none of its number.
pub(crate) fn partition_of(row: &Row) -> Option<Partition> {
    let number: i16 = row.try_get(0).ok()?;
    u8::try_from(number).ok().and_then(Partition::new)
}

/// The types and the ids of entities, as statements have them.
pub(crate) fn names<'a>(
    entities: impl Iterator<Item = &'a EntityRef>,
) -> (Vec<&'a str>, Vec<&'a str>) {
    entities.map(|entity| (entity.entity_type(), entity.id())).unzip()
}
