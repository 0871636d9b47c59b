//! What a start reads is what was in flight, however many entities sleep; and an entity that is not
//! in memory is found whenever it is needed.

#![allow(clippy::disallowed_methods, reason = "the tests wait in virtual time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sandglass_journal::{
    Around, Batch, Error, Expected, Journal, MemoryJournal, Page, Pending, REST_MAX_ENTITIES, Rest,
    Resting, Select, Settings, SqliteJournal,
};
use sandglass_liveness::{Retention, Spec};
use sandglass_model::{EntityRef, Object, Position, Sequence, WallTime};
use sandglass_runtime::{ActorError, Runtime, SimClock};

use crate::world::{SESSION, one, pass, settle, two};

const AT: WallTime = WallTime::from_millis(1_700_000_000_000);

/// A journal that counts how often entities are read, and how many at once, and can refuse notes of
/// rest.
#[derive(Debug, Default)]
struct Watched {
    journal: MemoryJournal,
    reads: AtomicUsize,
    reading: AtomicUsize,
    read_at_once: AtomicUsize,
    refuses_rest: AtomicBool,
}

impl Around for Watched {
    fn inner(&self) -> &dyn Journal {
        &self.journal
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
        self.read_at_once.fetch_max(reading, Ordering::SeqCst);
        Box::pin(async move {
            tokio::task::yield_now().await;
            let page = self.journal.read_entity(entity, from, limit).await;
            self.reading.fetch_sub(1, Ordering::SeqCst);
            page
        })
    }

    fn rest(&self, entities: Vec<Resting>) -> Pending<'_, Result<(), Error>> {
        if self.refuses_rest.load(Ordering::SeqCst) {
            let failed = Err(Error::Unavailable { what: "no disk".to_owned() });
            return Box::pin(std::future::ready(failed));
        }
        self.journal.rest(entities)
    }
}

impl Watched {
    fn reads(&self) -> usize {
        self.reads.swap(0, Ordering::SeqCst)
    }

    /// The entities that are awake, as a start would find them.
    async fn awake(&self) -> Vec<String> {
        let which = Select::Due { until: WallTime::from_millis(i64::MIN) };
        let page = self.journal.select(which, None, 1_000).await.expect("readable");
        page.entries.into_iter().map(|entry| entry.entity.id().to_owned()).collect()
    }
}

async fn start_at(journal: &Arc<Watched>, at: WallTime) -> Runtime {
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let builder = Runtime::builder(Arc::clone(journal) as _).specs([spec]);
    let builder = builder.clock(Arc::new(SimClock::starting_at(at))).linger(Duration::ZERO);
    builder.build().await.expect("sound")
}

async fn start(journal: &Arc<Watched>) -> Runtime {
    start_at(journal, AT).await
}

async fn touch(runtime: &Runtime, entity: &EntityRef) -> Result<Sequence, ActorError> {
    runtime.send(entity, "Touch", Object::new()).await.map(|accepted| accepted.sequence)
}

fn name(id: impl std::fmt::Display) -> EntityRef {
    format!("Session/{id}").parse().expect("a valid name")
}

/// Adds entities without a timer, past the runtime; returns how they rest, which is not noted.
async fn add_entities(journal: &Watched, count: usize) -> Vec<Resting> {
    let records = journal.journal.read_entity(one(), Position(0), 1).await.expect("readable");
    let created = records.into_records().expect("whole").swap_remove(0);
    let spec = match &created.event {
        sandglass_model::Event::Created { spec, .. } => Some(*spec),
        _ => None,
    };
    let rest = Rest { wake_at: None, spec, is_listed: false };
    let mut notes = Vec::new();
    for number in 0..count {
        let entity = name(format_args!("sleeper-{number:06}"));
        let records = vec![(Sequence(0), created.event.clone())];
        let batch = Batch::new(entity.clone(), Expected::None, AT, records);
        let last = journal.journal.append(batch).await.expect("new").last;
        notes.push(Resting { entity, last, rest: rest.clone() });
    }
    notes
}

