//! A runtime over the journals of a partitioned store: each entity is in the journal of its name, and
//! each journal replays alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use sandglass_journal::{Journal, Journals, MemoryJournal, PAGE_MAX_ENTRIES};
use sandglass_liveness::{Replay, Retention, Spec};
use sandglass_model::{
    Ask, AskUntil, Cursor, EntityRef, Event, Monotonic, Object, Partition, Position, Record,
    TransitionCause, WallTime,
};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture, Runtime, SimClock};
use serde_json::json;

use crate::world::pass;

/// A parcel that creates others, and that ends by itself after a while.
const PARCEL: &str = r#"
[automaton]
name = "Parcel"
states = ["Open", "Sent", "Lost"]
initial = "Open"
terminal = ["Sent", "Lost"]

[[action]]
name = "Split"
from = ["Open"]
params = ["id"]
effect = { type = "spawn", entity_type = "Parcel", entity_id_source = "id", initial_action = "Touch" }

[[action]]
name = "Touch"
from = ["Open"]

[[action]]
name = "Send"
from = ["Open"]
to = "Sent"

[[action]]
name = "Lose"
from = ["Open"]
to = "Lost"

[[state_timeout]]
state = "Open"
after_seconds = 3600
on_timeout = "Lose"
"#;

/// An action with a handler, which asks another parcel.
const ASKING: &str = r#"
[[action]]
name = "Call"
from = ["Open"]
params = ["id"]
effect = "trigger call"

[[integration]]
name = "call"
module = "call"
deadline = "1h"
on_success = "Send"
on_failure = "Lose"
on_timeout = "Lose"
"#;

const COUNT: usize = 100;

fn spec(source: &str) -> Spec {
    Spec::parse(source).spec.expect("sound")
}

fn parcel(id: impl std::fmt::Display) -> EntityRef {
    format!("Parcel/{id}").parse().expect("a valid name")
}

fn clock() -> SimClock {
    SimClock::starting_at(WallTime::from_millis(1_700_000_000_000))
}

async fn build(stores: &[Arc<MemoryJournal>], clock: SimClock, source: &str) -> Runtime {
    let journals = Journals::partitioned(|partition| Arc::clone(&stores[partition.index()]) as _);
    let builder = Runtime::builder_over(journals).clock(Arc::new(clock)).specs([spec(source)]);
    builder.build().await.expect("sound journals")
}

fn stores() -> Vec<Arc<MemoryJournal>> {
    Partition::all().map(|_| Arc::new(MemoryJournal::new())).collect()
}

pub(crate) async fn records(journal: &MemoryJournal) -> Vec<Record> {
    let (mut records, mut next) = (Vec::new(), Some(Position(1)));
    while let Some(from) = next {
        let page = journal.read(from, PAGE_MAX_ENTRIES).await.expect("memory works");
        next = page.next;
        records.extend(page.into_records().expect("intact"));
    }
    records
}

/// Checks that each journal replays alone, and holds only entities of its partition.
pub(crate) async fn check(stores: &[Arc<MemoryJournal>]) {
    for (partition, journal) in Partition::all().zip(stores) {
        let mut replay = Replay::new().of_partition(partition);
        for record in records(journal).await {
            let of = record.entity.as_ref().map(Partition::of);
            assert!(of.is_none_or(|of| of == partition), "{record:?} is in {partition}");
            replay.feed(&record);
        }
        let summary = replay.finish();
        assert_eq!(summary.divergence_count, 0, "{partition}: {:#?}", summary.divergences);
    }
}

async fn names(runtime: &Runtime) -> Vec<EntityRef> {
    let (mut names, mut after) = (Vec::new(), None);
    loop {
        let page = runtime.entities(after.as_ref(), 7).await.expect("memory works");
        let Some(last) = page.last() else { return names };
        after = Some(last.clone());
        names.extend(page);
    }
}

#[tokio::test(start_paused = true)]
async fn entities_of_all_partitions_survive_a_restart() {
    let (stores, clock) = (stores(), clock());
    let runtime = build(&stores, clock, PARCEL).await;
    for number in 0..COUNT {
        runtime.create(parcel(number)).await.expect("new");
        let params = Object::from([("id".to_owned(), json!(format!("{number}-child")))]);
        runtime.send(&parcel(number), "Split", params).await.expect("taken");
    }
    pass(1).await;
    let of: BTreeSet<_> = (0..COUNT).map(|number| Partition::of(&parcel(number))).collect();
    assert!(of.len() > 30, "the names are in {} partitions", of.len());
    let ids = (0..COUNT).flat_map(|number| [number.to_string(), format!("{number}-child")]);
    let expected: BTreeSet<_> = ids.map(parcel).collect();
    let expected: Vec<_> = expected.into_iter().collect();
    assert_eq!(names(&runtime).await, expected);
    drop(runtime);
    check(&stores).await;

    let runtime = build(&stores, clock, PARCEL).await;
    assert_eq!(names(&runtime).await, expected);
    runtime.send(&parcel("7"), "Send", Object::new()).await.expect("taken");
    // The timers of all others go on, in whichever journal they are.
    pass(3_700).await;
    for name in &expected {
        let state = runtime.entity(name).await.expect("there").state.clone();
        assert_eq!(state, if *name == parcel("7") { "Sent" } else { "Lost" }, "{name}");
    }
    check(&stores).await;

    // The stream of all journals has every record once, specs included.
    let all: usize = {
        let mut all = 0;
        for journal in &stores {
            all += records(journal).await.len();
        }
        all
    };
    let (mut after, mut seen) = (Cursor::start(stores.len()), 0);
    loop {
        let page = runtime.records(after, 50).await.expect("memory works");
        seen += page.entries.len();
        if page.is_end {
            break;
        }
        after = page.next;
    }
    assert_eq!(seen, all);

    // Those that sleep again can be pruned.
    pass(10).await;
    let kept = runtime.prune(Retention::Keep(2 * COUNT as u64)).await.expect("memory works");
    assert_eq!(kept.entities, 0);
    let pruned = runtime.prune(Retention::Keep(0)).await.expect("memory works");
    assert_eq!(pruned.entities, 2 * COUNT as u64);
    assert_eq!(names(&runtime).await, []);
}

