//! One process: its clock, its tenure, and the shell that carries out orders.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_cluster::{Order, Settings, Tenure};
use sandglass_model::{DeploymentStatus, HostId, Membership, Monotonic, Partition};

use crate::fault::Fault;

/// Milliseconds of true time, in nanoseconds.
pub(crate) const MS: u64 = 1_000_000;
/// How long a partition may take to become quiet.
const PATIENCE: u64 = 2_000 * MS;

/// A clock that counts while the process is paused.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) offset: u64,
    /// How much faster it is than true time, in millionths.
    pub(crate) ppm: i64,
    /// Time that was not counted, which is a planted fault.
    pub(crate) stood: u64,
}

impl Clock {
    fn read(&self, now: u64) -> Monotonic {
        let counted = i128::from(now.saturating_sub(self.stood));
        let local = i128::from(self.offset) + counted + counted * i128::from(self.ppm) / 1_000_000;
        Monotonic::from_nanos(u64::try_from(local).expect("in range"))
    }
}

/// A statement whose result is awaited.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pending {
    Join,
    Beat,
    Read,
    Claim,
    Release(Partition),
    Declare,
    Leave,
}

/// What the world does for a process.
#[derive(Debug)]
pub(crate) enum Act {
    Send(Pending, crate::database::Request),
    /// Look at the move of this partition at that moment.
    Wait(Partition, u64),
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) url: String,
    pub(crate) life: u64,
    pub(crate) clock: Clock,
    pub(crate) me: HostId,
    /// What its row states. The lease of a planted fault is as long.
    pub(crate) ttl: Duration,
    pub(crate) tenure: Tenure,
    pub(crate) has_joined: bool,
    /// Bits of the partitions whose handlers may begin effects.
    pub(crate) serving: u64,
    /// The epoch with which each partition was claimed.
    pub(crate) epochs: Vec<u64>,
    /// Until when a handler is in flight in each partition.
    pub(crate) busy_until: Vec<u64>,
    /// Moves that wait for quiet, each with the end of the patience.
    moves: BTreeMap<Partition, u64>,
    pub(crate) pending: BTreeMap<u64, Pending>,
    pub(crate) paused_from: u64,
    pub(crate) paused_until: u64,
    beat_sent: Monotonic,
    /// The lease, if a fault measures it in another way.
    other_lease: Option<Monotonic>,
    pub(crate) is_leaving: bool,
    /// The generation that it runs.
    pub(crate) generation: Option<u64>,
    /// The generation that it loads, until when, and whether it cannot run that.
    loading: Option<(u64, u64, bool)>,
    can_run_all: bool,
    pub(crate) read: Membership,
    fault: Option<Fault>,
}

pub(crate) fn bit(partition: Partition) -> u64 {
    1 << partition.number()
}

fn settings(is_fast: bool, ttl: Duration, fault: Option<Fault>) -> Settings {
    let mut settings = Settings { is_fast, ttl, ..Settings::default() };
    match fault {
        Some(Fault::NoNewObservation) => settings.gap = Duration::MAX,
        Some(Fault::EarlyDeclaration) => settings.ttl /= 2,
        Some(Fault::HastyRefusal) => settings.still = Duration::ZERO,
        _ => {}
    }
    settings
}

