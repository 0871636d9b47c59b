//! The life of one process: it starts from what is on the disk, takes steps of the simulation, and
//! crashes, is restarted, or comes to rest.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{Clock as _, EntityRef, Event as RecordedEvent, WallTime};
use sandglass_runtime::{BuildError, Event, Runtime};

use crate::client::{Clients, Next};
use crate::disk::records;
use crate::fault::Fault;
use crate::invariant::Invariant;
use crate::scene::{Process, Scene};
use crate::store::Store;
use crate::watchdog::WatchedClock;
use crate::world::World;

/// How long a simulation may take to come to rest, in milliseconds: far longer than all timers,
/// budgets and schedules in sequence.
const REST_MAX_MS: i64 = 7 * 24 * 3_600_000;
/// Longer than the delay of any schedule, in milliseconds.
const DUE_MS: u64 = 120_000;
/// Most rounds of resuming at the end of a simulation; no session has that many runs.
const RESUMES_MAX: usize = 1_000;
/// Most entities that are read after a start.
const CHECKED_MAX: usize = 20;
/// How long a graceful shutdown may take.
const GRACE: Duration = Duration::from_secs(5);

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Crashed,
    Restarted,
    /// It could not start, because the disk failed.
    NotStarted,
    /// The simulation is over.
    Rested,
}

/// What remains when a process has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedProcess {
    pub(crate) end: End,
    pub(crate) wall: WallTime,
    /// How many commands it passed.
    pub(crate) commands: u64,
}

/// Runs one process on a tokio runtime of its own. Dropping that runtime drops everything that the
/// process holds.
///
/// # Errors
/// The operating system cannot create a runtime.
pub(crate) fn live(
    scene: &Arc<Scene>,
    wall: WallTime,
    fuse: u64,
    nth: usize,
) -> std::io::Result<EndedProcess> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let tokio = builder.enable_time().start_paused(true).build()?;
    let left = tokio.block_on(async {
        let process = Process::new(Arc::clone(scene), wall, fuse);
        let end = tokio::select! {
            // In a fixed order: the random order of `select!` would not depend on the seed alone.
            biased;
            () = process.crashed() => End::Crashed,
            end = run_process(&process, nth) => end,
        };
        // From here on, tasks that are dropped with the runtime have no effect any more.
        process.crash();
        EndedProcess { end, wall: process.clock.wall(), commands: process.used_of(fuse) }
    });
    drop(tokio);
    record_end(scene, left);
    Ok(left)
}

/// Updates the disk and the ledger after the end of a process.
fn record_end(scene: &Scene, left: EndedProcess) {
    // At the end of the simulation, the power does not fail.
    let survivors = match left.end {
        End::Rested => Vec::new(),
        _ => scene.disk().crash(&scene.crashes, scene.fault),
    };
    let mut ledger = scene.ledger();
    ledger.end_process();
    match left.end {
        End::Crashed => ledger.counts.crashes += 1,
        End::Restarted => ledger.counts.restarts += 1,
        End::NotStarted | End::Rested => {}
    }
    ledger.add_line(|| format!("====== {:?} after {} commands", left.end, left.commands));
    for survivor in survivors {
        ledger.add_line(|| "      this was on the disk:".to_owned());
        ledger.commit(&records(&survivor.batch, survivor.positions));
    }
}

async fn run_process(process: &Process, nth: usize) -> End {
    let scene = &process.scene;
    let store = Store::new(process.clone(), nth > 0);
    tokio::spawn(store.clone().sync_for_ever());
    let world = World::new(process.clone());
    let version = scene.story().version;
    let is_bounded = !scene.has(Fault::LostQuota);
    let busy_spawned_max = if is_bounded { scene.plan.busy_spawned_max } else { u32::MAX };
    let builder = Runtime::builder(Arc::new(store))
        .clock(Arc::new(WatchedClock::new(process.clone())))
        .entropy(Arc::new(scene.entropy.clone()))
        .handlers(Arc::new(world.clone()))
        .linger(Duration::from_millis(scene.plan.linger_ms))
        .awake_max(scene.plan.awake_max)
        .busy_spawned_max(busy_spawned_max)
        .specs(scene.specs[version].clone());
    let runtime = match builder.build().await {
        Ok(runtime) => runtime,
        Err(error) => return report_failed_start(process, &error),
    };
    if scene.has(Fault::DoubledDispatch) {
        world.run_orphans();
    }
    let clients = Clients::new(process.clone(), runtime.clone());
    tokio::spawn(listen(clients, runtime.subscribe()));
    check_all(process, &runtime, CHECKED_MAX).await;
    take_steps(process, &runtime).await
}

