//! The append-only event log: one small trait, a store in SQLite and one in
//! memory, and the conformance suite that every store passes.
//!
//! It keeps what was decided, in order and whole, and decides nothing itself.
//!
//! ```text
//! append(batch) --> queue --> writer thread: all that waits, one transaction, one sync --> answers
//! read(from)    --> queue --> reader thread: one bounded page, one snapshot            --> page
//! ```

mod around;
mod batch;
pub mod conformance;
mod error;
mod memory;
mod new_file;
mod page;
mod sqlite;

use std::fmt;
use std::pin::Pin;

use sandglass_model::{DispatchId, EntityRef, Position};

pub use around::Around;
pub use batch::{
    BATCH_MAX_BYTES, BATCH_MAX_RECORDS, Batch, Expected, PRUNE_MAX_ENTITIES, Positions,
    RECORD_MAX_BYTES, RECORDING_MAX_BYTES, Recording, SNAPSHOT_MAX_BYTES, Snapshot,
};
pub use error::Error;
pub use memory::MemoryJournal;
pub use new_file::NewFile;
pub use page::{ByEntity, Entry, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, Page, Place};
pub use sqlite::{
    APPLICATION_ID, BackedUp, Copied, FORMAT, Found, GROUP_MAX_RECORDS, GroupSizes, Opened,
    QUEUE_MAX_BATCHES, QUEUE_MAX_BYTES, Salvage, Settings, SqliteJournal, SqliteReader, TornRecord,
};

/// What a [`Journal`] answers later.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An append-only log of records, in terms that a shared SQL database can keep:
/// an entity moves on only from where the appender believes it to be.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends all records of `batch`, or none. Answered when they are durable.
    ///
    /// Batches that one caller appends one after the other keep their order. A
    /// batch answered with [`Error::Unavailable`] isn't in the journal while
    /// this process lives; where the process ends before the disk works again,
    /// it may still come back with the next opening: the last of such batches alone, since
    /// each is written where the one before it was.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::Invalid`], [`Error::TooLarge`],
    /// [`Error::Unavailable`], [`Error::Damaged`] or [`Error::Closed`].
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>>;

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) from `from` on.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Damaged`] or [`Error::Closed`].
    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>>;

    /// The same, of one entity alone. A record that is missing can't be seen here.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>>;

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) behind `after`: first those
    /// about no entity, then each entity's together, by the entities' names; from the
    /// first on where there is no `after`. A record that is missing can't be seen here.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>>;

    /// The entity that asked for `dispatch`, and the position of its first
    /// [`Dispatched`](sandglass_model::Dispatched) record; none where nobody did.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>>;

    /// The last snapshot of `entity` that was appended; none where there is none that is
    /// as it was appended: what it says is in the records, too.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn snapshot(&self, entity: EntityRef) -> Pending<'_, Result<Option<Snapshot>, Error>>;

    /// What was recorded of a run; none where nothing was.
    ///
    /// # Errors
    /// As [`Journal::read`]; [`Error::Damaged`] where it isn't as it was appended.
    fn recording(
        &self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Pending<'_, Result<Option<Vec<u8>>, Error>>;

    /// Removes all records of these entities, at most [`PRUNE_MAX_ENTITIES`], with their
    /// recordings and snapshots: of each where its last record is the one named here, else
    /// nothing of it. All of that at once, or nothing. Answers how many records of each there
    /// were. Their places stay empty, and what is appended later doesn't take them.
    ///
    /// Whether an entity may go is for the caller to know.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Unavailable`], [`Error::Damaged`] or [`Error::Closed`].
    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Pending<'_, Result<Vec<u64>, Error>>;

    /// The position of the last record, also where it was pruned; 0 where there was none.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn last(&self) -> Pending<'_, Result<Position, Error>>;

    /// Whether appends work, as far as the last one tells.
    fn health(&self) -> Health;

    /// Finishes what was asked for before, and lets go of all that it holds.
    /// What is asked for afterwards is answered with [`Error::Closed`].
    fn close(&self) -> Pending<'_, ()>;
}

/// Whether appends work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// They do.
    Working,
    /// The last one failed; the next one may work again.
    Failing {
        /// Why.
        what: String,
    },
    /// The journal is closed.
    Closed,
}