impl Process {
    pub(crate) fn new(
        url: String,
        life: u64,
        clock: Clock,
        me: HostId,
        ttl: Duration,
        is_fast: bool,
        fault: Option<Fault>,
    ) -> Self {
        let count = Partition::all().len();
        Self {
            url,
            life,
            clock,
            me,
            ttl,
            tenure: Tenure::new(me, settings(is_fast, ttl, fault)),
            has_joined: false,
            serving: 0,
            epochs: vec![0; count],
            busy_until: vec![0; count],
            moves: BTreeMap::new(),
            pending: BTreeMap::new(),
            paused_from: 0,
            paused_until: 0,
            beat_sent: Monotonic::default(),
            other_lease: None,
            is_leaving: false,
            generation: None,
            loading: None,
            can_run_all: false,
            read: Membership::default(),
            fault,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(crate) fn local(&self, now: u64) -> Monotonic {
        let stands = self.has(Fault::StandingClock) && now < self.paused_until;
        self.clock.read(if stands { self.paused_from } else { now })
    }

    /// The partitions for which an effect may begin now.
    pub(crate) fn acting(&self, now: u64) -> u64 {
        let is_other = matches!(
            self.fault,
            Some(Fault::LeaseFromResponse | Fault::EarlyDeclaration | Fault::StaleRead)
        );
        let until = if is_other { self.other_lease } else { self.tenure.trusted_until() };
        if until.is_some_and(|until| self.local(now) < until) { self.serving } else { 0 }
    }

    pub(crate) fn beat(&mut self, now: u64) -> Act {
        self.beat_sent = self.local(now);
        let trouble = self.loading.filter(|(_, until, is_broken)| *is_broken && *until <= now);
        let trouble = trouble.map(|_| "it cannot be run".to_owned());
        let deployed = DeploymentStatus { generation: self.generation, trouble };
        Act::Send(Pending::Beat, crate::database::Request::Beat(deployed))
    }

    /// Follows the generation that is active, as it was read. Loading one takes a moment, and some cannot
    /// be run by this process.
    fn follow(&mut self, now: u64) {
        let Some(wanted) = self.read.agreed.generation else { return };
        if self.generation == Some(wanted) {
            self.loading = None;
            return;
        }
        match self.loading {
            Some((generation, until, is_broken)) if generation == wanted => {
                if until <= now && !is_broken {
                    (self.generation, self.loading) = (Some(wanted), None);
                }
            }
            _ => {
                let drawn = u64::from(self.me.as_bytes()[0]) + 37 * wanted;
                self.loading =
                    Some((wanted, now + drawn % 3_000 * MS, !self.can_run_all && drawn % 5 == 0));
            }
        }
    }

    /// It can run everything from now on.
    pub(crate) fn heal(&mut self) {
        if let Some((_, _, is_broken)) = &mut self.loading {
            *is_broken = false;
        }
        self.can_run_all = true;
    }

    pub(crate) fn beat_failed(&mut self) {
        if !self.has(Fault::NoNewObservation) {
            self.tenure.on_failed_beat();
        }
    }

    pub(crate) fn beaten(&mut self, now: u64, membership: Membership) -> Vec<Order> {
        let local = self.local(now);
        self.read = membership;
        let from = if self.has(Fault::LeaseFromResponse) { local } else { self.beat_sent };
        self.other_lease = Some(from.after(self.ttl - Duration::from_millis(500)));
        self.follow(now);
        let mut seen = self.read.clone();
        if self.has(Fault::OwnTtl) || self.has(Fault::EarlyDeclaration) {
            seen.hosts.iter_mut().for_each(|member| member.ttl = None);
        }
        if self.has(Fault::ClaimOfLaggard) {
            seen.hosts
                .iter_mut()
                .for_each(|member| member.deployed.generation = seen.agreed.generation);
        }
        if self.has(Fault::TwoHomes) {
            for member in seen.hosts.iter_mut().filter(|member| member.host != self.me) {
                member.is_draining = true;
            }
        }
        if self.has(Fault::ClaimOfLive) {
            for one in seen.partitions.iter_mut().filter(|one| one.owner != Some(self.me)) {
                one.owner = None;
            }
        }
        let sent = if self.has(Fault::StaleRead) { local } else { self.beat_sent };
        let mut orders = self.tenure.on_beat(sent, local, &seen);
        if self.has(Fault::LostClaim) {
            let read = &self.read;
            let is_ours =
                |partition: Partition| read.partitions[partition.index()].owner == Some(self.me);
            for order in &mut orders {
                if let Order::Claim(wanted) = order {
                    wanted.retain(|(partition, _)| !is_ours(*partition));
                }
            }
        }
        orders
    }

    /// Carries out an order; `busy` draws until when a handler is in flight.
    pub(crate) fn carry_out(
        &mut self,
        now: u64,
        order: Order,
        busy: impl FnOnce() -> u64,
    ) -> Option<Act> {
        use crate::database::Request;
        match order {
            Order::Disown(partition) => {
                self.serving &= !bit(partition);
                if self.moves.remove(&partition).is_some() {
                    let local = self.local(now);
                    self.tenure.on_release(partition, local);
                }
                None
            }
            Order::Declare { .. } if self.has(Fault::NoDeclaration) => None,
            Order::Declare { host, beats } => {
                Some(Act::Send(Pending::Declare, Request::Declare { host, beats }))
            }
            Order::Claim(wanted) => Some(Act::Send(Pending::Claim, Request::Claim(wanted))),
            Order::Move(partition) => {
                let until = busy().max(now);
                self.busy_until[partition.index()] = until;
                self.moves.insert(partition, now + PATIENCE);
                let at = if self.has(Fault::ReleaseInFlight) { now } else { until };
                Some(Act::Wait(partition, at.min(now + PATIENCE)))
            }
            Order::Stay(partition) => {
                if self.moves.remove(&partition).is_some() {
                    let local = self.local(now);
                    self.tenure.on_keep(partition, local);
                }
                None
            }
            Order::Rejoin => {
                if !self.has(Fault::NoDisown) {
                    self.serving = 0;
                }
                self.moves.clear();
                self.pending.clear();
                self.has_joined = false;
                None
            }
        }
    }

    /// The partition has become quiet, or the patience is over.
    pub(crate) fn look_at_move(&mut self, now: u64, partition: Partition) -> Option<Act> {
        self.moves.remove(&partition)?;
        let is_quiet = self.busy_until[partition.index()] <= now;
        if !is_quiet && !self.has(Fault::ReleaseInFlight) {
            let local = self.local(now);
            self.tenure.on_keep(partition, local);
            return None;
        }
        self.serving &= !bit(partition);
        let epoch = self.epochs[partition.index()];
        let release = crate::database::Request::Release { partition, epoch };
        Some(Act::Send(Pending::Release(partition), release))
    }

    pub(crate) fn claimed(&mut self, now: u64, obtained: &[(Partition, u64)]) {
        let partitions: Vec<Partition> = obtained.iter().map(|(partition, _)| *partition).collect();
        let local = self.local(now);
        self.tenure.on_claim(&partitions, local);
        for (partition, epoch) in obtained {
            self.epochs[partition.index()] = *epoch;
            self.serving |= bit(*partition);
        }
    }

    /// The statement that gives the partition away was executed, or its outcome is unknown.
    pub(crate) fn released(&mut self, now: u64, partition: Partition, is_known: bool) {
        let local = self.local(now);
        if !is_known && self.has(Fault::KeptAfterRelease) {
            self.tenure.on_keep(partition, local);
            self.serving |= bit(partition);
        } else {
            self.tenure.on_release(partition, local);
        }
    }
}
