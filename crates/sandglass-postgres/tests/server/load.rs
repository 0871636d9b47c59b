//! Clients that append without pause, and remember what they were answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sandglass_journal::conformance::{batch, session, signal};
use sandglass_journal::{Entry, Error, Expected, Journal};
use sandglass_model::{EntityRef, Event, Partition, Position};
use sandglass_postgres::Database;
use tokio::task::JoinHandle;

use crate::server::{block, pause};

/// Clients, each with an entity of its own.
pub(crate) struct Load {
    stopped: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Answers>>,
}

/// What a client was answered.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) entity: EntityRef,
    /// The numbers that were acknowledged, and their positions.
    pub(crate) acknowledged: BTreeMap<u64, Position>,
    /// The numbers that were refused, after which the client went on with the next.
    pub(crate) refused: Vec<u64>,
    /// Why it ended before it was stopped.
    pub(crate) ended: Option<Error>,
    /// The longest time that an append took.
    pub(crate) longest: Duration,
}

/// Starts `count` clients whose entities have this prefix.
pub(crate) fn start(database: &Database, prefix: &str, count: usize) -> Load {
    let stopped = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let names: Vec<EntityRef> =
        (0..count).map(|number| session(&format!("{prefix}-{number}"))).collect();
    let (database, stop, count) = (database.clone(), Arc::clone(&stopped), Arc::clone(&answered));
    let clients = block(async move {
        let client = |entity: EntityRef| {
            let journal = database.journal(Partition::of(&entity));
            tokio::spawn(append_until(journal, entity, Arc::clone(&stop), Arc::clone(&count)))
        };
        names.into_iter().map(client).collect()
    });
    Load { stopped, answered, clients }
}

async fn append_until(
    journal: Arc<dyn Journal>,
    entity: EntityRef,
    stopped: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
) -> Answers {
    let mut answers = Answers {
        entity: entity.clone(),
        acknowledged: BTreeMap::new(),
        refused: Vec::new(),
        ended: None,
        longest: Duration::ZERO,
    };
    let mut expected = Expected::None;
    for number in 0.. {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        let result = journal.append(batch(&entity, expected, vec![(0, signal(number))])).await;
        answers.longest = answers.longest.max(begun.elapsed());
        match result {
            Ok(positions) => {
                expected = Expected::At(positions.last);
                answers.acknowledged.insert(number, positions.first);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            // It is not in the journal, so the next one expects the same record.
            Err(Error::Unavailable { .. }) => {
                answers.refused.push(number);
                // Refused at once while the database is away.
                let _ = tokio::task::spawn_blocking(pause).await;
            }
            Err(error) => {
                answers.ended = Some(error);
                break;
            }
        }
    }
    answers
}

impl Load {
    /// Waits until `count` further appends were acknowledged.
    pub(crate) fn wait_for(&self, count: u64) {
        let goal = self.answered.load(Ordering::Relaxed) + count;
        let begun = Instant::now();
        while self.answered.load(Ordering::Relaxed) < goal {
            assert!(begun.elapsed() < Duration::from_secs(120), "appends do not go on");
            pause();
        }
    }

    /// Ends the clients, and returns their answers.
    pub(crate) fn stop(self) -> Vec<Answers> {
        self.stopped.store(true, Ordering::Relaxed);
        block(async move {
            let mut all = Vec::new();
            for client in self.clients {
                all.push(client.await.unwrap());
            }
            all
        })
    }
}

/// Reads the journals of a database, and checks that they contain what was acknowledged, once, nothing
/// that was refused, and no gap.
pub(crate) fn check(database: &Database, all: Vec<Answers>) {
    let database = database.clone();
    block(async move {
        let mut found: BTreeMap<EntityRef, BTreeMap<u64, Position>> = BTreeMap::new();
        for partition in Partition::all() {
            for entry in read_all(&database, partition).await {
                let Entry::Record(record) = entry else { panic!("{partition}: {entry:?}") };
                let Event::Signal { payload, .. } = &record.event else { continue };
                let (entity, number) = (record.entity.clone().unwrap(), payload.as_u64().unwrap());
                let former = found.entry(entity).or_default().insert(number, record.position);
                assert_eq!(former, None, "{record:?} is there twice");
            }
        }
        for answers in all {
            let records = found.remove(&answers.entity).unwrap_or_default();
            assert_eq!(records, answers.acknowledged, "{}", answers.entity);
            assert!(answers.refused.iter().all(|number| !records.contains_key(number)));
        }
    });
}

/// All entries of a partition.
pub(crate) async fn read_all(database: &Database, partition: Partition) -> Vec<Entry> {
    let journal = database.journal(partition);
    let (mut from, mut entries) = (Some(Position(0)), Vec::new());
    while let Some(start) = from {
        let page = journal.read(start, 1_000).await.unwrap();
        entries.extend(page.entries);
        from = page.next;
    }
    entries
}
