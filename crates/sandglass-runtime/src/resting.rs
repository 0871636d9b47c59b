//! Notes in the journal how entities rest, so that neither this process nor the next one needs them
//! in memory. Notes are written some time after their entities have fallen asleep, many at once. One
//! that is lost costs a start the reading of its entity, and nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sandglass_journal::{self as journal, REST_MAX_ENTITIES, Rest, Resting};
use sandglass_liveness::session::RunPhase;
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{EntityRef, Monotonic, Position, WallTime};
use tokio::sync::Notify;

use crate::serving::Hold;
use crate::shared::Shared;
use crate::timer;
use crate::watch;

/// How long the first of some notes waits for others, unless so many wait that they are written at
/// once. Entities that wake again within this time are not written.
const DELAY: Duration = Duration::from_secs(1);
/// The wait after notes could not be written.
const AGAIN: Duration = Duration::from_secs(5);
/// How long a shutdown waits for the notes: a disk that hangs must not keep the process.
const LAST: Duration = Duration::from_secs(1);

/// Notes that wait to be written: at most one for each entity that is awake or has an entry in the
/// table.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    waiting: Mutex<BTreeMap<EntityRef, (Position, Rest)>>,
    added: Notify,
    /// Held while notes are written, so that none is under way when a partition is given away.
    writing: tokio::sync::Mutex<()>,
}

