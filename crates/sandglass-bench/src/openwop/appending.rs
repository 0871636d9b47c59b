//! Appends the batches of a run alone: as many batches, with the same records, to a journal of the
//! same kind. What a run costs beyond that is not the cost of its disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use sandglass_journal::{Batch, Expected, Journal as _, PAGE_MAX_ENTRIES, Settings, SqliteJournal};
use sandglass_model::{
    Clock as _, DispatchId, EntityRef, Event, Incarnation, Position, Sequence, SystemClock,
    SystemEntropy,
};
use tokio::task::JoinSet;

use super::server::Folder;
use crate::Failure;

/// The entity type of runs.
const RUN_TYPE: &str = "OpenwopRun";

#[derive(Debug)]
pub(super) struct BatchAppender {
    journal: Arc<SqliteJournal>,
    batches: Arc<Vec<Vec<(Sequence, Event)>>>,
    /// The number of runs that were appended.
    runs: u32,
    _folder: Folder,
}

impl BatchAppender {
    /// Reads the records of `run` from the journal at `path`, and splits them into batches.
    pub(super) fn of(path: &Path, run: &str) -> Result<Self, Failure> {
        let entity = EntityRef::new(RUN_TYPE, run)?;
        let mut reader = SqliteJournal::open_read_only(path)?;
        let page = reader.read_entity(&entity, Position(1), PAGE_MAX_ENTRIES)?;
        let mut batches: Vec<Vec<(Sequence, Event)>> = Vec::new();
        for record in page.into_records()? {
            // A run is created together with its first step, and the end of each handler is
            // appended together with the decisions that follow from it. So a batch begins with one
            // of these events.
            let begins = matches!(record.event, Event::Created { .. } | Event::Ended(_));
            match batches.last_mut() {
                Some(batch) if !begins => batch.push((record.sequence, record.event)),
                _ => batches.push(vec![(record.sequence, record.event)]),
            }
        }
        let folder = Folder::new()?;
        let opened = SqliteJournal::open(folder.0.join("alone.db"), Settings::default())?;
        let journal = Arc::new(opened.journal);
        Ok(Self { journal, batches: Arc::new(batches), runs: 0, _folder: folder })
    }

    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn records(&self) -> usize {
        self.batches.iter().map(Vec::len).sum()
    }

    /// Appends `count` more runs, `at_once` of them concurrently.
    pub(super) async fn append(&mut self, count: u32, at_once: u32) -> Result<(), Failure> {
        let next = Arc::new(AtomicU32::new(self.runs));
        self.runs += count;
        let mut appending = JoinSet::new();
        for _ in 0..at_once {
            let (journal, batches) = (Arc::clone(&self.journal), Arc::clone(&self.batches));
            let (next, end) = (Arc::clone(&next), self.runs);
            appending.spawn(async move {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    if nth >= end {
                        return Ok::<_, Failure>(());
                    }
                    append_one(&journal, &batches, nth).await?;
                }
            });
        }
        while let Some(appended) = appending.join_next().await {
            appended??;
        }
        Ok(())
    }
}

async fn append_one(
    journal: &SqliteJournal,
    batches: &[Vec<(Sequence, Event)>],
    nth: u32,
) -> Result<(), Failure> {
    let entity = EntityRef::new(RUN_TYPE, format!("run-{nth:032x}"))?;
    let (incarnation, clock) = (Incarnation::drawn(&SystemEntropy)?, SystemClock::new());
    let mut expected = Expected::None;
    for batch in batches {
        let (mut records, at) = (batch.clone(), clock.wall());
        for (sequence, event) in &mut records {
            // The journal has an index of dispatch ids, so each of them must be unique.
            if let Event::Dispatched(dispatched) = event {
                dispatched.dispatch = DispatchId::derive(incarnation, *sequence, 0, at);
            }
        }
        let batch = Batch::new(entity.clone(), expected, at, records);
        expected = Expected::At(journal.append(batch).await?.last);
    }
    Ok(())
}
