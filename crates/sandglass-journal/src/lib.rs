//! The append-only event log: one small trait, a store in SQLite and one in
//! memory, and the conformance suite that every store passes.
//!
//! It stores decisions, in order and completely, and decides nothing itself.
//!
//! ```text
//! append(batch) --> queue --> writer thread: all that waits, one transaction, one sync --> answers
//! read(from)    --> queue --> reader thread: one bounded page, one snapshot            --> page
//! ```

mod around;
mod batch;
pub mod conformance;
mod entities;
mod error;
mod failing;
mod journals;
mod memory;
mod merged;
mod new_file;
mod page;
mod sqlite;
pub mod store;

use std::fmt;
use std::pin::Pin;

use sandglass_model::{DispatchId, EntityRef, Position};

pub use around::Around;
pub use batch::{
    BATCH_MAX_BYTES, BATCH_MAX_RECORDS, Batch, Expected, LastRecord, PRUNE_MAX_ENTITIES, Positions,
    RECORD_MAX_BYTES, RECORDING_MAX_BYTES, Recording, SNAPSHOT_MAX_BYTES, Snapshot,
};
pub use entities::{
    EntityEntry, REST_MAX_ENTITIES, Rest, Resting, SELECTED_MAX, Select, Selected, SelectedPlace,
};
pub use error::Error;
pub use journals::{Across, Journals};
pub use memory::MemoryJournal;
pub use merged::{Merged, Part, merge};
pub use new_file::NewFile;
pub use page::{
    ByEntity, Entry, OfKinds, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, Page, Place, SEARCHED_MAX,
};
pub use sqlite::{
    APPLICATION_ID, BackedUp, CheckProgress, Checking, Copied, FORMAT, Found, GROUP_MAX_RECORDS,
    GroupSizes, Opened, QUEUE_MAX_BATCHES, QUEUE_MAX_BYTES, Salvage, Settings, SqliteJournal,
    SqliteReader, TornRecord,
};

/// The future result of a call of a [`Journal`].
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future result of a call of a [`Journal`] that can fail.
pub type Answer<'a, T> = Pending<'a, Result<T, Error>>;

/// An append-only log of records, in terms that a shared SQL database can implement: a batch is
/// appended only if the appender knows the last record of its entity.
pub trait Journal: Send + Sync + fmt::Debug {
    /// Appends all records of `batch`, or none. Returns when they are durable.
    ///
    /// Batches that one caller appends one after the other keep their order. If the result is
    /// [`Error::Unavailable`], the batch is not in the journal while this process lives. If the
    /// process ends before the disk works again, the last such batch may come back with the next
    /// opening; only the last one, because each is written over the one before it.
    ///
    /// # Errors
    /// [`Error::Conflict`], [`Error::Invalid`], [`Error::TooLarge`],
    /// [`Error::Unavailable`], [`Error::Damaged`], [`Error::Disowned`] or [`Error::Closed`].
    fn append(&self, batch: Batch) -> Answer<'_, Positions>;

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) from `from` on.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Damaged`] or [`Error::Closed`].
    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page>;

    /// Up to `limit` entries of one entity from `from` on. Missing records do not show here.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page>;

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) from `from` on whose records are of one
    /// of these [kinds](sandglass_model::Event::KINDS). Other records are neither decoded nor
    /// verified, so passing over them costs little. One call searches at most [`SEARCHED_MAX`]
    /// positions. Missing records do not show here.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds>;

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) behind `after`: first those that are
    /// about no entity, then those of each entity together, in the order of the names; from the
    /// first one on if `after` is `None`. Missing records do not show here.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity>;

    /// The entity of `dispatch`, and the position of its first
    /// [`Dispatched`](sandglass_model::Dispatched) record; `None` if there is no such dispatch.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>>;

    /// The last snapshot of `entity`; `None` if it has no intact one. The records contain
    /// everything that a snapshot does.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>>;

    /// The recording of an attempt; `None` if there is none.
    ///
    /// # Errors
    /// As [`Journal::read`]; [`Error::Damaged`] if it is not as it was appended.
    fn recording(&self, dispatch: DispatchId, attempt: u32) -> Answer<'_, Option<Vec<u8>>>;

    /// Removes all records of these entities, at most [`PRUNE_MAX_ENTITIES`], with their recordings
    /// and snapshots, and returns how many records each had. An entity whose last record is not the
    /// one given here is skipped. Each entity is removed completely or not at all: if some were removed
    /// before an error, the others count as skipped. The positions are not used again.
    ///
    /// The caller decides which entities may be removed.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Unavailable`], [`Error::Damaged`] or [`Error::Closed`].
    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Answer<'_, Vec<u64>>;

    /// What is known of `entity` without reading its records; `None` if it has none.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>>;

    /// Notes how entities rest, at most [`REST_MAX_ENTITIES`]. One whose last record is not the
    /// given one is skipped, because it is awake again. The next append to an entity clears its
    /// rest. A note that is lost does no harm: its entity counts as awake.
    ///
    /// # Errors
    /// [`Error::TooLarge`], [`Error::Unavailable`], [`Error::Damaged`] or [`Error::Closed`].
    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()>;

    /// Up to `limit` entities (at most [`SELECTED_MAX`]) behind `after`; from the first one on if
    /// `after` is `None`. An entity that falls asleep or wakes between two pages can be in both, or
    /// in neither.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected>;

    /// The position of the last record, even if it was pruned; 0 if there was none.
    ///
    /// # Errors
    /// As [`Journal::read`].
    fn last(&self) -> Answer<'_, Position>;

    /// Whether appends work, judging by the last one, and whether the journal is intact as far as it
    /// was checked.
    fn health(&self) -> Health;

    /// Finishes the calls before this one, and releases all resources. Later calls return
    /// [`Error::Closed`].
    fn close(&self) -> Pending<'_, ()>;
}

/// Whether appends work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Appends work.
    Working,
    /// The last one failed, and the next one may work again; or the journal was found to be damaged.
    Failing {
        /// Why.
        what: String,
    },
    /// Another host owns it, or its store lost records that were acknowledged: nothing is appended
    /// here again.
    Disowned {
        /// Why, and what to do.
        what: String,
    },
    /// The journal is closed.
    Closed,
}
