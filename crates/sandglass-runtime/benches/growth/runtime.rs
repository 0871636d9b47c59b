//! Actions of the runtime: with more entities that are awake, and with a longer history of one.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_journal::{Checking, Journal, MemoryJournal, Settings, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Object};
use sandglass_runtime::Runtime;

use crate::table::{Growth, repeat};
use crate::timing::Quantiles;

/// Counts; its entities wait for ever.
const COUNTER: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[state]]
name = "touched"
type = "counter"

[[action]]
name = "Touch"
from = ["Open"]
effect = [{ type = "increment", var = "touched" }]
"#;

/// How often a sleeping entity is woken.
const WOKEN: usize = 11;

async fn runtime(journal: Arc<dyn Journal>, linger: Duration) -> Runtime {
    let spec = Spec::parse(COUNTER).spec.expect("sound");
    let builder = Runtime::builder(journal).specs([spec]).linger(linger);
    builder.build().await.expect("a journal that can be read")
}

/// Over the journal at `path`, which is closed by the shutdown of the runtime.
async fn on_disk(path: &Path) -> Runtime {
    let settings = Settings::default().checking(Checking::Later);
    let opened = SqliteJournal::open(path, settings).expect("a file of its own");
    runtime(Arc::new(opened.journal), Duration::from_secs(3_600)).await
}

fn counter(number: u64) -> EntityRef {
    format!("Counter/{number}").parse().expect("a valid name")
}

async fn touch(runtime: &Runtime, entity: EntityRef) {
    runtime.send(&entity, "Touch", Object::new()).await.expect("taken");
}

pub(crate) async fn run(folder: &Path) {
    let awake = runtime(Arc::new(MemoryJournal::new()), Duration::from_secs(3_600)).await;
    let mut growth = Growth::of("an action in memory, by entities that are awake");
    let mut created = 0;
    for count in [100, 1_000, 10_000, 100_000] {
        while created < count {
            awake.create(counter(created)).await.expect("new");
            created += 1;
        }
        growth.add(count, repeat(|| touch(&awake, counter(random(count)))).await);
    }
    growth.print();
    awake.shutdown(Duration::from_secs(5)).await;

    let path = folder.join("long.db");
    let mut action = Growth::of("a durable action, by records of its entity");
    let mut wakes = Growth::of("the same if the entity is asleep");
    let (long, mut records) = (counter(0), 0);
    let writing = on_disk(&path).await;
    writing.create(long.clone()).await.expect("new");
    writing.shutdown(Duration::from_secs(5)).await;
    for count in [100, 1_000, 10_000, 100_000] {
        let writing = on_disk(&path).await;
        while records < count {
            touch(&writing, long.clone()).await;
            records += 1;
        }
        action.add(count, repeat(|| touch(&writing, long.clone())).await);
        writing.shutdown(Duration::from_secs(5)).await;
        let mut took = Vec::new();
        for _ in 0..WOKEN {
            let new = on_disk(&path).await;
            let begun = Instant::now();
            touch(&new, long.clone()).await;
            took.push(begun.elapsed());
            new.shutdown(Duration::from_secs(5)).await;
        }
        wakes.add(count, Quantiles::of(took).p50);
    }
    action.print();
    wakes.print();
}

/// A number below `most`.
fn random(most: u64) -> u64 {
    // Wall time is random enough to choose one of many entities.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::from(now.expect("after 1970").subsec_nanos()) % most
}
