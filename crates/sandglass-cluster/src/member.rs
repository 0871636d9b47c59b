//! The task of a member: beats, reads who is there and who owns what, and carries out the orders of
//! [`Tenure`]. What may take long, such as claims, runs beside it and is reported as an [`Event`], so that
//! beats are never late for it.

mod giving;
mod others;
mod taking;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{HostId, Membership, Monotonic, Partition};
use sandglass_runtime::BuildError;
use sandglass_telemetry::metrics::Health as JournalHealth;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::cluster::{ClusterState, Shared};
use crate::measure;
use crate::peers::Found;
use crate::tenure::{Order, Settings, Tenure};
use crate::timer::{every, within};

/// How often a member beats. It is dead if it does not for a TTL.
const BEAT_EVERY: Duration = Duration::from_secs(1);
/// How often an address is checked that refuses connections, until its host is declared dead.
const REFUSED_AGAIN: Duration = Duration::from_millis(250);
/// How long a partition may take to become quiet, while requests to it wait. Further attempts follow.
const QUIET_LIMIT: Duration = Duration::from_millis(400);
/// The pause before a partition is read again that could not be read, and the longest one.
const ADOPT_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

/// What others request from the task.
#[derive(Debug)]
pub(crate) enum Command {
    /// Something has changed: do not wait for the next beat.
    Beat,
    /// Something has changed that the other hosts have to read, too.
    Announce,
    /// The address of this host refused a connection.
    Suspect(HostId),
    /// Another host reports what it owns.
    Owned { host: HostId, owned: Vec<(Partition, u64)> },
}

/// What has ended meanwhile.
enum Event {
    /// A claim that this process has made as `me`.
    Claimed {
        me: HostId,
        wanted: Vec<(Partition, u64)>,
        decided: Monotonic,
        obtained: Result<Vec<Partition>, Error>,
    },
    /// Whether a host was declared dead.
    Declared { host: HostId, declared: Result<bool, Error> },
    /// The entities of a partition were recovered, or not. It was decided then to claim it.
    Adopted { partition: Partition, decided: Monotonic, adopted: Result<(), BuildError> },
    /// A partition that is to be given away is quiet now, or was not in time. It has not been served since.
    Rested { partition: Partition, since: Monotonic, is_quiet: bool },
    /// What is at the address of a host.
    Found(HostId, Found),
}

/// The task.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    tenure: Tenure,
    /// Whether a refused connection shows that a host is dead.
    is_fast: bool,
    /// How long a beat may take with the read after it: a fifth of the TTL, so that after an outage the
    /// first beats of all hosts come before one of them is declared dead.
    beat_limit: Duration,
    commands: mpsc::Receiver<Command>,
    events: JoinSet<Event>,
    /// Hosts whose addresses are being checked.
    checked: BTreeSet<HostId>,
    /// Other hosts with the URL of this one, with their beats when they were first seen; `None` once that
    /// was logged.
    same_url: BTreeMap<HostId, Option<u64>>,
    /// Other hosts with another TTL, of which that was logged.
    other_ttl: BTreeSet<HostId>,
    /// How long this host may be silent.
    ttl: Duration,
    /// Hosts that are being declared dead.
    declared: BTreeSet<HostId>,
    /// Partitions that are being adopted or brought to rest.
    changing: BTreeSet<Partition>,
    /// Partitions whose entities could not be recovered.
    unreadable: BTreeMap<Partition, Unreadable>,
    /// The epochs of the partitions that were claimed.
    epochs: BTreeMap<Partition, u64>,
    /// Whether the last beat reached the database.
    is_reached: bool,
    /// Whether to beat again at once.
    again: bool,
}