/// Takes the remaining steps, and lets everything come to rest.
async fn take_steps(process: &Process, runtime: &Runtime) -> End {
    let scene = &process.scene;
    let clients = Clients::new(process.clone(), runtime.clone());
    while scene.story().step < scene.plan.steps {
        scene.story().step += 1;
        if clients.step().await == Next::Restart {
            runtime.shutdown(GRACE).await;
            return End::Restarted;
        }
        if scene.ledger().is_violated() {
            return End::Rested;
        }
    }
    process.calm();
    wait_for_rest(process).await;
    // First, everything that is scheduled comes due. Then stopped sessions are resumed and come to
    // rest again, until no session can be resumed. Those that are spawned from here on stay stopped: if
    // sessions spawn sessions, there is always another one.
    process.pause_ms(DUE_MS).await;
    let names = scene.ledger().entities().map(|(entity, _)| entity.entity.clone()).collect();
    for round in 0.. {
        // What came due, and requests that were still on their way, may have started handlers.
        wait_for_rest(process).await;
        if scene.ledger().is_violated() || clients.resume_all(&names).await == 0 {
            break;
        }
        if round == RESUMES_MAX {
            let what = format!("sessions can still be resumed after {RESUMES_MAX} rounds");
            process.ledger().report(Invariant::NobodyStuck, what);
        }
        process.pause_ms(DUE_MS).await;
    }
    check_all(process, runtime, usize::MAX).await;
    End::Rested
}

fn report_failed_start(process: &Process, error: &BuildError) -> End {
    let mut ledger = process.ledger();
    ledger.add_line(|| format!("      it cannot start: {error}"));
    let is_wrong = match error {
        BuildError::Journal(error) => {
            !matches!(error, sandglass_journal::Error::Unavailable { .. })
        }
        BuildError::Recovery { error, .. } => {
            !matches!(**error, sandglass_runtime::ActorError::JournalUnavailable { .. })
        }
        BuildError::Unfit { .. } | BuildError::DoubledType(_) | BuildError::Lost(_) => true,
    };
    if is_wrong {
        ledger.report(Invariant::StateIsFold, format!("it cannot start: {error}"));
    }
    End::NotStarted
}

/// Compares all published records with the ledger. In a coarse world, clients follow up on some of
/// them at once, so that their requests fall at the same instant.
async fn listen(clients: Clients, mut events: sandglass_runtime::Subscription) {
    let process = clients.process();
    while let Some(event) = events.next().await {
        let Ok(Event::Recorded(record)) = event else { continue };
        if process.has_crashed() {
            continue;
        }
        process.ledger().check_published(&record);
        if let RecordedEvent::Spawned { entity, .. } = &record.event {
            note_spawned(process, entity);
        }
        let is_followed = process.scene.plan.is_coarse && !process.is_calm();
        if let Some(name) = record.entity.as_ref().filter(|_| is_followed) {
            clients.follow_up(name, &record.event);
        }
    }
}

/// Clients and guests learn of an entity that was spawned, unless they know many.
fn note_spawned(process: &Process, entity: &EntityRef) {
    let (mut story, most) = (process.scene.story(), process.scene.plan.entities);
    if story.names.len() < 2 * most && !story.names.contains(entity) {
        story.names.push(entity.clone());
    }
}

async fn check_all(process: &Process, runtime: &Runtime, most: usize) {
    let names: Vec<EntityRef> =
        process.scene.ledger().entities().map(|(entity, _)| entity.entity.clone()).collect();
    for name in names.iter().take(most) {
        match runtime.entity(name).await {
            Ok(snapshot) => process.ledger().check_snapshot(&snapshot),
            Err(sandglass_runtime::ActorError::JournalUnavailable { .. }) => {}
            Err(error) => {
                let what = format!("{name} is in the log, and cannot be seen: {error}");
                process.ledger().report(Invariant::NobodyStuck, what);
            }
        }
    }
}

/// Waits until all entities have come to rest.
async fn wait_for_rest(process: &Process) {
    let over_ms = process.now_ms() + REST_MAX_MS;
    let mut wait_ms = 100;
    loop {
        process.pause_ms(wait_ms).await;
        wait_ms = (wait_ms * 2).min(3_600_000);
        let restless = {
            let ledger = process.scene.ledger();
            if ledger.is_violated() {
                return;
            }
            ledger.find_restless()
        };
        let Some(restless) = restless else { return };
        if process.now_ms() > over_ms {
            return process.ledger().report(Invariant::NobodyStuck, restless);
        }
    }
}
