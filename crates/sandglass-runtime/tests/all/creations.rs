//! Entities that are created with their first action: both are there, or neither.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use sandglass_journal::{Around, Batch, Error, Journal, MemoryJournal, Pending, Positions};
use sandglass_liveness::Spec;
use sandglass_model::{Object, Sequence};
use sandglass_runtime::{ActorError, NewEntity, Request, Runtime};
use serde_json::json;

use crate::world::{Act, SESSION, World, completed, counts, two};

fn with(first: Request) -> NewEntity {
    NewEntity { first: Some(first), ..NewEntity::default() }
}

/// Those of `Session/two`, by their kinds.
async fn kinds(world: &World) -> Vec<&'static str> {
    let records = world.records().await;
    let of_two = records.iter().filter(|record| record.entity.as_ref() == Some(&two()));
    of_two.map(|record| record.event.kind()).collect()
}

#[tokio::test(start_paused = true)]
async fn an_entity_is_created_with_its_first_action_and_that_is_carried_out() {
    let limits = format!("{SESSION}\n[limits]\nrun_timeout = \"1h\"\n");
    let world = World::with(&limits, &[Act::Answer(1, completed())]).await;
    let params = Object::from([("why".to_owned(), json!("first"))]);
    let first = Request::new("ProcessToolCalls").params(params).expecting(Sequence(0));
    let created = world.runtime.create_as(two(), with(first)).await.expect("a new entity");
    assert_eq!((&*created.state, created.sequence), ("Executing", Sequence(1)));
    assert_eq!(created.in_flight.len(), 1);
    let settled = world.runtime.settled(&two()).await.expect("it lives");
    assert_eq!(settled.state, "Done");
    let begun = ["created", "run.started", "transition", "dispatched"];
    assert_eq!(kinds(&world).await[..4], begun);
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_action_that_is_refused_creates_nothing() {
    let world = World::of(&[]).await;
    let refused = world.runtime.create_as(two(), with(Request::new("Finish"))).await;
    assert!(matches!(refused, Err(ActorError::Refused { .. })), "{refused:?}");
    let late = Request::new("Touch").expecting(Sequence(1));
    let refused = world.runtime.create_as(two(), with(late)).await;
    assert_eq!(refused, Err(ActorError::Conflict { entity: two(), expected: Sequence(1) }));
    let asked = world.runtime.entity(&two()).await;
    assert_eq!(asked, Err(ActorError::UnknownEntity(two())));
    assert_eq!(kinds(&world).await, <[&str; 0]>::default());
    world.runtime.create(two()).await.expect("its name is free");
}

#[tokio::test(start_paused = true)]
async fn an_action_without_slots_for_its_handlers_creates_nothing() {
    let world = World::of(&[Act::Answer(1, completed())]).await;
    let places = &world.script.places;
    places.store(0, Ordering::SeqCst);
    let first = || with(Request::new("ProcessToolCalls"));
    let refused = world.runtime.create_as(two(), first()).await;
    assert!(matches!(refused, Err(ActorError::Busy { .. })), "{refused:?}");
    assert_eq!(kinds(&world).await, <[&str; 0]>::default());
    places.store(1, Ordering::SeqCst);
    world.journal.set_failing(Some("disk full".to_owned()));
    let failed = world.runtime.create_as(two(), first()).await;
    assert!(matches!(failed, Err(ActorError::JournalUnavailable { .. })), "{failed:?}");
    assert_eq!(places.load(Ordering::SeqCst), 1, "given back");
    assert_eq!(counts(&world.script)["started"], 0);
    world.journal.set_failing(None);
    world.runtime.create_as(two(), first()).await.expect("there is room, and a disk");
    assert_eq!(world.runtime.settled(&two()).await.expect("it lives").state, "Done");
    world.replays().await;
}

/// A journal that counts the records of each batch.
#[derive(Debug, Default)]
struct Counting(MemoryJournal, Mutex<Vec<usize>>);

impl Around for Counting {
    fn inner(&self) -> &dyn Journal {
        &self.0
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        self.1.lock().expect("no panic").push(batch.records.len());
        self.0.append(batch)
    }
}

#[tokio::test(start_paused = true)]
async fn an_entity_is_created_in_one_batch() {
    let journal = Arc::new(Counting::default());
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let runtime = Runtime::builder(Arc::clone(&journal) as _).specs([spec]).build().await;
    let runtime = runtime.expect("an empty journal");
    journal.1.lock().expect("no panic").clear();
    runtime.create_as(two(), with(Request::new("Touch"))).await.expect("a new entity");
    assert_eq!(*journal.1.lock().expect("no panic"), [2]);
}
