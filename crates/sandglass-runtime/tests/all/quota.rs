//! The spawned entities of a tenant that have something to do are bounded, whatever spawns them.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::{Journal, MemoryJournal, PAGE_MAX_ENTRIES};
use sandglass_liveness::{Replay, Spec};
use sandglass_model::{EntityRef, Event, Object, Position, Record, SpawnObstacle, WallTime};
use sandglass_runtime::{NewEntity, Runtime, SimClock};

use crate::world::{pass, settle, soon};

const MAX: u32 = 20;

/// A cell ends by becoming two, `EFFECT` after it began to grow.
const CELL: &str = r#"
[automaton]
name = "Cell"
states = ["New", "Growing", "Done"]
initial = "New"
terminal = ["Done"]
allow_indefinite_states = ["New"]

[[action]]
name = "Grow"
from = ["New"]
to = "Growing"
effect = "EFFECT"

[[action]]
name = "Split"
from = ["Growing"]
to = "Done"
effect = ["spawn('Cell', 'Grow')", "spawn('Cell', 'Grow')"]

[[integration]]
name = "work"
module = "work"
deadline = "10s"
on_success = "Split"
on_failure = "Split"
on_timeout = "Split"

[[state_timeout]]
state = "Growing"
after_seconds = 5
on_timeout = "Split"
"#;

/// A shop has orders, which end by themselves after half a minute.
const SHOP: &str = r#"
[automaton]
name = "Shop"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[action]]
name = "Sell"
from = ["Open"]
effect = ["spawn('Order', 'Begin')", "spawn('Order', 'Begin')", "spawn('Order', 'Begin')", "spawn('Order', 'Begin')", "spawn('Order', 'Begin')", "spawn('Order', 'Begin')", "spawn('Order', 'Begin')", "spawn('Order', 'Begin')"]
"#;

const ORDER: &str = r#"
[automaton]
name = "Order"
states = ["New", "Waiting", "Done"]
initial = "New"
terminal = ["Done"]
allow_indefinite_states = ["New"]

[[action]]
name = "Begin"
from = ["New"]
to = "Waiting"

[[action]]
name = "End"
from = ["Waiting"]
to = "Done"

[[state_timeout]]
state = "Waiting"
after_seconds = 30
on_timeout = "End"
"#;

/// A day ends by beginning the next one.
const DAY: &str = r#"
[automaton]
name = "Day"
states = ["New", "Done"]
initial = "New"
terminal = ["Done"]
allow_indefinite_states = ["New"]

[[action]]
name = "Begin"
from = ["New"]
effect = "schedule Next 86400"

[[action]]
name = "Next"
from = ["New"]
to = "Done"
effect = "spawn('Day', 'Begin')"
"#;

/// A world without an executor of handlers, so that each one fails at once.
struct Hosted {
    journal: Arc<MemoryJournal>,
    specs: Vec<Arc<Spec>>,
    clock: SimClock,
    runtime: Runtime,
}

impl Hosted {
    async fn of(sources: &[&str]) -> Self {
        let specs = sources.iter().map(|source| {
            let parsed = Spec::parse(source);
            Arc::new(parsed.spec.unwrap_or_else(|| panic!("{:#?}", parsed.diagnostics)))
        });
        let (specs, journal) = (specs.collect::<Vec<_>>(), Arc::new(MemoryJournal::new()));
        let clock = SimClock::starting_at(WallTime::from_millis(1_700_000_000_000));
        let runtime = start(&journal, &specs, clock).await;
        Self { journal, specs, clock, runtime }
    }

    /// Drops the runtime, and starts another one.
    async fn restart(&mut self) {
        self.runtime = start(&Arc::new(MemoryJournal::new()), &self.specs, self.clock).await;
        settle().await;
        self.runtime = start(&self.journal, &self.specs, self.clock).await;
    }

    /// Creates an entity for `tenant` and has it take `action`.
    async fn act(&self, name: &str, tenant: &str, action: &str) {
        let name: EntityRef = name.parse().expect("a name");
        let new = NewEntity { tenant: Some(tenant.to_owned()), ..NewEntity::default() };
        self.runtime.create_as(name.clone(), new).await.expect("new");
        self.again(&name, action).await;
    }

