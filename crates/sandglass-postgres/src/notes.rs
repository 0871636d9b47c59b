//! Notes of how entities rest. They are not urgent, so those of all partitions wait for each
//! other and for appends, and one statement writes them: a note that names an entity's last record is
//! as right later as now, and the statement skips one whose entity has a later record.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sandglass_journal::{Error, REST_MAX_ENTITIES, Resting};
use sandglass_model::{Clock as _, EntityRef, Monotonic, Partition, SystemClock, WallTime};
use tokio::sync::oneshot;
use tokio_postgres::types::Type;

use crate::entities::rest_checksum;
use crate::fault::{Fate, Fault};
use crate::heads::Known;
use crate::link::Parameter;
use crate::requests::NoteRest;
use crate::row::{key, names, partition_of};
use crate::shared::Shared;
use crate::writer::Writer;

/// How long notes wait for further requests if the writer has nothing else to do: the calls for all
/// partitions arrive within this time.
pub(crate) const IDLE: Duration = Duration::from_millis(5);
/// How long notes wait while appends keep coming, and after how many batches they are written at the
/// latest. So they add at most a hundredth of a statement to a batch, or ten statements a second.
const WAIT: Duration = Duration::from_millis(100);
const WAIT_BATCHES: usize = 100;

/// How often a statement is sent again that failed.
const ATTEMPTS: u32 = 2;

/// Notes that wait in the writer.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    clock: SystemClock,
    /// When the first of them arrived.
    since: Monotonic,
    /// How many batches were appended since then.
    batches: usize,
    waiting: Waiting,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Of several notes about one entity, the one with the last record, and the latest of those.
    by_entity: BTreeMap<(Partition, EntityRef), Resting>,
    callers: Vec<(Partition, oneshot::Sender<Result<(), Error>>)>,
}

impl Notes {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.callers.is_empty()
    }

    /// Whether no further request is taken before they are written.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.by_entity.len() >= REST_MAX_ENTITIES
            || self.waiting.callers.len() >= REST_MAX_ENTITIES
    }

    pub(crate) fn add(&mut self, note: NoteRest) {
        if self.is_empty() {
            (self.since, self.batches) = (self.clock.now(), 0);
        }
        let NoteRest { partition, entities, answer } = note;
        for resting in entities {
            let entity = (partition, resting.entity.clone());
            let former = self.waiting.by_entity.get(&entity);
            if former.is_none_or(|former| former.last <= resting.last) {
                self.waiting.by_entity.insert(entity, resting);
            }
        }
        self.waiting.callers.push((partition, answer));
    }

    /// Refuses the notes about these partitions, which another process may write from now on.
    pub(crate) fn refuse(&mut self, partitions: &BTreeSet<Partition>, error: Error) {
        self.waiting.answer(partitions, &Err(error));
    }

    /// Counts batches that were appended while notes wait.
    pub(crate) fn count_batches(&mut self, count: usize) {
        self.batches = self.batches.saturating_add(count);
    }

    /// Whether they have waited long enough.
    pub(crate) fn are_due(&self) -> bool {
        let has_waited =
            || self.batches >= WAIT_BATCHES || self.clock.now().since(self.since) >= WAIT;
        !self.is_empty() && (self.is_full() || has_waited())
    }
}

impl Waiting {
    /// Sends `result` to the callers of these partitions, and removes their notes.
    fn answer(&mut self, partitions: &BTreeSet<Partition>, result: &Result<(), Error>) {
        self.by_entity.retain(|(partition, _), _| !partitions.contains(partition));
        for (_, caller) in
            self.callers.extract_if(.., |(partition, _)| partitions.contains(partition))
        {
            // The caller may have gone away.
            let _ = caller.send(result.clone());
        }
    }

    fn partitions(&self) -> BTreeSet<Partition> {
        self.callers.iter().map(|(partition, _)| *partition).collect()
    }

    fn refuse_disowned(&mut self, shared: &Shared) {
        for partition in self.partitions() {
            if let Some(what) = shared.why_disowned(partition) {
                self.answer(&[partition].into(), &Err(Error::Disowned { what }));
            }
        }
    }
}

impl Writer {
    /// Writes all notes that wait, and answers their callers. A partition that was lost fails its own
    /// notes only.
    pub(crate) async fn write_notes(&mut self) {
        let mut waiting = std::mem::take(&mut self.notes.waiting);
        let mut fault = Fault::no_connection();
        for _ in 0..ATTEMPTS {
            waiting.refuse_disowned(&self.shared);
            // They count as skipped, and must not wait for the statement that removes them.
            waiting
                .by_entity
                .retain(|(it, entity), _| !self.shared.being_removed.contains(*it, entity));
            if waiting.callers.is_empty() {
                return;
            }
            match self.note_rests(&waiting).await {
                Ok(written) => {
                    self.remember_rests(&waiting, &written);
                    waiting.answer(&written, &Ok(()));
                    // A new connection takes the others again, and shows whether they are lost.
                    if !waiting.callers.is_empty() {
                        self.link = None;
                        fault.what = "partitions have another owner".to_owned();
                    }
                }
                Err(failed) => {
                    // Sent twice, it does the same.
                    if failed.fate == Fate::Unknown {
                        self.link = None;
                    }
                    fault = failed;
                }
            }
        }
        waiting.refuse_disowned(&self.shared);
        // They may be written nevertheless, and the next append has to clear them then.
        for (partition, entity) in waiting.by_entity.keys() {
            self.recent.remove(*partition, entity);
        }
        waiting.answer(&waiting.partitions(), &Err(fault.unavailable()));
    }

