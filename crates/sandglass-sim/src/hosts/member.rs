//! The member of the cluster in one process: the orders of the real tenure, carried out as the task of
//! `sandglass-cluster` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sandglass_cluster::{Order, Settings, Tenure};
use sandglass_journal::Health;
use sandglass_model::{Clock as _, HostId, Membership, Monotonic, Partition};
use sandglass_runtime::{BuildError, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::link::{Fate, STATEMENT_LIMIT};
use super::network::{Call, Reply, SendError};
use super::process::{Host, slot_of};
use crate::fault::Fault;
use crate::scene::lock;

const BEAT_EVERY: Duration = Duration::from_secs(1);
const REFUSED_AGAIN: Duration = Duration::from_millis(250);
const QUIET_LIMIT: Duration = Duration::from_millis(400);
const ADOPT_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));
/// How long beats wait for a partition that is given away.
const CHANGE_LIMIT: Duration = Duration::from_secs(1);

/// What others request from the member.
pub(crate) enum Command {
    Beat,
    Suspect(HostId),
    Owned(HostId, Vec<(Partition, u64)>),
}

/// What is at the address of a host.
enum Found {
    Process(HostId),
    Nobody,
    NoAnswer,
}

/// What has ended meanwhile.
enum Event {
    Claimed { me: HostId, obtained: Vec<Partition> },
    Declared { host: HostId, is_declared: bool },
    Adopted { partition: Partition, adopted: Result<(), BuildError> },
    Rested { partition: Partition, is_quiet: bool },
    Found(HostId, Found),
}

/// The task.
pub(crate) struct Worker {
    host: Arc<Host>,
    runtime: Runtime,
    tenure: Tenure,
    ttl: Duration,
    is_fast: bool,
    commands: mpsc::Receiver<Command>,
    events: JoinSet<Event>,
    checked: BTreeSet<HostId>,
    declared: BTreeSet<HostId>,
    changing: BTreeSet<Partition>,
    /// Partitions that could not be read, with when and after which pause that is tried again.
    unreadable: BTreeMap<Partition, (Monotonic, Duration)>,
    again: bool,
}

impl Worker {
    pub(crate) fn new(
        host: Arc<Host>,
        runtime: Runtime,
        settings: Settings,
        commands: mpsc::Receiver<Command>,
    ) -> Self {
        let (is_fast, ttl) = (settings.is_fast, settings.ttl);
        let tenure = Tenure::new(host.id(), settings);
        Self {
            host,
            runtime,
            tenure,
            ttl,
            is_fast,
            commands,
            events: JoinSet::new(),
            checked: BTreeSet::new(),
            declared: BTreeSet::new(),
            changing: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            again: false,
        }
    }

    /// Works until the process ends.
    pub(crate) async fn run(mut self) {
        let (runtime, host) = (self.runtime.clone(), Arc::clone(&self.host));
        // Not by the clock of the lease, which is another one if a fault is injected.
        let mut next = host.clock.now();
        loop {
            while std::mem::take(&mut self.again) {
                self.beat().await;
            }
            tokio::select! {
                biased;
                () = host.until(next) => {
                    next = host.clock.now().after(BEAT_EVERY);
                    self.again = true;
                }
                Some(partition) = runtime.lost_partition() => self.lose(partition),
                Some(event) = self.events.join_next() => {
                    if let Ok(event) = event {
                        self.take_event(event).await;
                    }
                }
                Some(command) = self.commands.recv() => self.obey(command),
            }
        }
    }

    fn now(&self) -> Monotonic {
        self.host.lease.now()
    }

    async fn beat(&mut self) {
        let (sent, me) = (self.now(), self.host.id());
        let host = Arc::clone(&self.host);
        let limit = self.ttl / 5;
        let beaten = async {
            if !host.statement(limit, move |_, database| database.beat(me)).await? {
                return Ok(None);
            }
            host.statement(limit, |_, database| database.membership()).await.map(Some)
        };
        let beaten = tokio::select! {
            biased;
            beaten = beaten => beaten,
            () = self.host.pause_for(limit) => Err(Fate::Unknown),
        };
        match beaten {
            Ok(Some(membership)) => self.take_membership(sent, membership).await,
            Ok(None) => {
                for order in self.tenure.on_death() {
                    self.carry_out(order).await;
                }
            }
            Err(_) if self.host.sim.has(Fault::ClaimAfterOutage) => {}
            Err(_) => self.tenure.on_failed_beat(),
        }
    }