    async fn again(&self, name: &EntityRef, action: &str) {
        let taken = soon(self.runtime.send(name, action, Object::new())).await;
        taken.expect("the host responds").expect("taken");
        settle().await;
    }

    /// How many entities were spawned, and how many spawns were refused since there were too many.
    async fn spawns(&self) -> (usize, usize) {
        let (mut records, mut next) = (Vec::new(), Some(Position(0)));
        while let Some(from) = next {
            let page = self.journal.read(from, PAGE_MAX_ENTRIES).await.expect("readable");
            next = page.next;
            records.extend(page.into_records().expect("whole"));
        }
        let mut replay = Replay::new();
        records.iter().for_each(|record| replay.feed(record));
        let summary = replay.finish();
        assert_eq!(summary.divergence_count, 0, "{:#?}", summary.divergences);
        let count = |is: fn(&Event) -> bool| {
            records.iter().filter(|record: &&Record| is(&record.event)).count()
        };
        let refused = |event: &Event| {
            matches!(event, Event::SpawnRefused { reason: SpawnObstacle::TooMany, .. })
        };
        (count(|event| matches!(event, Event::Spawned { .. })), count(refused))
    }
}

async fn start(journal: &Arc<MemoryJournal>, specs: &[Arc<Spec>], clock: SimClock) -> Runtime {
    let builder = Runtime::builder(Arc::clone(journal) as _).specs(specs.iter().cloned());
    let builder = builder.clock(Arc::new(clock)).linger(Duration::ZERO).busy_spawned_max(MAX);
    builder.build().await.expect("a sound journal")
}

#[tokio::test(start_paused = true)]
async fn entities_that_double_themselves_stop_and_spawn_again_later() {
    // By the end of a handler, by a schedule, and by the timer of a state.
    for effect in ["trigger work", "schedule Split 0", "emit Growing"] {
        let world = Hosted::of(&[&CELL.replace("EFFECT", effect)]).await;
        world.act("Cell/one", "acme", "Grow").await;
        pass(3_600).await;
        let (spawned, refused) = world.spawns().await;
        let max = MAX as usize;
        assert!((max..max * 3).contains(&spawned), "{effect}: {spawned} spawned");
        assert!(refused >= max / 2, "{effect}: {refused} refused");
        pass(24 * 3_600).await;
        assert_eq!(world.spawns().await, (spawned, refused), "{effect}: it is over");
        world.act("Cell/two", "acme", "Grow").await;
        pass(3_600).await;
        let (again, _) = world.spawns().await;
        assert!((max..max * 3).contains(&(again - spawned)), "{effect}: {again} spawned");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_bounded_by_itself_also_after_a_restart() {
    let mut world = Hosted::of(&[SHOP, ORDER]).await;
    let shop: EntityRef = "Shop/one".parse().expect("a name");
    world.act("Shop/one", "acme", "Sell").await;
    for _ in 0..2 {
        world.again(&shop, "Sell").await;
    }
    assert_eq!(world.spawns().await, (20, 4));
    world.restart().await;
    world.again(&shop, "Sell").await;
    assert_eq!(world.spawns().await, (20, 12), "what sleeps until its timer fires counts");
    world.act("Shop/other", "other", "Sell").await;
    assert_eq!(world.spawns().await, (28, 12));
    pass(31).await;
    world.again(&shop, "Sell").await;
    assert_eq!(world.spawns().await, (36, 12), "all have come to rest");
}

#[tokio::test(start_paused = true)]
async fn a_restart_amid_growth_does_not_lift_the_bound() {
    let mut world = Hosted::of(&[&CELL.replace("EFFECT", "emit Growing")]).await;
    world.act("Cell/one", "acme", "Grow").await;
    pass(17).await;
    let (before, _) = world.spawns().await;
    assert!((2..MAX as usize).contains(&before), "{before}: it grows");
    world.restart().await;
    pass(3_600).await;
    let (spawned, refused) = world.spawns().await;
    assert!((MAX as usize..3 * MAX as usize).contains(&spawned), "{spawned} spawned");
    assert!(refused > 0);
}

#[tokio::test(start_paused = true)]
async fn a_slow_chain_goes_on_forever() {
    let world = Hosted::of(&[DAY]).await;
    world.act("Day/one", "acme", "Begin").await;
    pass(400 * 86_400 + 10).await;
    assert_eq!(world.spawns().await, (400, 0));
}