    /// Sends the notes, and returns the partitions that this process owns: their notes are written,
    /// except those whose entities have later records.
    async fn note_rests(&mut self, waiting: &Waiting) -> Result<BTreeSet<Partition>, Fault> {
        let sql = "WITH own AS (SELECT p.partition FROM sandglass.partitions p \
               JOIN unnest($1::smallint[], $2::bigint[]) AS mine(partition, epoch) \
                 ON p.partition = mine.partition AND p.epoch = mine.epoch \
               ORDER BY p.partition FOR SHARE OF p), \
             noted AS (UPDATE sandglass.entities e SET rests_at = n.rests_at, wake_at = n.wake_at, \
               is_listed = n.is_listed, spec = n.spec, due = n.due, checksum = n.checksum \
               FROM own JOIN unnest($3::smallint[], $4::text[], $5::text[], $6::bigint[], \
                 $7::bigint[], $8::boolean[], $9::bytea[], $10::bigint[], $11::bytea[]) \
                 AS n(partition, type, id, rests_at, wake_at, is_listed, spec, due, checksum) \
                 ON n.partition = own.partition \
               WHERE e.partition = n.partition AND e.type = n.type AND e.id = n.id \
               AND n.rests_at = (SELECT max(position) FROM sandglass.records r \
                 WHERE r.partition = e.partition AND r.entity = e.entity)) \
             SELECT partition FROM own";
        // First, because a new connection has new epochs.
        self.connection().await?;
        let own: BTreeSet<Partition> = waiting.partitions();
        let owned: Vec<i16> = own.iter().map(|it| it.number().into()).collect();
        let epoch = |partition| self.heads.get(partition).copied().unwrap_or_default().epoch;
        let epochs: Vec<i64> = own.iter().map(epoch).collect();
        let notes = || waiting.by_entity.iter().map(|((partition, _), note)| (*partition, note));
        let numbers: Vec<i16> = notes().map(|(it, _)| it.number().into()).collect();
        let (types, ids) = names(notes().map(|(_, it)| &it.entity));
        let rests_at: Vec<i64> = notes().map(|(_, it)| key(it.last)).collect();
        let wake_at: Vec<Option<i64>> =
            notes().map(|(_, it)| it.rest.wake_at.map(WallTime::as_millis)).collect();
        let is_listed: Vec<bool> = notes().map(|(_, it)| it.rest.is_listed).collect();
        let spec: Vec<Option<&[u8]>> =
            notes().map(|(_, it)| it.rest.spec.as_ref().map(|spec| &spec.as_bytes()[..])).collect();
        let due: Vec<Option<i64>> = notes().map(|(_, it)| it.rest.due_key()).collect();
        let checksum = |(partition, note): (Partition, &Resting)| {
            rest_checksum(partition, &note.entity, key(note.last), &note.rest).into()
        };
        let checksum: Vec<Vec<u8>> = notes().map(checksum).collect();
        let parameters: [Parameter<'_>; 11] = [
            (&owned, Type::INT2_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&numbers, Type::INT2_ARRAY),
            (&types, Type::TEXT_ARRAY),
            (&ids, Type::TEXT_ARRAY),
            (&rests_at, Type::INT8_ARRAY),
            (&wake_at, Type::INT8_ARRAY),
            (&is_listed, Type::BOOL_ARRAY),
            (&spec, Type::BYTEA_ARRAY),
            (&due, Type::INT8_ARRAY),
            (&checksum, Type::BYTEA_ARRAY),
        ];
        let limit = self.shared.settings.statement_limit;
        let rows = self.connection().await?.query(limit, sql, &parameters).await?;
        Ok(rows.iter().filter_map(partition_of).collect())
    }

    /// Remembers that the entities of these partitions have a note, so that their next append clears
    /// it. Those that were skipped have other last records, and are awake.
    fn remember_rests(&mut self, waiting: &Waiting, written: &BTreeSet<Partition>) {
        for ((partition, entity), note) in &waiting.by_entity {
            if written.contains(partition)
                && let Some(known) = self.recent.get(*partition, entity)
                && known.last.position == note.last
            {
                self.recent.put(*partition, entity.clone(), Known { rests: true, ..known });
            }
        }
    }
}