/// Handlers that ask the entity that their action names, and never end.
struct Asks;

impl Handlers for Asks {
    fn start(&self, run: HandlerRun) -> RunFuture {
        Box::pin(async move {
            let target = run.dispatched.params["id"].as_str().map(parcel).expect("a name");
            let (action, params) = ("Touch".to_owned(), Object::new());
            let (until, not_after) = (AskUntil::Transition, Monotonic::from_nanos(10_000_000_000));
            let trace = run.dispatched.trace;
            let ask = Ask { target, action, params, until, not_after, trace };
            run.asks.ask(ask).await.expect("it takes the action");
            std::future::pending().await
        })
    }
}

#[tokio::test(start_paused = true)]
async fn no_effect_comes_before_its_cause_in_another_partition() {
    let stores = stores();
    let journals = Journals::partitioned(|partition| Arc::clone(&stores[partition.index()]) as _);
    let asking = format!("{PARCEL}{ASKING}");
    let builder = Runtime::builder_over(journals).clock(Arc::new(clock())).specs([spec(&asking)]);
    let runtime = builder.handlers(Arc::new(Asks)).build().await.expect("empty journals");
    for number in 0..COUNT {
        runtime.create(parcel(number)).await.expect("new");
    }
    for number in 0..COUNT {
        let to = |id: String| Object::from([("id".to_owned(), json!(id))]);
        let child = to(format!("{number}-child"));
        runtime.send(&parcel(number), "Split", child).await.expect("taken");
        let other = to(((number + 1) % COUNT).to_string());
        runtime.send(&parcel(number), "Call", other).await.expect("taken");
    }
    pass(1).await;
    let (mut after, mut caused, mut effects) = (Cursor::start(stores.len()), BTreeSet::new(), 0);
    loop {
        let page = runtime.records(after, 50).await.expect("memory works");
        for (_, entry) in page.entries {
            let record = entry.into_record().expect("intact");
            let name = record.entity.as_ref().map(ToString::to_string).unwrap_or_default();
            let cause = match &record.event {
                Event::Dispatched(dispatched) => {
                    caused.insert(dispatched.dispatch.to_string());
                    continue;
                }
                Event::Spawning(spawn) => {
                    caused.insert(format!("{} is spawned", spawn.entity));
                    continue;
                }
                Event::Created { spawned_by: Some(_), .. } => {
                    caused.insert(name.clone());
                    format!("{name} is spawned")
                }
                Event::Spawned { entity, .. } => entity.to_string(),
                Event::Transition { cause: TransitionCause::Asked(asked), .. } => {
                    asked.dispatch.to_string()
                }
                _ => continue,
            };
            assert!(caused.contains(&cause), "{cause} comes after {record:?}");
            effects += 1;
        }
        if page.is_end {
            break;
        }
        after = page.next;
    }
    assert_eq!(effects, 3 * COUNT);
    check(&stores).await;
}

#[tokio::test(start_paused = true)]
async fn every_journal_has_the_specs_of_its_entities() {
    let (stores, clock) = (stores(), clock());
    let runtime = build(&stores, clock, PARCEL).await;
    for number in 0..COUNT {
        runtime.create(parcel(number)).await.expect("new");
    }
    let newer = PARCEL.replace("3600", "7200");
    // One journal does not work while the others take the new spec.
    let failing = &stores[Partition::of(&parcel(1)).index()];
    failing.set_failing(Some("disk full".to_owned()));
    runtime.reload([spec(&newer)]).await.expect_err("one journal takes nothing");
    failing.set_failing(None);
    drop(runtime);
    // The next start knows the newer spec from the other journals only.
    let runtime = build(&stores, clock, PARCEL).await;
    runtime.reload([spec(&newer)]).await.expect("all journals work");
    pass(10).await;
    let digest = spec(&newer).digest;
    for number in 0..COUNT {
        let entity = runtime.entity(&parcel(number)).await.expect("there");
        assert_eq!(entity.spec, digest);
    }
    drop(runtime);
    check(&stores).await;
    for journal in &stores {
        let records = records(journal).await;
        let registered = |record: &&Record| matches!(record.event, Event::SpecRegistered { .. });
        assert!(records.iter().filter(registered).count() >= 2);
    }
    build(&stores, clock, &newer).await;
}
