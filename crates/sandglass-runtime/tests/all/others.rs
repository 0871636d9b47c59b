//! Guards that read the states of other entities: which states they see, and that no entity waits for
//! another one to see it.

#![allow(clippy::disallowed_methods, reason = "the tests wait in virtual time")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandglass_journal::{
    Around, Batch, Error, Journal, MemoryJournal, PAGE_MAX_ENTRIES, Page, Pending, Positions,
};
use sandglass_liveness::{Replay, Spec};
use sandglass_model::{EntityRef, Event, Object, Position, Record, WallTime};
use sandglass_runtime::{ActorError, Runtime, SimClock};
use serde_json::json;

use crate::world::{Act, World, completed, failed, one, pass, settle, two};

/// A session that reads another one by each kind of transition.
const SESSION: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Open", "Working", "Waiting", "Done", "Failed"]
initial = "Idle"
terminal = ["Done", "Failed"]
allow_indefinite_states = ["Idle", "Open", "Working"]

[[state]]
name = "other"
type = "string"

[[action]]
name = "Link"
from = ["Idle"]
params = ["other"]

[[action]]
name = "Open"
from = ["Idle"]
to = "Open"

[[action]]
name = "Follow"
from = ["Idle"]
to = "Open"
guard = "Session[other].status == 'Open'"

[[action]]
name = "Begin"
from = ["Idle"]
to = "Open"
guard = "Session[other].status in ['Idle']"

[[action]]
name = "Close"
from = ["Open"]
to = "Idle"
guard = "Session[other].status != 'Done'"

[[action]]
name = "Later"
from = ["Idle"]
effect = "schedule Follow 5"

[[action]]
name = "Spawn"
from = ["Idle"]
effect = { type = "spawn", entity_type = "Session", entity_id_source = "new", initial_action = "Follow", copy_fields = "other" }

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Worked"
from = ["Working"]
to = "Done"
guard = "Session[other].status == 'Open'"

[[action]]
name = "Fail"
from = ["Working"]
to = "Failed"

[[integration]]
name = "work"
module = "work"
deadline = "100s"
on_success = "Worked"
on_failure = "Fail"
on_timeout = "Worked"

[[action]]
name = "Wait"
from = ["Idle"]
to = "Waiting"

[[action]]
name = "Waited"
from = ["Waiting"]
to = "Done"
guard = "Session[other].status == 'Open'"

[[state_timeout]]
state = "Waiting"
after_seconds = 30
on_timeout = "Waited"
"#;

fn link(other: &EntityRef) -> Object {
    Object::from([("other".to_owned(), json!(other.id()))])
}

/// Two sessions of which the first reads the second.
async fn pair(acts: &[Act]) -> World {
    let world = World::with(SESSION, acts).await;
    world.runtime.create(two()).await.expect("new");
    world.runtime.send(&one(), "Link", link(&two())).await.expect("taken");
    world
}

async fn open(world: &World) {
    world.runtime.send(&two(), "Open", Object::new()).await.expect("taken");
}

/// What the last decision of `name` that read others has read.
fn last_read(records: &[Record], name: &EntityRef) -> Option<(String, Option<String>)> {
    let of = records.iter().rev().filter(|record| record.entity.as_ref() == Some(name));
    let read = of.flat_map(|record| record.event.observed()).next()?;
    Some((read.entity.to_string(), read.state.clone()))
}