/// When a partition is read again.
#[derive(Clone, Copy, Debug)]
struct Unreadable {
    until: Monotonic,
    pause: Duration,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        settings: Settings,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let (is_fast, ttl, beat_limit) = (settings.is_fast, settings.ttl, settings.ttl / 5);
        let tenure = Tenure::new(shared.database.host(), settings);
        Self {
            shared,
            tenure,
            is_fast,
            beat_limit,
            commands,
            events: JoinSet::new(),
            checked: BTreeSet::new(),
            same_url: BTreeMap::new(),
            other_ttl: BTreeSet::new(),
            ttl,
            declared: BTreeSet::new(),
            changing: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            epochs: BTreeMap::new(),
            is_reached: true,
            again: false,
        }
    }

    /// Works until it is aborted, or the database is closed.
    pub(crate) async fn run(mut self) {
        let mut beats = every(BEAT_EVERY);
        let runtime = self.shared.runtime.clone();
        loop {
            while std::mem::take(&mut self.again) {
                if self.beat().await.is_break() {
                    return;
                }
            }
            self.measure();
            tokio::select! {
                biased;
                _ = beats.tick() => self.again = true,
                Some(partition) = runtime.lost_partition() => self.lose(partition),
                Some(event) = self.events.join_next() => self.take_events(event).await,
                Some(command) = self.commands.recv() => self.obey(command),
            }
        }
    }

    /// Beats, and does what follows from what the database contains. Breaks if the database is closed.
    async fn beat(&mut self) -> ControlFlow<()> {
        let sent = self.shared.lease.now();
        let beaten = within(self.beat_limit, self.shared.database.beat_as_member()).await;
        let late = || Error::Unavailable { what: format!("no response in {:?}", self.beat_limit) };
        match beaten.unwrap_or_else(|| Err(late())) {
            Ok(Some(membership)) => {
                let now = self.shared.lease.now();
                self.note_reached(None);
                let orders = self.tenure.on_beat(sent, now, &membership);
                let (disowned, orders): (Vec<_>, Vec<_>) =
                    orders.into_iter().partition(|order| matches!(order, Order::Disown(_)));
                // First, so that no host call begins for what is lost.
                for order in disowned {
                    self.carry_out(order).await;
                }
                if let Some(until) = self.tenure.trusted_until() {
                    self.shared.lease.extend(until);
                }
                self.publish(Some(membership));
                for order in orders {
                    self.carry_out(order).await;
                }
                self.warn_of_same_url();
                self.note_other_ttls();
                self.shared.database.check_connection();
                self.lose_damaged();
                self.adopt_held();
                self.check_others();
                self.publish(None);
            }
            Ok(None) => {
                for order in self.tenure.on_death() {
                    self.carry_out(order).await;
                }
            }
            Err(Error::Closed) => return ControlFlow::Break(()),
            Err(error) => {
                self.tenure.on_failed_beat();
                self.note_reached(Some(&error));
            }
        }
        ControlFlow::Continue(())
    }

    fn note_reached(&mut self, error: Option<&Error>) {
        if self.is_reached != error.is_none() {
            self.is_reached = error.is_none();
            let health =
                if self.is_reached { JournalHealth::Healthy } else { JournalHealth::Unhealthy };
            self.shared.metrics.journal_health(health);
            match error {
                Some(error) => tracing::error!(
                    %error,
                    "beats fail: host calls wait as soon as the lease of this host is over"
                ),
                None => tracing::info!("the database responds again"),
            }
        }
    }

    async fn carry_out(&mut self, order: Order) {
        match order {
            Order::Disown(partition) => self.lose(partition),
            Order::Rejoin => self.rejoin().await,
            Order::Declare { host, beats } => {
                if self.declared.insert(host) {
                    let database = self.shared.database.clone();
                    self.events.spawn(async move {
                        let declared = database.declare_dead(&host, beats).await;
                        Event::Declared { host, declared }
                    });
                }
            }
            Order::Claim(wanted) => {
                let (database, me) = (self.shared.database.clone(), self.tenure.me());
                let decided = self.shared.lease.now();
                self.events.spawn(async move {
                    let obtained = database.claim(&wanted).await;
                    Event::Claimed { me, wanted, decided, obtained }
                });
            }
            Order::Move(partition) => {
                if self.changing.insert(partition) {
                    let (runtime, since) = (self.shared.runtime.clone(), self.shared.lease.now());
                    self.events.spawn(async move {
                        let is_quiet = runtime.release(partition, QUIET_LIMIT).await;
                        Event::Rested { partition, since, is_quiet }
                    });
                } else {
                    self.tenure.on_keep(partition, self.shared.lease.now());
                }
            }
            // It is released in a moment, or not at all; then it is claimed again.
            Order::Stay(_) => {}
        }
    }

    /// Takes in `first` and everything else that has ended by now.
    async fn take_events(&mut self, first: Result<Event, JoinError>) {
        let (mut next, mut quiet, mut owned) = (Some(first), Vec::new(), Vec::new());
        while let Some(event) = next {
            match event {
                Ok(Event::Claimed { me, wanted, decided, obtained }) => {
                    // What was claimed under an earlier id was lost with it.
                    if me == self.tenure.me() {
                        self.take_claimed(&wanted, decided, obtained);
                    }
                }
                Ok(Event::Declared { host, declared }) => self.take_declared(host, declared),
                Ok(Event::Adopted { partition, decided, adopted }) => {
                    self.changing.remove(&partition);
                    if self.take_adopted(partition, decided, adopted) {
                        owned.push(partition);
                    }
                }
                Ok(Event::Rested { partition, since, is_quiet: true }) => {
                    quiet.push((partition, since));
                }
                Ok(Event::Rested { partition, is_quiet: false, .. }) => {
                    self.changing.remove(&partition);
                    self.tenure.on_keep(partition, self.shared.lease.now());
                }
                Ok(Event::Found(host, found)) => self.found(host, found).await,
                Err(error) => self.forget_tasks(&error),
            }
            next = self.events.try_join_next();
        }
        if !quiet.is_empty() {
            self.release(quiet).await;
        }
        if !owned.is_empty() {
            tracing::info!(partitions = owned.len(), "serves more partitions");
            self.publish(None);
            self.nudge_others(&owned);
        }
    }

    /// A task has panicked, and it is unknown which: what it did counts as not done. The next beat begins
    /// it again.
    fn forget_tasks(&mut self, error: &JoinError) {
        tracing::error!(%error, "a task of the cluster's member panicked");
        self.tenure.on_claim(&[], self.shared.lease.now());
        for partition in std::mem::take(&mut self.changing) {
            self.tenure.on_keep(partition, self.shared.lease.now());
        }
        self.checked.clear();
        self.declared.clear();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Beat => self.again = true,
            Command::Announce => {
                self.again = true;
                self.nudge_others(&[]);
            }
            Command::Suspect(host) => self.check(host),
            Command::Owned { host, owned } => {
                self.shared.state.send_modify(|known| {
                    let known = Arc::make_mut(known);
                    known.routes.hint(host, &owned);
                });
                self.again = true;
            }
        }
    }

    /// Publishes what is known now, with `membership` if it was read.
    fn publish(&self, membership: Option<Membership>) {
        let now = self.shared.lease.now();
        let held = self.tenure.held_partitions().count();
        self.shared.state.send_modify(|known| {
            let known: &mut ClusterState = Arc::make_mut(known);
            known.held = held;
            let Some(membership) = membership else { return };
            for member in &membership.hosts {
                let before = known.membership.host(member.host).map(|before| before.beats);
                if before != Some(member.beats) {
                    known.last_seen.insert(member.host, now);
                }
            }
            known.last_seen.retain(|host, _| membership.host(*host).is_some());
            let is_there = |host: &HostId| membership.host(*host).is_some_and(|one| !one.is_dead);
            known.contacts.retain(|host, _| is_there(host));
            known.routes.read(known.me, &membership);
            let urls = membership.hosts.iter().filter(|member| !member.is_dead);
            self.shared.peers.keep_only(urls.filter_map(|member| member.url.as_deref()));
            known.membership = membership;
        });
    }

    /// Reports what is true now.
    fn measure(&self) {
        let Shared { runtime, lease, metrics, state, .. } = &*self.shared;
        let until = self.tenure.trusted_until();
        metrics.cluster_lease(until.map(|until| until.since(lease.now())).unwrap_or_default());
        let state = Arc::clone(&state.borrow());
        measure::report(&state, |partition| runtime.serves(partition), metrics);
    }
}