    async fn take_membership(&mut self, sent: Monotonic, membership: Membership) {
        let orders = self.tenure.on_beat(sent, self.now(), &membership);
        let (disowned, orders): (Vec<_>, Vec<_>) =
            orders.into_iter().partition(|order| matches!(order, Order::Disown(_)));
        for order in disowned {
            self.carry_out(order).await;
        }
        let is_early = self.host.sim.has(Fault::EarlyTakeover);
        let usual = is_early.then(|| sent.after(Duration::from_millis(4_500)));
        if let Some(until) = usual.or_else(|| self.tenure.trusted_until()) {
            self.host.lease.extend(until);
        }
        self.publish(Some(membership));
        for order in orders {
            self.carry_out(order).await;
        }
        self.host.check_connection();
        self.lose_damaged();
        self.adopt_held();
        self.check_others();
        self.publish(None);
    }

    async fn carry_out(&mut self, order: Order) {
        let host = Arc::clone(&self.host);
        match order {
            Order::Disown(partition) => self.lose(partition),
            Order::Rejoin => self.rejoin().await,
            Order::Declare { host: other, beats } => {
                if self.declared.insert(other) {
                    self.events.spawn(async move {
                        let declaring = host.statement(STATEMENT_LIMIT, move |sim, database| {
                            let is_declared = database.declare_dead(other, beats);
                            if is_declared {
                                let is_present = sim.hosts().iter().any(|host| host.id() == other);
                                sim.ledger().note_declaration(other, is_present);
                            }
                            is_declared
                        });
                        let is_declared = declaring.await.unwrap_or(false);
                        Event::Declared { host: other, is_declared }
                    });
                }
            }
            Order::Claim(wanted) => {
                let me = self.tenure.me();
                self.events.spawn(async move {
                    let obtained = host.claim(me, wanted).await;
                    Event::Claimed { me, obtained }
                });
            }
            Order::Move(partition) => {
                if self.changing.insert(partition) {
                    let runtime = self.runtime.clone();
                    self.events.spawn(async move {
                        let is_quiet = runtime.release(partition, QUIET_LIMIT).await;
                        Event::Rested { partition, is_quiet }
                    });
                } else {
                    let now = self.now();
                    self.tenure.on_keep(partition, now);
                }
            }
            // It is released in a moment, or not at all; then it is claimed again.
            Order::Stay(_) => {}
        }
    }

    async fn take_event(&mut self, event: Event) {
        let now = self.now();
        match event {
            Event::Claimed { me, obtained } => {
                if me == self.tenure.me() {
                    self.tenure.on_claim(&obtained, now);
                    for partition in obtained {
                        self.runtime.lose(partition);
                        self.adopt(partition);
                    }
                }
            }
            Event::Declared { host, is_declared } => {
                self.declared.remove(&host);
                self.again |= is_declared;
            }
            Event::Adopted { partition, adopted } => self.take_adopted(partition, adopted),
            Event::Rested { partition, is_quiet: true } => self.release(partition).await,
            Event::Rested { partition, is_quiet: false } => {
                self.changing.remove(&partition);
                self.tenure.on_keep(partition, now);
            }
            Event::Found(host, found) => self.found(host, &found).await,
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Beat => self.again = true,
            Command::Suspect(host) => self.check(host, Duration::ZERO),
            Command::Owned(host, owned) => {
                self.host.change_known(|known| {
                    known.routes.hint(host, &owned);
                });
                self.again = true;
            }
        }
    }

    fn publish(&self, membership: Option<Membership>) {
        let held = self.tenure.held_partitions().count();
        let me = self.tenure.me();
        self.host.change_known(|known| {
            known.held = held;
            if let Some(membership) = membership {
                known.routes.read(me, &membership);
                known.membership = membership;
            }
        });
    }

    fn adopt_held(&mut self) {
        let now = self.now();
        let is_due =
            |partition: &Partition| self.unreadable.get(partition).is_none_or(|one| one.0 <= now);
        let held: Vec<Partition> = self.tenure.held_partitions().filter(is_due).collect();
        for partition in held {
            if !self.runtime.serves(partition) {
                self.adopt(partition);
            }
        }
    }

    fn adopt(&mut self, partition: Partition) {
        if self.changing.insert(partition) {
            let (runtime, host) = (self.runtime.clone(), Arc::clone(&self.host));
            lock(&host.adopting).insert(partition);
            self.events.spawn(async move {
                let adopted = runtime.adopt(partition).await;
                lock(&host.adopting).remove(&partition);
                Event::Adopted { partition, adopted }
            });
        }
    }

    fn take_adopted(&mut self, partition: Partition, adopted: Result<(), BuildError>) {
        self.changing.remove(&partition);
        let is_held = self.tenure.held_partitions().any(|held| held == partition);
        let former = self.unreadable.remove(&partition);
        match adopted {
            Ok(()) if is_held => {
                self.publish(None);
                self.nudge_others(&[partition]);
            }
            Ok(()) => self.runtime.lose(partition),
            Err(BuildError::Lost(_)) => self.again |= is_held,
            Err(error) => {
                let sim = &self.host.sim;
                sim.ledger().add_line(|| format!("{}: adopt {partition}: {error}", self.host.life));
                let pause =
                    former.map_or(ADOPT_AGAIN.0, |(_, pause)| (pause * 2).min(ADOPT_AGAIN.1));
                let again = self.now().after(pause);
                self.unreadable.insert(partition, (again, pause));
            }
        }
    }

