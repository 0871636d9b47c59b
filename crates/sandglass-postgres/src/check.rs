//! Checks everything in a database that it contains, page by page and while it is written: that each row
//! is as it was written, and that the tables fit each other.

mod blobs;
mod rows;

use sandglass_journal::{Across as _, Entry, Error, PAGE_MAX_ENTRIES};
use sandglass_model::{Cursor, Event, Partition, Position, Record, Recorded};
use tokio_postgres::types::Type;

use self::blobs::Blobs;
use self::rows::Place;
use crate::database::Database;
use crate::link::Parameter;
use crate::membership::RowFlaw;
use crate::row::{key, partition_of, position};

/// Something in a database that cannot have been written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The table, in the schema `sandglass`.
    pub table: &'static str,
    /// The partition; `None` if it is not known, or the row is of none.
    pub partition: Option<Partition>,
    /// The position; of an entity, that of its first record. `None` if the row has none.
    pub position: Option<Position>,
    /// What is wrong, in one line.
    pub what: String,
}

/// A part of the work of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckedPage {
    /// The table that was read, in the schema `sandglass`.
    pub table: &'static str,
    /// How many of its rows were read.
    pub rows: u64,
    /// What is wrong with them: at most a few for each row.
    pub flaws: Vec<Flaw>,
}

/// A check of all tables up to the records that were there when it began. Nothing is changed.
#[derive(Debug)]
pub struct Check {
    database: Database,
    stage: Stage,
}

/// The table that is read next, and behind what.
#[derive(Clone, Debug)]
enum Stage {
    Partitions,
    Records { after: Cursor, end: Cursor },
    Pruned(Place),
    Entities(Place),
    Snapshots(Place),
    Recordings(Place),
    Blobs(Box<Blobs>),
    Done,
}

impl Database {
    /// Begins to check everything: that the rows of each table are as they were written, that no record
    /// is missing, that the table of entities matches the records, and that recordings have their bytes
    /// and records. It takes about as long as reading the whole database.
    #[must_use]
    pub fn check(&self) -> Check {
        Check { database: self.clone(), stage: Stage::Partitions }
    }
}

impl Check {
    /// Checks some more rows, in some milliseconds and with at most some MiB of memory; `None` if
    /// everything was checked. After an error, the next call tries the same again.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Damaged`] if a column has another type than the schema's.
    pub async fn next(&mut self) -> Result<Option<CheckedPage>, Error> {
        let (database, stage) = (self.database.clone(), self.stage.clone());
        let work = async move { database.check_page(stage).await };
        let (page, next) = self.database.run(work).await?;
        self.stage = next;
        Ok(page)
    }
}

impl Database {
    async fn check_page(&self, stage: Stage) -> Result<(Option<CheckedPage>, Stage), Error> {
        let reader = self.reader();
        // Each stage ends with a page without rows.
        let (page, next) = match stage {
            Stage::Partitions => {
                let end = self.end().await?;
                let after = Cursor::start(usize::from(Partition::COUNT));
                let mut page = rows::partitions(reader).await?;
                let flaws = self.membership_flaws().await?.into_iter();
                page.flaws.extend(flaws.map(|RowFlaw { table, what }| Flaw {
                    table,
                    partition: None,
                    position: None,
                    what,
                }));
                (page, Stage::Records { after, end })
            }
            Stage::Records { after, end } => {
                let (mut page, after, is_end) = self.check_records(after).await?;
                if is_end {
                    // A failover during the check may have lost records that were there when it
                    // began, so `end` may never be reached.
                    page.flaws.extend(find_lost(&after, &end));
                }
                let is_behind = |it: Partition| after.at(it.index()) < end.at(it.index());
                let is_done = is_end || !Partition::all().any(is_behind);
                let next = Stage::Records { after, end };
                (page, if is_done { Stage::Pruned(Place::FIRST) } else { next })
            }
            Stage::Pruned(after) => {
                let (page, next) = rows::pruned(reader, after).await?;
                (page, next.map_or(Stage::Entities(Place::FIRST), Stage::Pruned))
            }
            Stage::Entities(after) => {
                let (page, next) = rows::entities(reader, after).await?;
                (page, next.map_or(Stage::Snapshots(Place::FIRST), Stage::Entities))
            }
            Stage::Snapshots(after) => {
                let (page, next) = rows::snapshots(reader, after).await?;
                (page, next.map_or(Stage::Recordings(Place::FIRST), Stage::Snapshots))
            }
            Stage::Recordings(after) => {
                let (page, next) = rows::recordings(reader, after).await?;
                (page, next.map_or_else(|| Stage::Blobs(Box::default()), Stage::Recordings))
            }
            Stage::Blobs(blobs) => {
                let (page, next) = blobs.next(reader).await?;
                (page, next.map_or(Stage::Done, |blobs| Stage::Blobs(Box::new(blobs))))
            }
            Stage::Done => return Ok((None, Stage::Done)),
        };
        Ok((Some(page), next))
    }

