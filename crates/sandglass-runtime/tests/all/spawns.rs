//! Entities that others spawn are created exactly once, whatever fails in between.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_journal::{
    Around, Batch, Error, Expected, Journal, MemoryJournal, PAGE_MAX_ENTRIES, Pending, Positions,
};
use sandglass_liveness::{Input, Refusal, Replay, Spec, decide};
use sandglass_model::{
    AskUntil, EntityRef, Event, Incarnation, Object, Position, Record, SpawnObstacle,
    TransitionCause, Unspawnable, WallTime,
};
use sandglass_runtime::{ActorError, Runtime, SimClock, Snapshot};
use serde_json::json;

use crate::world::{Act, World, completed, one, pass, settle, soon};

/// A session that spawns by each kind of transition.
const PARENT: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Working", "Waiting", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle"]

[[state]]
name = "child"
type = "string"

[[action]]
name = "Split"
from = ["Idle"]
params = ["id", "text"]
effect = [
  "emit Splitting",
  { type = "spawn", entity_type = "Child", entity_id_source = "id", initial_action = "Begin", store_id_in = "child" },
]

[[action]]
name = "Three"
from = ["Idle"]
effect = ["spawn('Child', 'Begin')", "spawn('Child', 'Begin')", "spawn('Child', 'Finish')"]

[[action]]
name = "Stray"
from = ["Idle"]
effect = "spawn('Stranger', 'Begin')"

[[action]]
name = "Chain"
from = ["Idle"]
effect = "spawn('Child', 'Chain')"

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Worked"
from = ["Working"]
to = "Idle"
effect = "spawn('Child', 'Begin', child, 'of-ending')"

[[action]]
name = "Wait"
from = ["Idle"]
to = "Waiting"

[[action]]
name = "Waited"
from = ["Waiting"]
to = "Idle"
effect = "spawn('Child', 'Begin', child, 'of-timer')"

[[action]]
name = "Later"
from = ["Idle"]
effect = "schedule Due 5"

[[action]]
name = "Due"
from = ["Idle"]
effect = "spawn('Child', 'Begin', child, 'of-schedule')"

[[action]]
name = "Asked"
from = ["Idle"]
effect = "spawn('Child', 'Begin', child, 'of-ask')"

[[action]]
name = "Short"
from = ["Idle"]
effect = "spawn('Child', 'Die', child, 'a')"

[[action]]
name = "End"
from = ["Idle"]
to = "Done"
effect = "spawn('Child', 'Begin', child, 'last')"

[[integration]]
name = "work"
module = "work"
deadline = "100s"
on_success = "Worked"
on_failure = "Worked"
on_timeout = "Worked"

[[state_timeout]]
state = "Waiting"
after_seconds = 30
on_timeout = "Waited"

[[state_timeout]]
state = "Working"
after_seconds = 300
on_timeout = "Worked"
"#;

const CHILD: &str = r#"
[automaton]
name = "Child"
states = ["New", "Begun", "Finished"]
initial = "New"
terminal = ["Finished"]
allow_indefinite_states = ["New", "Begun"]

[[action]]
name = "Begin"
from = ["New"]
to = "Begun"
params = ["text"]

[[action]]
name = "Chain"
from = ["New"]
effect = "spawn('Child', 'Chain')"

[[action]]
name = "Finish"
from = ["Begun"]
to = "Finished"

[[action]]
name = "Die"
from = ["New"]
to = "Finished"
"#;

fn child(id: &str) -> EntityRef {
    EntityRef::new("Child", id).expect("a valid name")
}

fn split(id: &str) -> Object {
    Object::from([("id".to_owned(), json!(id)), ("text".to_owned(), json!("hello"))])
}

async fn family(acts: &[Act]) -> World {
    World::of_types(&[PARENT, CHILD], acts).await
}

/// The kinds of the records of `name`.
fn kinds(records: &[Record], name: &EntityRef) -> Vec<&'static str> {
    let of = records.iter().filter(|record| record.entity.as_ref() == Some(name));
    of.map(|record| record.event.kind()).collect()
}

