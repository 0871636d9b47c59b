//! An entity with a long history is read from its last snapshot on, and is what its
//! records make it.

#![allow(clippy::disallowed_methods, reason = "the tests wait in virtual time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandglass_journal::{
    Around, Batch, ByEntity, Error, Expected, Journal, MemoryJournal, Page, Pending, Place,
};
use sandglass_liveness::entity::SNAPSHOT_VERSION;
use sandglass_liveness::{Entity, Fold, Replay, Spec};
use sandglass_model::{EntityRef, Event, Object, Position, WallTime};
use sandglass_runtime::{Runtime, SNAPSHOT_EVERY, SimClock};

use crate::world::{SESSION, one, settle, two};

/// A journal that counts the records which are read of entities.
#[derive(Debug, Default)]
struct Counting(MemoryJournal, AtomicUsize);

impl Around for Counting {
    fn inner(&self) -> &dyn Journal {
        &self.0
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            let page = self.0.read_entity(entity, from, limit).await?;
            self.1.fetch_add(page.entries.len(), Ordering::SeqCst);
            Ok(page)
        })
    }

    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        Box::pin(async move {
            let page = self.0.read_by_entity(after, limit).await?;
            self.1.fetch_add(page.entries.len(), Ordering::SeqCst);
            Ok(page)
        })
    }
}

const AT: WallTime = WallTime::from_millis(1_700_000_000_000);

async fn started(journal: &Arc<Counting>) -> Runtime {
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let builder = Runtime::builder(Arc::clone(journal) as _).specs([spec]);
    let builder = builder.clock(Arc::new(SimClock::starting_at(AT))).linger(Duration::ZERO);
    builder.build().await.expect("sound")
}

async fn touch(runtime: &Runtime, entity: &EntityRef, times: u64) {
    for _ in 0..times {
        runtime.send(entity, "Touch", Object::new()).await.expect("taken");
    }
    settle().await;
}

/// The entity as all its records make it, and how many those are.
async fn folded(journal: &Counting, name: &EntityRef) -> (Entity, u64) {
    let (mut fold, mut replay, mut records) = (Fold::new(), Replay::new(), 0);
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = journal.0.read(start, 1_000).await.expect("readable");
        from = page.next;
        for record in page.into_records().expect("whole") {
            records += u64::from(record.entity.as_ref() == Some(name));
            fold.apply(&record).expect("it fits");
            replay.feed(&record);
        }
    }
    assert_eq!(replay.finish().divergences, []);
    (fold.take(name).expect("it was created"), records)
}

#[tokio::test(start_paused = true)]
async fn waking_reads_only_records_after_the_snapshot_and_leads_to_the_same_entity() {
    let journal = Arc::new(Counting::default());
    let runtime = started(&journal).await;
    runtime.create(one()).await.expect("new");
    runtime.create(two()).await.expect("new");
    touch(&runtime, &one(), 4 * SNAPSHOT_EVERY + 3).await;
    touch(&runtime, &two(), 3).await;
    journal.1.store(0, Ordering::SeqCst);
    let seen = runtime.entity(&one()).await.expect("there");
    let (entity, records) = folded(&journal, &one()).await;
    assert_eq!((seen.sequence, &seen.state), (entity.sequence, &entity.state));
    let read = journal.1.load(Ordering::SeqCst) as u64;
    assert!(records > 1_000 && read < 2 * SNAPSHOT_EVERY, "{read} of {records} were read");
    // It has the timer that its records give it, and takes what it would take.
    touch(&runtime, &one(), SNAPSHOT_EVERY).await;
    let (entity, _) = folded(&journal, &one()).await;
    let kept = journal.0.snapshot(one()).await.expect("readable").expect("there is one");
    let at = Entity::of_snapshot(&kept.body).expect("it was written so");
    assert!(at.sequence < entity.sequence && at.sequence.0 > 4 * SNAPSHOT_EVERY);
    runtime.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_start_reads_only_records_after_the_snapshot_and_leads_to_the_same_entity() {
    let journal = Arc::new(Counting::default());
    let runtime = started(&journal).await;
    for name in [one(), two()] {
        runtime.create(name.clone()).await.expect("new");
        touch(&runtime, &name, 12 * SNAPSHOT_EVERY).await;
    }
    drop(runtime);
    settle().await;
    journal.1.store(0, Ordering::SeqCst);
    let again = started(&journal).await;
    let read = journal.1.load(Ordering::SeqCst) as u64;
    // Whole pages of them, and those between two snapshots.
    assert!(read < 16 * SNAPSHOT_EVERY, "{read} records were read");
    for name in [one(), two()] {
        let (entity, _) = folded(&journal, &name).await;
        let seen = again.entity(&name).await.expect("there");
        assert_eq!((seen.sequence, &seen.state), (entity.sequence, &entity.state));
        touch(&again, &name, 1).await;
        folded(&journal, &name).await;
    }
    again.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_used_is_skipped() {
    let spoilt: [fn(&str) -> String; 3] = [
        |good| good.replace(&format!("\"version\":{SNAPSHOT_VERSION},"), "\"version\":99,"),
        |_| "no snapshot".to_owned(),
        |good| good.replace(&one().to_string(), &two().to_string()),
    ];
    for spoil in spoilt {
        let journal = Arc::new(Counting::default());
        let runtime = started(&journal).await;
        runtime.create(one()).await.expect("new");
        touch(&runtime, &one(), 2 * SNAPSHOT_EVERY).await;
        drop(runtime);
        settle().await;
        let good = journal.0.snapshot(one()).await.expect("readable").expect("there is one");
        let sequence = folded(&journal, &one()).await.0.sequence;
        let signal = Event::Signal {
            name: "note".to_owned(),
            from: None,
            dispatch: None,
            payload: serde_json::Value::Null,
            resets_idle: false,
        };
        let last = journal.0.last().await.expect("readable");
        let batch = Batch::new(one(), Expected::At(last), AT, vec![(sequence, signal)]);
        let batch = batch.with_snapshot(Some(spoil(&good.body)));
        journal.0.append(batch).await.expect("it follows");
        let again = started(&journal).await;
        let seen = again.entity(&one()).await.expect("by its records");
        let (entity, _) = folded(&journal, &one()).await;
        assert_eq!((seen.sequence, &seen.state), (entity.sequence, &entity.state));
        touch(&again, &one(), 1).await;
        let replaced = journal.0.snapshot(one()).await.expect("readable").expect("there is one");
        assert!(Entity::of_snapshot(&replaced.body).is_ok_and(|kept| kept.entity == one()));
    }
}