#[tokio::test(start_paused = true)]
async fn a_request_depends_on_the_present_state_of_the_other_entity() {
    let world = pair(&[]).await;
    let refused = world.send("Follow").await.expect_err("it is not open");
    assert!(refused.to_string().contains("Session/two was in state `Idle`"), "{refused}");
    open(&world).await;
    world.send("Follow").await.expect("it is open now");
    let expected = ("Session/two".to_owned(), Some("Open".to_owned()));
    assert_eq!(last_read(&world.records().await, &one()), Some(expected));
    // While it is awake, its task is not asked, and shows what is durable.
    let runtime = world.runtime.clone();
    let watcher = tokio::spawn(async move {
        let _ = runtime.wait_until(&two(), |snapshot| snapshot.state == "Done").await;
    });
    settle().await;
    world.runtime.send(&two(), "Close", Object::new()).await.expect("taken");
    world.send("Close").await.expect("taken");
    world.send("Follow").await.expect_err("it is closed again");
    watcher.abort();
    drop(watcher.await);
    let world = world.restart_after(10).await;
    world.send("Follow").await.expect_err("as before");
    open(&world).await;
    world.send("Follow").await.expect("as before");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_entity_of_another_tenant_is_as_one_that_does_not_exist() {
    let world = World::with(SESSION, &[]).await;
    world.runtime.send(&one(), "Link", link(&two())).await.expect("taken");
    let missing = world.send("Follow").await.expect_err("it does not exist");
    world.runtime.create_for(two(), "acme").await.expect("new");
    open(&world).await;
    let foreign = world.send("Follow").await.expect_err("it is another tenant's");
    assert_eq!(foreign.to_string(), missing.to_string());
    assert!(foreign.to_string().contains("there was no Session/two"), "{foreign}");
    // A tenant reads its own entities.
    let three: EntityRef = "Session/three".parse().expect("a name");
    world.runtime.create_for(three.clone(), "acme").await.expect("new");
    world.runtime.send(&three, "Link", link(&two())).await.expect("taken");
    world.runtime.send(&three, "Follow", Object::new()).await.expect("it is open");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_transition_reads_and_the_end_of_a_state_is_not_held_up() {
    for is_open in [false, true] {
        let acts = [Act::Answer(1, completed()), Act::Answer(1, failed())];
        let world = pair(&acts).await;
        if is_open {
            open(&world).await;
        }
        world.send("Later").await.expect("taken");
        pass(6).await;
        assert_eq!(world.state().await, if is_open { "Open" } else { "Idle" });
        if is_open {
            world.send("Close").await.expect("taken");
        }
        let new = ("new".to_owned(), json!("child"));
        let params = Object::from([new, ("other".to_owned(), json!("two"))]);
        world.runtime.send(&one(), "Spawn", params).await.expect("taken");
        let child = "Session/child".parse().expect("a name");
        let child = world.runtime.entity(&child).await.expect("it was spawned");
        // The child has no id in its field before its first action.
        assert_eq!(child.state, "Idle");
        world.send("Work").await.expect("taken");
        pass(2).await;
        assert_eq!(world.state().await, if is_open { "Done" } else { "Failed" });
        world.replays().await;
        let world = pair(&[]).await;
        world.send("Wait").await.expect("taken");
        pass(31).await;
        assert_eq!(world.state().await, "Waiting", "the timer is refused, and fires again");
        open(&world).await;
        assert_eq!(world.until("Done").await, 29);
        world.replays().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_recovery_reads_entities_that_it_has_not_reached_yet() {
    for other in ["Session/a", "Session/z"] {
        let other: EntityRef = other.parse().expect("a name");
        let world = World::with(SESSION, &[Act::Hang]).await;
        world.runtime.create(other.clone()).await.expect("new");
        world.runtime.send(&other, "Open", Object::new()).await.expect("taken");
        world.runtime.send(&one(), "Link", link(&other)).await.expect("taken");
        world.send("Work").await.expect("taken");
        settle().await;
        let world = world.restart_after(10).await;
        assert_eq!(world.state().await, "Done", "interrupted, which takes `Worked`: {other}");
        world.replays().await;
    }
}

/// A journal whose reads take a while, or fail.
#[derive(Debug, Default)]
struct Slow(MemoryJournal, AtomicBool);

impl Around for Slow {
    fn inner(&self) -> &dyn Journal {
        &self.0
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(2)).await;
            self.0.append(batch).await
        })
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            if self.1.load(Ordering::SeqCst) {
                return Err(Error::Unavailable { what: "disk gone".to_owned() });
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
            self.0.read_entity(entity, from, limit).await
        })
    }
}

