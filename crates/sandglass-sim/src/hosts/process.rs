//! One process: a host with the real runtime on an executor of its own, which runs only when the scheduler
//! lets it, and with a member of the cluster around the real tenure.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_cluster::{Routes, Settings};
use sandglass_model::{Clock as _, HostId, Membership, Monotonic, Partition};
use sandglass_runtime::Runtime;
use sandglass_supervisor::lease::Lease;
use tokio::sync::futures::Notified;
use tokio::sync::{Notify, mpsc};

use super::clock::{HostClock, LeaseClock};
use super::forwarding::Delivery;
use super::guest::Guests;
use super::journal::journals;
use super::link::Fate;
use super::member::{Command, Worker};
use super::sim::Sim;
use super::spec::spec;
use super::timeline::{Life, Sleep};
use super::writer::Lane;
use crate::fault::Fault;
use crate::invariant::Invariant;
use crate::scene::lock;

/// Most commands that wait for the member.
const COMMANDS_MAX: usize = 256;

/// A process and its executor. If it is dropped, everything that the process holds is dropped.
pub(crate) struct Process {
    pub(crate) host: Arc<Host>,
    pub(crate) executor: Arc<tokio::runtime::Runtime>,
}

/// What a process knows, and its ways to everything outside.
pub(crate) struct Host {
    pub(crate) sim: Arc<Sim>,
    pub(crate) life: Life,
    pub(crate) clock: Arc<HostClock>,
    pub(crate) lease: Lease,
    id: Mutex<HostId>,
    /// `None` until it is built, and after the end of the process.
    runtime: Mutex<Option<Runtime>>,
    pub(crate) lanes: Vec<Lane>,
    /// The partitions that the runtime is reading, and does not serve yet.
    pub(crate) adopting: Mutex<BTreeSet<Partition>>,
    known: Mutex<Arc<Known>>,
    /// Not a `watch` of tokio, whose waiters are woken in a random order.
    known_changed: Notify,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) threads: tokio::runtime::Handle,
}

/// What a process knows of the others.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) routes: Routes,
    pub(crate) membership: Membership,
    /// How many partitions it holds.
    pub(crate) held: usize,
}

impl Process {
    /// Starts a process in `slot`, which must be free.
    ///
    /// # Errors
    /// The operating system cannot create a runtime.
    pub(crate) fn start(sim: &Arc<Sim>, slot: usize) -> io::Result<()> {
        let number = {
            let mut slots = sim.slots();
            slots[slot].lives += 1;
            slots[slot].lives
        };
        let life = Life { slot, number };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // Its time stands still: the clock of the process is elsewhere. It only shows when every task of
        // the process waits.
        let executor = Arc::new(builder.enable_time().start_paused(true).build()?);
        let clock = Arc::new(HostClock::new(Arc::clone(sim), life));
        let me = HostId::drawn(&sim.entropy).map_err(io::Error::other)?;
        let known = Known { routes: Routes::new(me), membership: Membership::default(), held: 0 };
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let host = Arc::new(Host {
            sim: Arc::clone(sim),
            life,
            lease: Lease::expired_on(Arc::new(LeaseClock(Arc::clone(&clock)))),
            clock,
            id: Mutex::new(me),
            runtime: Mutex::default(),
            lanes: (0..Partition::COUNT).map(|_| Lane::default()).collect(),
            adopting: Mutex::default(),
            known: Mutex::new(Arc::new(known)),
            known_changed: Notify::new(),
            commands,
            threads: executor.handle().clone(),
        });
        let running = Arc::clone(&host);
        executor.spawn(async move { running.run(received).await });
        sim.ledger().begin_process(life);
        sim.slots()[slot].process = Some(Self { host, executor });
        sim.after(0, Some(life), |_| {});
        Ok(())
    }

    /// Ends the process of a slot at once.
    pub(crate) fn kill(sim: &Arc<Sim>, slot: usize) {
        let process = {
            let mut slots = sim.slots();
            let slot = &mut slots[slot];
            slot.paused_until = 0;
            slot.process.take()
        };
        if let Some(process) = process {
            let Self { host, executor } = process;
            sim.ledger().end_process(host.life);
            sim.end(|| {
                drop(executor);
                // The runtime and what it holds of the process refer to each other.
                drop(lock(&host.runtime).take());
            });
        }
    }

