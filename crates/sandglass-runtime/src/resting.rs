//! Notes in the journal how entities rest, so that neither this process nor the next one needs them
//! in memory. Notes are written some time after their entities have fallen asleep, many at once. One
//! that is lost costs a start the reading of its entity, and nothing else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_journal::{self as journal, REST_MAX_ENTITIES, Rest, Resting};
use sandglass_liveness::session::RunPhase;
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{EntityRef, Monotonic, Position, WallTime};
use tokio::sync::Notify;

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

    /// Notes what a session that has ended leaves for its conversation.
    pub(crate) fn note_conversation(&self, spec: &Spec, entity: &Entity, position: Position) {
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
    /// The journal does not take them; they wait again.
    pub(crate) async fn write_rests(&self) -> Result<(), journal::Error> {
        loop {
            let notes = self.rests.take();
            if notes.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.journal.rest(notes.clone()).await {
                self.rests.put_back(notes);
                return Err(error);
            }
            let now = self.clock.now();
            for note in notes {
                self.table.evict(&note.entity, note.last, now);
            }
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