async fn slow(linger: Duration) -> (Arc<Slow>, Runtime) {
    let journal = Arc::new(Slow::default());
    let wall = WallTime::from_millis(1_700_000_000_000);
    let builder = Runtime::builder(Arc::clone(&journal) as Arc<dyn Journal>);
    let builder = builder.clock(Arc::new(SimClock::starting_at(wall))).linger(linger);
    let spec = Spec::parse(SESSION).spec.expect("sound");
    let runtime = builder.specs([spec]).build().await.expect("empty");
    for (name, other) in [(one(), two()), (two(), one())] {
        runtime.create(name.clone()).await.expect("new");
        runtime.send(&name, "Link", link(&other)).await.expect("taken");
    }
    (journal, runtime)
}

async fn records(journal: &MemoryJournal) -> Vec<Record> {
    let (mut records, mut next) = (Vec::new(), Some(Position(0)));
    while let Some(from) = next {
        let page = journal.read(from, PAGE_MAX_ENTRIES).await.expect("readable");
        next = page.next;
        records.extend(page.into_records().expect("whole"));
    }
    records
}

/// Checks that each state that was read was that of its entity at some time before.
fn check_read_states(records: &[Record]) -> usize {
    let mut had: BTreeMap<&EntityRef, BTreeSet<&str>> = BTreeMap::new();
    let mut read = 0;
    for record in records {
        for observed in record.event.observed() {
            let states = had.get(&observed.entity).expect("it was created");
            assert!(states.contains(observed.state.as_deref().expect("it exists")), "{record:?}");
            read += 1;
        }
        let state = match &record.event {
            Event::Created { state, .. } => state,
            Event::Transition { to, .. } => to,
            _ => continue,
        };
        had.entry(record.entity.as_ref().expect("an entity")).or_default().insert(state);
    }
    read
}

#[tokio::test(start_paused = true)]
async fn two_entities_that_read_each_other_never_wait_for_each_other() {
    // Asleep whenever they can be, and awake all the time.
    for linger in [Duration::ZERO, Duration::from_secs(3_600)] {
        let (journal, runtime) = slow(linger).await;
        let client = |name: EntityRef, action: &'static str| {
            let runtime = runtime.clone();
            async move {
                let mut taken = 0;
                for _ in 0..100 {
                    match runtime.send(&name, action, Object::new()).await {
                        Ok(_) => taken += 1,
                        Err(ActorError::Refused { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                taken
            }
        };
        let clients = [(one(), "Begin"), (one(), "Close"), (two(), "Begin"), (two(), "Close")];
        let clients: Vec<_> =
            clients.into_iter().map(|(name, action)| tokio::spawn(client(name, action))).collect();
        let mut taken = 0;
        for client in clients {
            let ended = tokio::time::timeout(Duration::from_secs(600), client).await;
            taken += ended.expect("no deadlock").expect("no panic");
        }
        assert!(taken >= 20, "{taken}");
        let records = records(&journal.0).await;
        assert!(check_read_states(&records) >= taken);
        let mut replay = Replay::new();
        records.iter().for_each(|record| replay.feed(record));
        let divergences = replay.finish().divergences;
        assert!(divergences.is_empty(), "{divergences:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_cannot_be_read_refuses_a_request_and_loses_nothing() {
    let (journal, runtime) = slow(Duration::ZERO).await;
    runtime.send(&two(), "Open", Object::new()).await.expect("taken");
    // It stays awake, because it is watched, and the other one sleeps.
    let watched = runtime.clone();
    let watcher = tokio::spawn(async move {
        watched.wait_until(&one(), |snapshot| snapshot.state == "Open").await.map(|_| ())
    });
    pass(1).await;
    journal.1.store(true, Ordering::SeqCst);
    let refused = runtime.send(&one(), "Follow", Object::new()).await.expect_err("unreadable");
    assert!(matches!(refused, ActorError::JournalUnavailable { .. }), "{refused}");
    journal.1.store(false, Ordering::SeqCst);
    pass(10).await;
    runtime.send(&one(), "Follow", Object::new()).await.expect("it is readable again");
    watcher.await.expect("no panic").expect("it is open");
}