impl Rests {
    /// Adds a note. Of two notes about one entity, that with the later record counts.
    pub(crate) fn add(&self, entity: &EntityRef, last: Position, rest: Rest) {
        let mut waiting = self.lock();
        if waiting.get(entity).is_none_or(|(known, _)| *known <= last) {
            waiting.insert(entity.clone(), (last, rest));
        }
        drop(waiting);
        self.added.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EntityRef, (Position, Rest)>> {
        // No code between two changes of one critical section can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many notes wait that they fill one write.
    pub(crate) fn fill_a_write(&self) -> bool {
        self.lock().len() >= REST_MAX_ENTITIES
    }

    /// Removes the notes of one write.
    fn take(&self) -> Vec<Resting> {
        let mut waiting = self.lock();
        let mut taken = Vec::new();
        while taken.len() < REST_MAX_ENTITIES
            && let Some((entity, (last, rest))) = waiting.pop_first()
        {
            taken.push(Resting { entity, last, rest });
        }
        taken
    }

    /// Removes the notes about entities of which `is_wanted` holds.
    pub(crate) fn take_of(&self, is_wanted: impl Fn(&EntityRef) -> bool) -> Vec<Resting> {
        let taken = self.lock().extract_if(.., |entity, _| is_wanted(entity)).collect::<Vec<_>>();
        let note = |(entity, (last, rest))| Resting { entity, last, rest };
        taken.into_iter().map(note).collect()
    }

    /// Puts notes back that were not written. One that was added meanwhile is newer.
    fn put_back(&self, notes: Vec<Resting>) {
        let mut waiting = self.lock();
        for Resting { entity, last, rest } in notes {
            waiting.entry(entity).or_insert((last, rest));
        }
        drop(waiting);
        self.added.notify_one();
    }
}

impl Shared {
    /// How an entity rests whose next timer fires at `next_timer`.
    pub(crate) fn rest_of(
        &self,
        spec: &Spec,
        entity: &Entity,
        next_timer: Monotonic,
        is_counted: bool,
    ) -> Rest {
        let wait = next_timer.since(self.clock.now());
        let wake_at = (next_timer != Monotonic::NEVER).then(|| self.clock.wall().after(wait));
        let is_listed = is_counted || self.conversations.is_kept(spec, entity);
        let spec = (!entity.has_ended(spec)).then_some(entity.spec);
        Rest { wake_at, spec, is_listed }
    }

    /// Notes what a session that has ended leaves for its conversation, unless the period `hold` is over:
    /// the next owner of the partition notes it.
    pub(crate) fn note_conversation(
        &self,
        spec: &Spec,
        entity: &Entity,
        position: Position,
        hold: &Hold,
    ) {
        // Held, because the end of the period removes such notes under this lock.
        let _entities = self.table.lock();
        if hold.is_gone() {
            return;
        }
        // Positions of different partitions cannot be compared, and times of one journal may go back.
        let at =
            if self.journal.is_partitioned() { run_ended(entity) } else { WallTime::default() };
        let noted = self.conversations.note(spec, entity, at, position);
        let Some((before, last)) = noted else { return };
        // A start need not read that one any more.
        self.rests.add(&before, last, Rest { wake_at: None, spec: None, is_listed: false });
    }

    /// Writes all notes that wait, and removes the entries of entities that are not needed.
    ///
    /// # Errors
    /// A journal does not take them; they wait again.
    pub(crate) async fn write_rests(&self) -> Result<(), journal::Error> {
        let _one_at_a_time = self.rests.writing.lock().await;
        loop {
            let notes = self.rests.take();
            if notes.is_empty() {
                return Ok(());
            }
            let mut by_journal = BTreeMap::<usize, Vec<Resting>>::new();
            for note in notes {
                by_journal.entry(self.journal.index_of(&note.entity)).or_default().push(note);
            }
            let each = by_journal.into_iter().map(|(index, notes)| self.write_in(index, notes));
            let failed = join_all(each).await.into_iter().find_map(Result::err);
            if let Some(error) = failed {
                return Err(error);
            }
        }
    }

    /// Writes the notes that wait about a partition that was just given away.
    pub(crate) async fn write_rests_of(&self, index: usize) {
        let notes = self.rests.take_of(|entity| self.journal.index_of(entity) == index);
        for piece in notes.chunks(REST_MAX_ENTITIES) {
            if let Err(error) = self.write_in(index, piece.to_vec()).await {
                // The next owner reads these entities, as after a crash.
                tracing::debug!(%error, index, "which entities rest is not noted");
                return;
            }
        }
    }

    /// Writes notes to one journal. If it does not take them and its partition is still served, they wait
    /// again.
    async fn write_in(&self, index: usize, notes: Vec<Resting>) -> Result<(), journal::Error> {
        let hold = self.table.hold_at(index);
        let Some(journal) = self.journal.all().get(index) else { return Ok(()) };
        let now = self.clock.now();
        match (journal.rest(notes.clone()).await, hold) {
            (Ok(()), _) => {
                notes.iter().for_each(|note| self.table.evict(&note.entity, note.last, now));
                Ok(())
            }
            // The next owner reads these entities, as after a crash.
            (Err(journal::Error::Disowned { .. }), hold) if self.journal.is_partitioned() => {
                if let Some(hold) = hold {
                    self.lose_disowned(&hold);
                }
                Ok(())
            }
            (Err(error), Some(hold)) if !hold.is_gone() => {
                self.rests.put_back(notes);
                Err(error)
            }
            (Err(error), None) => Err(error),
            (Err(_), Some(_)) => Ok(()),
        }
    }

    /// Writes the notes that wait at a shutdown, unless that takes too long.
    pub(crate) async fn write_last_rests(&self) {
        let over = self.clock.now().after(LAST);
        tokio::select! {
            biased;
            // The next start reads the entities of notes that were not written.
            _ = self.write_rests() => {}
            () = timer::until(&*self.clock, over) => {}
        }
    }
}

/// Writes notes, until the runtime shuts down.
pub(crate) async fn write_notes(shared: Arc<Shared>, mut closing: watch::Receiver<bool>) {
    loop {
        let write = async {
            shared.rests.added.notified().await;
            let due = shared.clock.now().after(DELAY);
            while !shared.rests.fill_a_write() {
                tokio::select! {
                    biased;
                    () = timer::until(&*shared.clock, due) => break,
                    () = shared.rests.added.notified() => {}
                }
            }
            if let Err(error) = shared.write_rests().await {
                tracing::debug!(%error, "which entities rest is not noted; it is tried again");
                timer::until(&*shared.clock, shared.clock.now().after(AGAIN)).await;
            }
        };
        tokio::select! {
            biased;
            _ = closing.changed() => return,
            () = write => {}
        }
    }
}

/// When the last run of a session ended; the start of time if it is no session.
fn run_ended(entity: &Entity) -> WallTime {
    let session = entity.session();
    let ended = session.and_then(|session| match &session.phase {
        RunPhase::Stopped(stopped) => {
            Some(session.run_started.after(Duration::from_millis(stopped.elapsed_ms)))
        }
        _ => None,
    });
    ended.unwrap_or_default()
}