    /// Gives a quiet partition away.
    async fn release(&mut self, partition: Partition) {
        let host = Arc::clone(&self.host);
        // It continues without the member if it takes longer, because the member has to beat.
        let releasing = tokio::spawn(async move { host.release(partition).await });
        let given = tokio::select! {
            biased;
            given = releasing => given.unwrap_or(false),
            () = self.host.pause_for(CHANGE_LIMIT) => {
                let sim = &self.host.sim;
                sim.ledger().add_line(|| format!("{}: giving {partition} away takes long", self.host.life));
                false
            }
        };
        let now = self.now();
        self.changing.remove(&partition);
        self.tenure.on_release(partition, now);
        if given {
            self.host.sim.ledger().hosts.moves += 1;
        }
        self.publish(None);
        self.nudge_others(&[]);
        self.again = true;
    }

    fn lose_damaged(&mut self) {
        let journals = super::journal::journals(&self.host);
        let is_damaged = |partition: &Partition| {
            matches!(journals.all()[partition.index()].health(), Health::Disowned { .. })
        };
        let damaged: Vec<Partition> = self.tenure.held_partitions().filter(is_damaged).collect();
        damaged.into_iter().for_each(|partition| self.lose(partition));
    }

    fn lose(&mut self, partition: Partition) {
        let sim = &self.host.sim;
        sim.ledger().add_line(|| format!("{} loses partition {partition}", self.host.life));
        let now = self.now();
        self.tenure.on_loss(partition, now);
        self.host.lanes[partition.index()].give_up("another host has taken it");
        self.runtime.lose(partition);
        self.publish(None);
    }

    async fn rejoin(&mut self) {
        let sim = Arc::clone(&self.host.sim);
        sim.ledger().add_line(|| format!("{} was declared dead", self.host.life));
        sim.ledger().hosts.rejoined += 1;
        self.host.lease.expire();
        for partition in Partition::all() {
            self.host.lanes[partition.index()].give_up("this host was declared dead");
            self.runtime.lose(partition);
        }
        if self.host.rejoin().await {
            self.tenure.on_rejoin(self.host.id());
            self.again = true;
        }
        self.publish(None);
    }

    fn check_others(&mut self) {
        let known = self.host.known();
        for member in &known.membership.hosts {
            self.check(member.host, Duration::ZERO);
        }
    }

    fn check(&mut self, other: HostId, after: Duration) {
        let known = self.host.known();
        let member = known.membership.host(other).filter(|member| !member.is_dead);
        let slot = member.and_then(|member| slot_of(member.url.as_deref()?));
        if let Some(slot) = slot.filter(|_| self.is_fast && other != self.tenure.me())
            && self.checked.insert(other)
        {
            let host = Arc::clone(&self.host);
            self.events.spawn(async move {
                host.pause_for(after).await;
                let found = match host.call(slot, Call::WhoAmI).await {
                    Ok(Reply::Process(id)) => Found::Process(id),
                    Err(SendError::Refused) => Found::Nobody,
                    _ => Found::NoAnswer,
                };
                Event::Found(other, found)
            });
        }
    }

    async fn found(&mut self, other: HostId, found: &Found) {
        self.checked.remove(&other);
        let is_gone = match found {
            Found::Process(process) => *process != other,
            Found::Nobody => true,
            Found::NoAnswer => false,
        };
        if is_gone {
            match self.tenure.on_refusal(other, self.now()) {
                Some(order) => self.carry_out(order).await,
                None => self.check(other, REFUSED_AGAIN),
            }
        }
    }

    fn nudge_others(&self, owned: &[Partition]) {
        let known = self.host.known();
        let me = self.tenure.me();
        let epoch = |partition: &Partition| {
            let head = (*lock(&self.host.lanes[partition.index()].head))?;
            Some((*partition, head.epoch))
        };
        let owned: Vec<_> = owned.iter().filter_map(epoch).collect();
        for member in &known.membership.hosts {
            let slot = member.url.as_deref().and_then(slot_of);
            let Some(slot) = slot.filter(|_| !member.is_dead && member.host != me) else {
                continue;
            };
            let (host, owned) = (Arc::clone(&self.host), owned.clone());
            tokio::spawn(async move {
                // If it fails, that host reads the same from the database within a second.
                let _ = host.call(slot, Call::Nudge(me, owned)).await;
            });
        }
    }
}
