//! Measures what kills of every kind leave behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sandglass_host::Settings;
use serde_json::{Map, Value};
use tokio::task::JoinSet;

use crate::bench_host::{BenchHost, one_thread};
use crate::figure::{Figure, Unit};
use crate::guests;
use crate::idling::pause;
use crate::process::Resources;
use crate::recorder::HostMetrics;
use crate::timing::Samples;
use crate::{Effort, Failure};

/// Kills that are in progress at the same time.
const AT_ONCE: u32 = 32;

/// The budget of each guest, and how long a caller waits before it goes away.
const BUDGET: Duration = Duration::from_millis(1);

/// Kills before the first count, so that everything that is allocated once and kept exists.
const WARM_UP: u32 = 1000;

/// The budget of the guests that fill the pool: all of them begin before the first is killed.
const FILLING: Duration = Duration::from_millis(500);

/// Allowed growth of resident memory, in bytes: some 40 bytes for each of 100,000 kills. What an
/// allocator keeps for later use is not a leak.
const RESIDENT_SLACK: f64 = (4 << 20) as f64;

/// The host's gauges that must return to their values from before, each with the name of its count.
const GAUGES: [(&str, &str); 5] = [
    ("stores", "wasm_live_stores"),
    ("tasks", "wasm_live_dispatches"),
    ("permits", "handlers_in_flight"),
    ("queued", "handlers_queued"),
    ("slots", "wasm_pool_slots_in_use"),
];

/// Guests by where they are when they are killed.
struct Victims {
    in_its_code: BenchHost,
    in_a_host_call: BenchHost,
    in_its_start_function: BenchHost,
    in_its_initialiser: BenchHost,
    in_its_tasks: BenchHost,
}

/// Counts what is left beyond what existed before.
pub(crate) fn measure(effort: Effort) -> Result<Figure, Failure> {
    let reported = HostMetrics::default();
    // Exactly as many slots as are used at once, because each slot has mappings of its own from its
    // first use on.
    let settings = Settings { max_runs: AT_ONCE, max_asking: 0, ..Settings::default() };
    let spins = BenchHost::with(settings, reported.telemetry(), guests::SPINS)?;
    let victims = Arc::new(Victims {
        in_a_host_call: spins.with_guest(guests::WAITS)?,
        in_its_start_function: spins.with_guest(guests::SPINS_IN_START)?,
        in_its_initialiser: spins.with_guest(guests::SPINS_IN_INITIALISER)?,
        in_its_tasks: spins.with_guest(guests::WAITS_IN_TASKS)?,
        in_its_code: spins,
    });
    let embedder = one_thread()?;
    let kills = effort.of(2000, 100_000);
    let filling = victims.in_its_code.with_guest(guests::WAITS_WITH_TWO_MEMORIES)?;
    for filling in [&filling, &victims.in_its_tasks] {
        embedder.block_on(fill(filling))?;
    }
    embedder.block_on(kill(&victims, WARM_UP))?;
    let before = count_resources(&reported)?;
    embedder.block_on(kill(&victims, kills))?;
    let after = count_resources(&reported)?;

    let growth = |name: &str| count(&after, name) - count(&before, name);
    let resident = growth("resident_bytes").max(0.0);
    let left: f64 = before
        .keys()
        .filter(|name| *name != "resident_bytes")
        .map(|name| growth(name).max(0.0))
        .sum();
    let mut one = Samples::default();
    one.push(left);
    let figure = Figure { samples: u64::from(kills), ..Figure::of(&one, Unit::Count) };
    Ok(figure.with("before", before).with("after", after).with_goal("p50", 0.0, left).with_goal(
        "bytes more resident",
        RESIDENT_SLACK,
        resident,
    ))
}

/// Uses every slot of the pool at the same time, with all memories that it has space for. Each slot
/// has mappings of its own from its first use on, so they must exist before the first count.
async fn fill(waits: &BenchHost) -> Result<(), Failure> {
    let mut all = JoinSet::new();
    for _ in 0..AT_ONCE {
        let one = waits.clone();
        all.spawn(async move { one.kill(FILLING).await });
    }
    while let Some(killed) = all.join_next().await {
        killed??;
    }
    Ok(())
}

fn count(held: &Map<String, Value>, name: &str) -> f64 {
    held.get(name).and_then(Value::as_f64).unwrap_or(0.0)
}

/// Counts what the process and the host hold, after the last handler has released its resources.
fn count_resources(reported: &HostMetrics) -> Result<Map<String, Value>, Failure> {
    // A handler whose caller has gone ends by itself, at the next slice at the latest.
    let ended = || reported.gauge("wasm_live_dispatches") == 0.0;
    for _ in 0..500 {
        if ended() {
            break;
        }
        pause(Duration::from_millis(10));
    }
    let held = Resources::now()?;
    let mut all = Map::new();
    for (name, number) in [
        ("threads", held.threads),
        ("mappings", held.mappings),
        ("files", held.files),
        ("sockets", held.sockets),
        ("resident_bytes", held.resident_bytes),
    ] {
        all.insert(name.to_owned(), number.into());
    }
    for (name, gauge) in GAUGES {
        all.insert(name.to_owned(), reported.gauge(gauge).into());
    }
    Ok(all)
}

async fn kill(victims: &Arc<Victims>, kills: u32) -> Result<(), Failure> {
    let next = Arc::new(AtomicU32::new(0));
    let mut killers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (victims, next) = (Arc::clone(victims), Arc::clone(&next));
        killers.spawn(async move {
            loop {
                let kill = next.fetch_add(1, Ordering::Relaxed);
                if kill >= kills {
                    return Ok::<_, Failure>(());
                }
                victims.kill(kill).await?;
            }
        });
    }
    while let Some(killed) = killers.join_next().await {
        killed??;
    }
    Ok(())
}

impl Victims {
    /// Kills one guest; `turn` selects which, so that all of them take turns.
    async fn kill(&self, turn: u32) -> Result<(), Failure> {
        let late = match turn % 8 {
            0 => self.in_its_code.kill(BUDGET).await,
            1 => self.in_a_host_call.kill(BUDGET).await,
            2 => self.in_its_start_function.kill(BUDGET).await,
            3 => self.in_its_initialiser.kill(BUDGET).await,
            4 => self.in_its_tasks.kill(BUDGET).await,
            5 => return abandon(&self.in_its_tasks).await,
            6 => return abandon(&self.in_its_code).await,
            _ => return abandon(&self.in_a_host_call).await,
        };
        late.map(drop)
    }
}

/// Dispatches a guest that would continue for a long time, and drops the call.
async fn abandon(host: &BenchHost) -> Result<(), Failure> {
    #[allow(clippy::disallowed_methods, reason = "a caller who goes away does so in real time")]
    match tokio::time::timeout(BUDGET, host.run(Duration::from_secs(60))).await {
        Err(_) => Ok(()),
        Ok(outcome) => Err(format!("nothing ends this guest, but {:?}", outcome?).into()),
    }
}