fn count(records: &[Record], kind: &str) -> usize {
    records.iter().filter(|record| record.event.kind() == kind).count()
}

#[tokio::test(start_paused = true)]
async fn a_spawned_entity_is_there_when_the_request_is_answered() {
    let world = family(&[]).await;
    world.runtime.send(&one(), "Split", split("a")).await.expect("taken");
    let spawned =
        soon(world.runtime.entity(&child("a"))).await.expect("at once").expect("it lives");
    assert_eq!((&*spawned.state, spawned.sequence.0), ("Begun", 1));
    let parent = world.now().await;
    assert_eq!(parent.variables["child"], "a");
    assert!(parent.is_settled());
    let records = world.records().await;
    let of_parent = ["created", "transition", "emitted", "spawning", "spawned"];
    assert_eq!(kinds(&records, &one()), of_parent);
    assert_eq!(kinds(&records, &child("a")), ["created", "transition"]);
    let first = records.iter().find_map(|record| match &record.event {
        Event::Transition { params, cause: TransitionCause::Spawned, .. } => Some(params),
        _ => None,
    });
    let first = first.expect("its first action");
    assert_eq!((&first["text"], &first["parent_id"]), (&json!("hello"), &json!("one")));
    world.runtime.send(&child("a"), "Finish", Object::new()).await.expect("it is as any other");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_known_refuses_the_action_whatever_the_tenant_and_nothing_changes() {
    let world = family(&[]).await;
    world.runtime.create_for(child("a"), "acme").await.expect("new");
    let before = world.records().await.len();
    let refused = world.runtime.send(&one(), "Split", split("a")).await.expect_err("it exists");
    let expected = Unspawnable { entity: child("a"), reason: SpawnObstacle::Exists };
    let ActorError::Refused { refusal, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*refusal, Refusal::Unspawnable(expected));
    assert!(!refused.to_string().contains("acme"), "{refused}");
    let refused = world.send("Stray").await.expect_err("no such type");
    assert!(refused.to_string().contains("Stranger") && refused.to_string().contains("no spec"));
    assert_eq!(world.records().await.len(), before);
    assert_eq!(world.now().await.variables["child"], "");
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_transition_spawns() {
    let asks =
        Act::Ask(one(), "Asked", AskUntil::Transition, Box::new(Act::Answer(1, completed())));
    let world = family(&[asks, Act::Answer(1, completed())]).await;
    let other: EntityRef = "Session/asker".parse().expect("a name");
    world.runtime.create(other.clone()).await.expect("new");
    world.runtime.send(&other, "Work", Object::new()).await.expect("taken");
    pass(2).await;
    world.send("Wait").await.expect("taken");
    pass(31).await;
    world.send("Later").await.expect("taken");
    pass(6).await;
    for id in ["of-ask", "of-ending", "of-timer", "of-schedule"] {
        let spawned = world.runtime.entity(&child(id)).await;
        let spawned = spawned.unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!((&*spawned.state, &*spawned.tenant), ("Begun", "default"), "{id}");
    }
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn what_ends_a_state_is_taken_even_if_its_entity_exists() {
    let world = family(&[Act::Answer(1, completed())]).await;
    for id in ["of-ending", "of-timer", "of-schedule"] {
        world.runtime.create(child(id)).await.expect("new");
    }
    // The success becomes a failure, whose action is taken.
    world.send("Work").await.expect("taken");
    pass(2).await;
    assert_eq!(world.state().await, "Idle");
    world.send("Wait").await.expect("taken");
    pass(31).await;
    assert_eq!(world.state().await, "Idle");
    world.send("Later").await.expect("taken");
    pass(6).await;
    let records = world.records().await;
    assert_eq!((count(&records, "spawning"), count(&records, "spawn_refused")), (2, 2));
    let due = records.iter().find_map(|record| match &record.event {
        Event::ScheduleDue { taken, unspawnable, .. } => Some((taken, unspawnable)),
        _ => None,
    });
    assert!(matches!(due, Some((false, Some(_)))), "{due:?}");
    assert!(world.now().await.is_settled());
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_first_action_that_is_refused_is_recorded_and_the_entity_is_there() {
    let world = family(&[]).await;
    world.send("Three").await.expect("taken");
    let records = world.records().await;
    assert_eq!((count(&records, "spawning"), count(&records, "spawned")), (3, 3));
    let refused = records.iter().find_map(|record| match &record.event {
        Event::Spawned { action_refused: Some(why), entity, .. } => Some((why, entity)),
        _ => None,
    });
    let (why, entity) = refused.expect("New does not take Finish");
    assert!(why.contains("Finish"), "{why}");
    assert_eq!(world.runtime.entity(entity).await.expect("it lives").state, "New");
    world.replays().await;
}

#[tokio::test(start_paused = true)]
async fn a_chain_of_spawns_ends() {
    let world = family(&[]).await;
    world.send("Chain").await.expect("taken");
    settle().await;
    let records = world.records().await;
    assert_eq!((count(&records, "spawned"), count(&records, "spawn_refused")), (256, 1));
    let refused = records.iter().find_map(|record| match &record.event {
        Event::SpawnRefused { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(refused, Some(SpawnObstacle::TooMany));
    world.replays().await;
}

/// A journal that refuses some batches.
#[derive(Debug, Default)]
struct Picky(MemoryJournal, Mutex<Option<Refuses>>);

type Refuses = fn(&Batch) -> bool;

impl Around for Picky {
    fn inner(&self) -> &dyn Journal {
        &self.0
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        match *self.1.lock().expect("no panic") {
            Some(refuses) if refuses(&batch) => {
                Box::pin(async { Err(Error::Unavailable { what: "disk full".to_owned() }) })
            }
            _ => self.0.append(batch),
        }
    }
}

impl Picky {
    fn refuse(&self, refuses: Option<fn(&Batch) -> bool>) {
        *self.1.lock().expect("no panic") = refuses;
    }

    async fn records(&self) -> Vec<Record> {
        let page = self.0.read(Position(0), PAGE_MAX_ENTRIES).await.expect("readable");
        page.into_records().expect("whole")
    }

    /// How often the child `a` was created, and how often that was recorded, in a journal that replays.
    async fn created(&self) -> (usize, usize) {
        let records = self.records().await;
        let mut replay = Replay::new();
        records.iter().for_each(|record| replay.feed(record));
        let summary = replay.finish();
        assert_eq!(summary.divergence_count, 0, "{:#?}", summary.divergences);
        let created =
            kinds(&records, &child("a")).iter().filter(|kind| **kind == "created").count();
        (created, count(&records, "spawned"))
    }
}

fn is_of_child(batch: &Batch) -> bool {
    batch.entity.as_ref().is_some_and(|entity| entity.entity_type() == "Child")
}

fn is_end_of_spawn(batch: &Batch) -> bool {
    batch.records.iter().any(|(_, event)| matches!(event, Event::Spawned { .. }))
}

async fn start(journal: &Arc<Picky>) -> Runtime {
    let specs = [PARENT, CHILD].map(|source| Spec::parse(source).spec.expect("valid"));
    let clock = SimClock::starting_at(WallTime::from_millis(1_700_000_000_000));
    let builder = Runtime::builder(Arc::clone(journal) as _).specs(specs);
    let builder = builder.clock(Arc::new(clock)).linger(Duration::ZERO);
    builder.build().await.expect("a sound journal")
}

async fn is_settled(runtime: &Runtime) -> bool {
    let now = runtime.entity(&one()).await.expect("it lives");
    assert_eq!(now.variables["child"], "a", "its transition was taken");
    now.is_settled()
}

#[tokio::test(start_paused = true)]
async fn a_spawn_that_the_disk_interrupts_is_carried_out_once_it_works() {
    for refuses in [is_of_child, is_end_of_spawn] {
        let journal = Arc::new(Picky::default());
        let runtime = start(&journal).await;
        runtime.create(one()).await.expect("new");
        journal.refuse(Some(refuses));
        runtime.send(&one(), "Split", split("a")).await.expect("its transition is durable");
        pass(60).await;
        assert!(!is_settled(&runtime).await);
        assert!(soon(runtime.settled(&one())).await.is_none(), "it waits");
        journal.refuse(None);
        pass(6).await;
        assert!(is_settled(&runtime).await);
        assert_eq!(journal.created().await, (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_spawn_that_a_crash_interrupts_is_carried_out_once_by_the_next_start() {
    for refuses in [is_of_child, is_end_of_spawn] {
        let journal = Arc::new(Picky::default());
        let runtime = start(&journal).await;
        runtime.create(one()).await.expect("new");
        journal.refuse(Some(refuses));
        runtime.send(&one(), "Split", split("a")).await.expect("its transition is durable");
        drop(runtime);
        settle().await;
        journal.refuse(None);
        let runtime = start(&journal).await;
        let settled: Arc<Snapshot> = runtime.settled(&one()).await.expect("it lives");
        assert_eq!(settled.variables["child"], "a");
        assert_eq!(journal.created().await, (1, 1));
        assert_eq!(runtime.entity(&child("a")).await.expect("it lives").state, "Begun");
        drop(runtime);
        let runtime = start(&journal).await;
        settle().await;
        assert!(is_settled(&runtime).await);
        assert_eq!(journal.created().await, (1, 1), "nothing is done twice");
    }
}

#[tokio::test(start_paused = true)]
async fn an_id_that_turns_out_to_exist_is_recorded_as_refused() {
    let journal = Arc::new(Picky::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    journal.refuse(Some(is_of_child));
    runtime.send(&one(), "Split", split("a")).await.expect("there is none yet");
    // Another process creates it before this one can.
    let spec = Spec::parse(CHILD).spec.expect("valid");
    let incarnation = Incarnation::from_bytes([7; 16]);
    let create = Input::Create { name: child("a"), incarnation, tenant: None, spawned_by: None };
    let at = WallTime::from_millis(1_700_000_000_000);
    let created = decide(&spec, None, &create, at).expect("new").events;
    let records = created.into_iter().map(|event| (Default::default(), event)).collect();
    journal.0.append(Batch::new(child("a"), Expected::None, at, records)).await.expect("new");
    journal.refuse(None);
    pass(6).await;
    assert!(is_settled(&runtime).await);
    let records = journal.records().await;
    let end = records.last().expect("records");
    let reason = SpawnObstacle::Exists;
    assert!(
        matches!(&end.event, Event::SpawnRefused { entity, reason: why, .. } if *entity == child("a") && *why == reason),
        "{end:?}"
    );
    assert_eq!(journal.created().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_has_ended_still_spawns() {
    let journal = Arc::new(Picky::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    journal.refuse(Some(is_of_child));
    runtime.send(&one(), "End", Object::new()).await.expect("its transition is durable");
    let pruned = runtime.prune(sandglass_liveness::Retention::Keep(0)).await.expect("readable");
    assert_eq!(pruned.entities, 0, "it has an entity to create");
    drop(runtime);
    journal.refuse(None);
    let runtime = start(&journal).await;
    runtime.settled(&one()).await.expect("it lives");
    assert_eq!(runtime.entity(&child("last")).await.expect("it lives").state, "Begun");
}

#[tokio::test(start_paused = true)]
async fn an_entity_that_has_ended_is_not_removed_before_its_parent_has_recorded_it() {
    let journal = Arc::new(Picky::default());
    let runtime = start(&journal).await;
    runtime.create(one()).await.expect("new");
    journal.refuse(Some(is_end_of_spawn));
    runtime.send(&one(), "Short", Object::new()).await.expect("its transition is durable");
    settle().await;
    let prune = || runtime.prune(sandglass_liveness::Retention::Keep(0));
    assert_eq!(prune().await.expect("readable").entities, 0);
    let parent = runtime.entity(&one()).await.expect("it lives");
    assert_eq!(parent.spawning, [child("a")]);
    journal.refuse(None);
    pass(6).await;
    assert!(is_settled(&runtime).await);
    assert_eq!(journal.created().await, (1, 1));
    assert_eq!(prune().await.expect("readable").entities, 1);
}