    /// Lets the tasks of the process run until all of them wait.
    #[allow(clippy::disallowed_methods, reason = "the executor's own time, which is paused")]
    pub(crate) fn run_until_idle(executor: &tokio::runtime::Runtime) {
        // Paused time passes only when no task can run.
        executor.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }
}

impl Host {
    async fn run(self: Arc<Self>, commands: mpsc::Receiver<Command>) {
        while self.join(false).await.is_err() {
            self.pause_for(Duration::from_millis(500)).await;
            self.renew_id();
        }
        self.change_known(|known| known.routes = Routes::new(self.id()));
        let builder = Runtime::builder_over(journals(&self))
            .clock(Arc::clone(&self.clock) as _)
            .entropy(Arc::new(self.sim.entropy.clone()))
            .handlers(Arc::new(Guests(Arc::clone(&self))))
            .linger(Duration::from_millis(self.sim.plan.linger_ms))
            .specs(spec())
            .without_partitions();
        let runtime = match builder.build().await {
            Ok(runtime) => runtime,
            Err(error) => {
                let what = format!("{} cannot start: {error}", self.life);
                return self.sim.ledger().report(Invariant::NobodyStuck, what);
            }
        };
        runtime.set_other_hosts(Arc::new(Delivery(Arc::clone(&self))));
        *lock(&self.runtime) = Some(runtime.clone());
        Worker::new(Arc::clone(&self), runtime, self.settings(), commands).run().await;
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings { is_fast: self.sim.plan.is_fast, ..Settings::default() };
        match self.sim.plan.fault {
            Some(Fault::EarlyTakeover) => settings.ttl /= 2,
            Some(Fault::ClaimAfterOutage) => settings.gap = Duration::MAX,
            _ => {}
        }
        settings
    }

    /// Enters the database under the present id.
    pub(crate) async fn join(self: &Arc<Self>, is_draining: bool) -> Result<(), Fate> {
        let (me, url) = (self.id(), url(self.life.slot));
        let life = self.life;
        self.statement(super::link::STATEMENT_LIMIT, move |sim, database| {
            database.join(me, url, is_draining);
            sim.ledger().note_id(me, life);
        })
        .await
    }

    /// The runtime, if it was built.
    pub(crate) fn runtime(&self) -> Option<Runtime> {
        lock(&self.runtime).clone()
    }

    /// What this process knows of the others.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&lock(&self.known))
    }

    pub(crate) fn change_known(&self, change: impl FnOnce(&mut Known)) {
        change(Arc::make_mut(&mut lock(&self.known)));
        self.known_changed.notify_waiters();
    }

    /// Waits until what is known has changed since this was called.
    pub(crate) fn known_changed(&self) -> Notified<'_> {
        self.known_changed.notified()
    }

    pub(crate) fn id(&self) -> HostId {
        *lock(&self.id)
    }

    /// Takes another id, which no process had before.
    pub(crate) fn renew_id(&self) {
        if let Ok(id) = HostId::drawn(&self.sim.entropy) {
            *lock(&self.id) = id;
        }
    }

    /// Waits until the clock of this process has reached `at`.
    pub(crate) async fn until(&self, at: Monotonic) {
        sandglass_runtime::until(&*self.clock, at).await;
    }

    /// Waits by the clock of this process.
    pub(crate) async fn pause_for(&self, time: Duration) {
        self.until(self.clock.now().after(time)).await;
    }

    /// Waits by true time, in nanoseconds.
    pub(crate) async fn pause(&self, nanos: u64) {
        let until = self.sim.now() + nanos;
        Sleep::new(Arc::clone(&self.sim), self.life, until).await;
    }

    /// Reports something to the member.
    pub(crate) fn command(&self, command: Command) {
        // If so many wait, the next beat comes before this one.
        let _ = self.commands.try_send(command);
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Where the host of a slot is reached.
pub(crate) fn url(slot: usize) -> String {
    format!("http://h{slot}")
}

/// The slot of a URL.
pub(crate) fn slot_of(url: &str) -> Option<usize> {
    url.strip_prefix("http://h")?.parse().ok()
}
