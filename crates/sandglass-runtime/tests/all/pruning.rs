//! What has ended may go, and nothing else does.

#![allow(clippy::disallowed_methods, reason = "the tests wait in virtual time")]

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::{Journal, MemoryJournal, Page};
use sandglass_liveness::{Replay, Retention, Spec};
use sandglass_model::{EntityRef, Object, Position, WallTime};
use sandglass_runtime::{ActorError, Pruned, Runtime, SimClock};

use crate::world::{pass, settle};

const DOOR: &str = r#"
[automaton]
name = "Door"
states = ["Open", "Shut"]
initial = "Open"
terminal = ["Shut"]
allow_indefinite_states = ["Open"]

[[action]]
name = "Shut"
from = ["Open"]
to = "Shut"
"#;

fn door(name: &str) -> EntityRef {
    EntityRef::new("Door", name).expect("a valid name")
}

/// A runtime whose doors `a` and `b` are shut, in that order and an hour apart, and whose
/// door `c` is open.
async fn doors() -> (Arc<MemoryJournal>, Runtime) {
    let journal = Arc::new(MemoryJournal::new());
    let wall = WallTime::from_millis(1_700_000_000_000);
    let spec = Spec::parse(DOOR).spec.expect("sound");
    let builder = Runtime::builder(Arc::clone(&journal) as _).specs([spec]);
    let builder = builder.clock(Arc::new(SimClock::starting_at(wall))).linger(Duration::ZERO);
    let runtime = builder.build().await.expect("empty");
    for name in ["a", "b", "c"] {
        runtime.create(door(name)).await.expect("new");
    }
    for name in ["a", "b"] {
        runtime.send(&door(name), "Shut", Object::new()).await.expect("taken");
        pass(3_600).await;
    }
    settle().await;
    (journal, runtime)
}

async fn all(journal: &MemoryJournal) -> Page {
    journal.read(Position(1), 1_000).await.expect("readable")
}

#[tokio::test(start_paused = true)]
async fn an_ended_entity_is_removed_and_its_name_is_free() {
    let (journal, runtime) = doors().await;
    let pruned = runtime.prune(Retention::Keep(0)).await;
    assert_eq!(pruned, Ok(Pruned { entities: 2, records: 4 }));
    assert_eq!(runtime.entities(None, 9).await.expect("readable"), [door("c")]);
    let gone = runtime.send(&door("a"), "Shut", Object::new()).await;
    assert_eq!(gone, Err(ActorError::UnknownEntity(door("a"))));
    runtime.create(door("a")).await.expect("another life");
    runtime.send(&door("c"), "Shut", Object::new()).await.expect("taken");
    let mut replay = Replay::new();
    for entry in &all(&journal).await.entries {
        match entry {
            sandglass_journal::Entry::Record(record) => replay.feed(record),
            pruned => {
                let last = pruned.position().0 + pruned.places() - 1;
                replay.pruned(pruned.position(), Position(last));
            }
        }
    }
    assert_eq!(replay.finish().divergences, []);
}

#[tokio::test(start_paused = true)]
async fn young_and_newest_entities_are_kept() {
    let (journal, runtime) = doors().await;
    let older = |secs| Retention::OlderThan(Duration::from_secs(secs));
    assert_eq!(runtime.prune(older(7_201)).await, Ok(Pruned::default()));
    assert_eq!(runtime.prune(Retention::Keep(2)).await, Ok(Pruned::default()));
    assert_eq!(runtime.prune(older(5_000)).await, Ok(Pruned { entities: 1, records: 2 }));
    assert_eq!(runtime.entities(None, 9).await.expect("readable"), [door("b"), door("c")]);
    assert_eq!(all(&journal).await.into_records().expect("whole").len(), 4);
    assert_eq!(runtime.entity(&door("b")).await.expect("there").state, "Shut");
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_cannot_be_removed_does_not_change() {
    let (journal, runtime) = doors().await;
    journal.set_failing(Some("no disk".to_owned()));
    let failed = runtime.prune(Retention::Keep(0)).await;
    assert_eq!(failed, Err(ActorError::JournalUnavailable { what: "no disk".to_owned() }));
    assert_eq!(runtime.entity(&door("a")).await.expect("there").state, "Shut");
    journal.set_failing(None);
    settle().await;
    assert_eq!(runtime.prune(Retention::Keep(0)).await.map(|pruned| pruned.entities), Ok(2));
}