    /// Checks records, and that each recording that they state is there; returns behind what to
    /// continue, and whether that is the present end.
    async fn check_records(&self, after: Cursor) -> Result<(CheckedPage, Cursor, bool), Error> {
        let found = self.read_behind(after, None, PAGE_MAX_ENTRIES).await?;
        let mut page = CheckedPage { table: "records", ..CheckedPage::default() };
        let mut recorded = Vec::new();
        for (index, entry) in &found.entries {
            let partition = u8::try_from(*index).ok().and_then(Partition::new);
            if let Entry::Record(record) = entry {
                page.rows += 1;
                recorded.extend(partition.filter(|_| is_recorded(record)).zip(Some(record)));
            }
            page.flaws.extend(entry.damage().map(|what| Flaw {
                table: "records",
                partition,
                position: Some(entry.position()),
                what,
            }));
        }
        if !recorded.is_empty() {
            self.find_unrecorded(&recorded, &mut page.flaws).await?;
        }
        Ok((page, found.next, found.is_end))
    }

    /// The records among these, which state a recording, that have none. A record that was pruned
    /// meanwhile is not among them.
    async fn find_unrecorded(
        &self,
        recorded: &[(Partition, &Record)],
        flaws: &mut Vec<Flaw>,
    ) -> Result<(), Error> {
        let sql = "SELECT partition, position \
             FROM unnest($1::smallint[], $2::bigint[]) AS w(partition, position) \
             JOIN sandglass.records r USING (partition, position) \
             WHERE NOT EXISTS (SELECT 1 FROM sandglass.recordings n \
               WHERE n.partition = w.partition AND n.position = w.position)";
        let numbers: Vec<i16> = recorded.iter().map(|(it, _)| it.number().into()).collect();
        let positions: Vec<i64> = recorded.iter().map(|(_, it)| key(it.position)).collect();
        let parameters: [Parameter<'_>; 2] =
            [(&numbers, Type::INT2_ARRAY), (&positions, Type::INT8_ARRAY)];
        for row in &self.reader().query(sql, &parameters).await? {
            let at = row.try_get(1).map_err(|error| self.reader().unreadable(error))?;
            flaws.push(Flaw {
                table: "recordings",
                partition: partition_of(row),
                position: Some(position(at)),
                what: "the recording of the handler that ended here is missing".to_owned(),
            });
        }
        Ok(())
    }
}

/// The records behind `after` that were there when the check began and are gone, if `after` is the
/// present end: one flaw for each partition.
fn find_lost(after: &Cursor, end: &Cursor) -> impl Iterator<Item = Flaw> {
    Partition::all().filter_map(move |partition| {
        let (last, end) = (after.at(partition.index()), end.at(partition.index()));
        let first = Position(last.0.saturating_add(1));
        let missing = Entry::Missing { first, last: end };
        let what = missing.damage().filter(|_| last < end)?;
        let what = format!("{what}; it was there when the check began");
        Some(Flaw { table: "records", partition: Some(partition), position: Some(first), what })
    })
}

fn is_recorded(record: &Record) -> bool {
    let Event::Ended(ended) = &record.event else { return false };
    matches!(ended.recording, Some(Recorded::Bytes(_)))
}