/// Adds entities that sleep.
async fn add_sleepers(journal: &Watched, count: usize) {
    for notes in add_entities(journal, count).await.chunks(REST_MAX_ENTITIES) {
        journal.journal.rest(notes.to_vec()).await.expect("noted");
    }
}

#[tokio::test(start_paused = true)]
async fn a_start_with_a_copied_journal_reads_many_entities_at_once() {
    let journal = Arc::new(Watched::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    // As after a copy or an upgrade: how they rest is not known.
    add_entities(&journal, 2_000).await;
    drop(runtime);
    settle().await;
    journal.reads();
    let runtime = start(&journal).await;
    assert!(journal.reads() >= 2_000);
    let at_once = journal.read_at_once.load(Ordering::SeqCst);
    assert!((200..=256).contains(&at_once), "{at_once}");
    pass(60).await;
    assert_eq!(journal.awake().await, Vec::<String>::new(), "they rest, which is noted");
    let last = name("sleeper-001999");
    assert_eq!(touch(&runtime, &last).await, Ok(Sequence(1)));
    runtime.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_reads_what_was_in_flight_and_nothing_else() {
    const IN_FLIGHT: usize = 10;
    let journal = Arc::new(Watched::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    add_sleepers(&journal, 20_000).await;
    for number in 0..IN_FLIGHT {
        runtime.create(name(number)).await.expect("new");
        touch(&runtime, &name(number)).await.expect("taken");
    }
    // As after a kill: the journal has noted nothing of these.
    drop(runtime);
    settle().await;
    let awake = journal.awake().await.len();
    assert!((IN_FLIGHT..=IN_FLIGHT + 1).contains(&awake), "{awake}");
    journal.reads();
    let runtime = start(&journal).await;
    assert_eq!(journal.reads(), awake, "one read for each that was awake");
    pass(60).await;
    assert_eq!(journal.awake().await, Vec::<String>::new(), "they rest, which is noted");
    assert_eq!(journal.reads(), 0);
    let sleeper = name("sleeper-012345");
    assert_eq!(touch(&runtime, &sleeper).await, Ok(Sequence(1)), "which is found when needed");
    let names = runtime.entities(None, 1_000).await.expect("readable");
    assert_eq!(names.len(), 1_000);
    runtime.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn after_a_shutdown_a_start_reads_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.db");
    let open = || {
        let opened = SqliteJournal::open(&path, Settings::default()).expect("a journal");
        Arc::new(opened.journal) as Arc<dyn Journal>
    };
    let journal = open();
    let builder = Runtime::builder(Arc::clone(&journal));
    let builder = builder.specs([Spec::parse(SESSION).spec.expect("sound")]);
    let runtime = builder.linger(Duration::from_secs(60)).build().await.expect("empty");
    for entity in [one(), two()] {
        runtime.create(entity).await.expect("new");
    }
    let awake = || Select::Due { until: WallTime::from_millis(i64::MIN) };
    let found = journal.select(awake(), None, 9).await.expect("readable");
    assert_eq!(found.entries.len(), 2);
    runtime.shutdown(Duration::from_secs(1)).await;
    drop((runtime, journal));
    let found = open().select(awake(), None, 9).await.expect("readable");
    assert_eq!(found.entries, [], "they rested when the runtime ended");
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_is_not_in_memory_is_found_by_every_request() {
    let journal = Arc::new(Watched::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    pass(5).await;
    assert_eq!(journal.awake().await, Vec::<String>::new());
    assert_eq!(runtime.create(one()).await.err(), Some(ActorError::EntityExists(one())));
    assert_eq!(runtime.cancel(&one(), None, "").await, Ok(0));
    assert_eq!(runtime.history(&one(), Position(0), 9).await.expect("there").entries.len(), 1);
    assert_eq!(runtime.entities(None, 9).await, Ok(vec![one()]));
    assert_eq!(touch(&runtime, &one()).await, Ok(Sequence(1)));
    let unknown = || ActorError::UnknownEntity(two());
    assert_eq!(touch(&runtime, &two()).await, Err(unknown()));
    assert_eq!(runtime.cancel(&two(), None, "").await, Err(unknown()));
    assert_eq!(runtime.entity(&two()).await.err(), Some(unknown()));
    assert_eq!(runtime.history(&two(), Position(0), 9).await, Err(unknown()));
}

#[tokio::test(start_paused = true)]
async fn a_creation_and_requests_for_a_name_that_is_being_looked_up_exclude_each_other() {
    let journal = Arc::new(Watched::default());
    let runtime = start(&journal).await;
    for round in 0..50 {
        let entity = name(round);
        let is_there = round % 2 == 0;
        if is_there {
            runtime.create(entity.clone()).await.expect("new");
            pass(5).await;
        }
        // Each is polled once, so that all of them are under way at the same time.
        let touched: Vec<_> = (0..3)
            .map(|_| {
                let (runtime, entity) = (runtime.clone(), entity.clone());
                tokio::spawn(async move { touch(&runtime, &entity).await })
            })
            .collect();
        let created = runtime.create(entity.clone()).await;
        assert_eq!(created.is_ok(), !is_there, "{created:?}");
        for (number, one) in touched.into_iter().enumerate() {
            let answer = one.await.expect("no panic");
            if is_there {
                assert_eq!(answer, Ok(Sequence(number as u64 + 1)), "in order");
            } else if let Err(error) = answer {
                assert_eq!(error, ActorError::UnknownEntity(entity.clone()));
            }
        }
        assert!(touch(&runtime, &entity).await.is_ok(), "it exists now");
    }
}

#[tokio::test(start_paused = true)]
async fn a_timer_far_ahead_fires_although_its_entity_is_not_in_memory() {
    let journal = Arc::new(Watched::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    runtime.send(&one(), "Later", Object::new()).await.expect("taken");
    pass(60).await;
    journal.reads();
    pass(86_400 - 120).await;
    assert_eq!(journal.reads(), 0, "it is not read before");
    let seen = |state: &'static str| {
        let runtime = runtime.clone();
        async move { runtime.entity(&one()).await.expect("there").state == state }
    };
    pass(61).await;
    assert!(!seen("Idle").await, "its scheduled action was taken");
}

#[tokio::test(start_paused = true)]
async fn timers_fire_although_the_journal_does_not_note_how_entities_rest() {
    let journal = Arc::new(Watched::default());
    journal.refuses_rest.store(true, Ordering::SeqCst);
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    runtime.send(&one(), "Wait", Object::new()).await.expect("taken");
    runtime.create(two()).await.expect("new");
    pass(301).await;
    assert_eq!(runtime.entity(&one()).await.expect("there").state, "Abandoned");
    assert_eq!(touch(&runtime, &two()).await, Ok(Sequence(1)));
    journal.refuses_rest.store(false, Ordering::SeqCst);
    pass(30).await;
    assert_eq!(journal.awake().await, Vec::<String>::new(), "it is tried again");
}

#[tokio::test(start_paused = true)]
async fn an_ended_entity_that_is_not_in_memory_is_pruned() {
    let journal = Arc::new(Watched::default());
    let runtime = start(&journal).await;
    for entity in [one(), two()] {
        runtime.create(entity).await.expect("new");
    }
    runtime.send(&one(), "Wait", Object::new()).await.expect("taken");
    pass(400).await;
    drop(runtime);
    settle().await;
    let runtime = start_at(&journal, AT.after(Duration::from_secs(400))).await;
    let pruned = runtime.prune(Retention::Keep(0)).await.expect("readable");
    assert_eq!(pruned.entities, 1);
    assert_eq!(runtime.entities(None, 9).await, Ok(vec![two()]));
    runtime.create(one()).await.expect("its name is free");
}
