//! The ownership protocol, as one state machine of one host. Its inputs are the database's
//! responses and times, its outputs are [`Order`]s. It does no I/O and reads no clock.
//!
//! # The protocol
//! Hosts share a database, and never need to agree on anything outside it. It contains a row for
//! each host (`beats`, `dead`) and a row for each partition (`epoch`, `owner`).
//!
//! 1. **Epochs decide who may write.** A claim sets `owner` and increments `epoch`, if the epoch is
//!    the one that was seen, and the partition has no owner, a dead one, or the claimer itself.
//!    Each append proves its epoch in its own statement. No clock is involved, so a log has one
//!    writer whatever clocks, networks and processes do.
//! 2. **Leases decide who may act** on the rest of the world, where no epoch is checked. Each
//!    second a host increments its `beats`, if it is not dead. If this is acknowledged, its lease
//!    lasts until *the moment before it sent the beat* + TTL - margin, by its own clock. A host
//!    call with outside effects begins only if its host serves the partition and its lease is
//!    valid.
//! 3. **A host is dead when the database says so**, for ever. Another host may set `dead` if it has
//!    seen the same `beats` for a whole TTL, by *its own* clock, and if `beats` are still the same
//!    when it does so. The beat and the declaration update one row, so one of them fails. Each host
//!    states its TTL in its row. If the two hosts have different ones, the longer one counts.
//!
//! # Why no two hosts act for one partition
//! Let `b` be the last beat of host A that took effect, and let A have sent it at time `s`. A's
//! lease ends at `s` + TTL - margin, because no later beat was acknowledged. Host B received `b`
//! after `s`, and declared A dead at least A's TTL after that, so after `s` + TTL. Only then can
//! another host claim A's partitions, and A's lease has ended, if the rates of the clocks differ by
//! less than margin / TTL (10 %; clocks of computers differ by 0.01 %). Steps of the time of day do
//! not matter: all times are differences on one monotonic clock, which must also count while the
//! machine sleeps.
//!
//! A host is declared dead earlier only if it cannot act any more, because its process has ended
//! ([`Tenure::on_refusal`]).
//!
//! If A gives a partition away itself, it first stops serving it. If the outcome of the statement
//! is unknown, A does not serve the partition again before it has claimed it, which increments the
//! epoch, so that the statement has no effect if it is executed later.
//!
//! # What a shell must do
//! - Send one beat at a time, and read the membership with a second statement after each, which
//!   sees what was committed before. The clock of all times here counts while the machine sleeps.
//! - Give up a beat, or the read after it, after a fifth of the TTL, and send the next one at once.
//!   With a longer limit, a host whose beat hangs when the database returns from an outage would be
//!   declared dead by hosts that were luckier.
//! - Carry out orders in their order, and report the result of each [`Order::Claim`] by
//!   [`Tenure::on_claim`] and of each [`Order::Move`] by [`Tenure::on_release`] or [`Tenure::on_keep`],
//!   also if the partition is disowned meanwhile.
//! - After a statement that gives a partition away was sent, report [`Tenure::on_release`], whatever
//!   its outcome. It must have no effect if the epoch has changed.
//! - Drop results of statements that were sent under an earlier id: nothing but `on_rejoin` follows
//!   a [`Order::Rejoin`].
//! - Before the process notes in its own row that it is dead, on its way out, stop serving everything
//!   and drop results of claims.
//! - Close the listener of the advertised address last, because [`Tenure::on_refusal`] takes a closed
//!   port as the death of the process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sandglass_model::{HostId, Member, Membership, Monotonic, Ownership, Partition};

use crate::placement::home;

/// The longest TTL that a host can have.
pub const TTL_MAX: Duration = Duration::from_secs(300);

/// The times and bounds of the protocol.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long this host is not declared dead after its last beat, which its row states, and how long it
    /// waits at least for a beat of another one.
    pub ttl: Duration,
    /// How much earlier a host stops to trust its own lease. Covers clocks of different rates.
    pub margin: Duration,
    /// The longest time between two reads that belong to one observation of other hosts. After a
    /// longer one the database may have been away for all, so observations begin anew.
    pub gap: Duration,
    /// How long the beats of a host must stand still before a refused connection counts: more than
    /// the interval of beats, a second, so that a wrong address does not end a host that beats.
    pub still: Duration,
    /// How long a partition stays that did not become quiet, before it is moved again.
    pub pause: Duration,
    /// How many partitions are moved at the same time.
    pub moves_max: usize,
    /// Whether a refused connection shows that a host is dead. Not if something between hosts, such
    /// as a proxy, refuses connections to hosts that live.
    pub is_fast: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            margin: Duration::from_millis(500),
            gap: Duration::from_millis(2500),
            still: Duration::from_millis(1250),
            pause: Duration::from_secs(5),
            moves_max: 8,
            is_fast: true,
        }
    }
}

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Another process has the partition: end its handlers, and write nothing.
    Disown(Partition),
    /// Declare this host dead, if its beats are still these. Then beat again at once, because its
    /// partitions can be claimed.
    Declare {
        /// The host.
        host: HostId,
        /// Its beats as they were seen.
        beats: u64,
    },
    /// Claim these partitions, each if its epoch is still this one. Report by [`Tenure::on_claim`].
    Claim(Vec<(Partition, u64)>),
    /// Give the partition away when it is quiet. Report by [`Tenure::on_release`] or
    /// [`Tenure::on_keep`].
    Move(Partition),
    /// Do not give it away after all, if that is still possible. Report as for [`Order::Move`].
    Stay(Partition),
    /// This process was declared dead: disown all partitions, enter under a new id, and report that
    /// by [`Tenure::on_rejoin`].
    Rejoin,
}

/// Another host, since its beats were first seen as they are.
#[derive(Clone, Copy, Debug)]
struct Observation {
    beats: u64,
    since: Monotonic,
    /// How long its lease may be valid.
    ttl: Duration,
    /// Whether its address has refused a connection since.
    is_refused: bool,
}

impl Observation {
    /// Whether the host may be declared dead.
    fn is_over(&self, now: Monotonic, settings: &Settings) -> bool {
        let still = now.since(self.since);
        let is_ended = settings.is_fast && self.is_refused && still >= settings.still;
        still >= self.ttl.max(settings.ttl) || is_ended
    }
}

/// What one host knows of itself and of the others.
#[derive(Debug)]
pub struct Tenure {
    me: HostId,
    settings: Settings,
    /// Whether this process was declared dead and has not entered again.
    is_out: bool,
    trusted_until: Option<Monotonic>,
    /// What this process holds, each with the moment until which it is not moved.
    held: BTreeMap<Partition, Monotonic>,
    /// The moves that are not reported as done or not done, each with whether it should stay after
    /// all.
    moves: BTreeMap<Partition, bool>,
    /// Those of the claim that is being carried out.
    claiming: BTreeSet<Partition>,
    /// When each partition was last taken or given away here. What a read says that was sent
    /// before is out of date.
    changed: BTreeMap<Partition, Monotonic>,
    observed: BTreeMap<HostId, Observation>,
    /// When the last read was received, if the database has responded since.
    read: Option<Monotonic>,
    /// The hosts that may be homes, and the home of each partition among them.
    hosts: Vec<HostId>,
    homes: BTreeMap<Partition, HostId>,
    /// The hosts among them that run the active generation. Only they get partitions, so that no entity goes
    /// back to an earlier spec.
    eligible: Vec<HostId>,
}

impl Tenure {
    /// The tenure of the process that has entered as `me`. It has no lease and holds nothing.
    #[must_use]
    pub fn new(me: HostId, settings: Settings) -> Self {
        Self {
            me,
            settings,
            is_out: false,
            trusted_until: None,
            held: BTreeMap::new(),
            moves: BTreeMap::new(),
            claiming: BTreeSet::new(),
            changed: BTreeMap::new(),
            observed: BTreeMap::new(),
            read: None,
            hosts: Vec::new(),
            homes: BTreeMap::new(),
            eligible: Vec::new(),
        }
    }

    /// The id of this process.
    #[must_use]
    pub const fn me(&self) -> HostId {
        self.me
    }

    /// The moment from which on no effect may begin. `None` if no beat was acknowledged.
    #[must_use]
    pub const fn trusted_until(&self) -> Option<Monotonic> {
        self.trusted_until
    }

    /// The partitions that this process holds, also those that are being moved.
    pub fn held_partitions(&self) -> impl Iterator<Item = Partition> {
        self.held.keys().copied()
    }

    /// A beat was acknowledged. `sent` is a moment before it was sent, `membership` what was read
    /// after it was acknowledged, and `now` a moment after that was received.
    pub fn on_beat(
        &mut self,
        sent: Monotonic,
        now: Monotonic,
        membership: &Membership,
    ) -> Vec<Order> {
        if self.is_out || membership.host(self.me).is_none_or(|me| me.is_dead) {
            return self.on_death();
        }
        let trusted = sent.after(self.settings.ttl.saturating_sub(self.settings.margin));
        self.trusted_until = self.trusted_until.max(Some(trusted));
        let mut orders = Vec::new();
        self.compare(sent, membership, &mut orders);
        self.observe(now, membership, &mut orders);
        self.settle(membership);
        self.claim(sent, membership, &mut orders);
        self.rearrange(now, &mut orders);
        orders
    }

    /// A beat found this process declared dead: it holds nothing, and has no lease.
    pub fn on_death(&mut self) -> Vec<Order> {
        self.is_out = true;
        self.trusted_until = None;
        self.held.clear();
        self.moves.clear();
        self.claiming.clear();
        vec![Order::Rejoin]
    }

    /// This process has entered again, as `me`.
    pub fn on_rejoin(&mut self, me: HostId) {
        *self = Self::new(me, self.settings.clone());
    }

    /// A beat or the read after it failed, or its outcome is unknown. Other hosts may not have
    /// reached the database either, so what was observed of them does not count.
    pub fn on_failed_beat(&mut self) {
        self.read = None;
    }

    /// The address of `host` refuses connections, or another process responds there: its own
    /// machine says that it has ended. To be called again, several times a second, until it is
    /// dead: it is declared dead as soon as its beats have stood still for [`Settings::still`].
    pub fn on_refusal(&mut self, host: HostId, now: Monotonic) -> Option<Order> {
        let is_one = self.is_one_observation(now);
        let observation = self.observed.get_mut(&host).filter(|_| is_one)?;
        observation.is_refused = true;
        let (is_over, beats) = (observation.is_over(now, &self.settings), observation.beats);
        is_over.then_some(Order::Declare { host, beats })
    }

    /// The claim was carried out, and obtained these partitions: none if it failed or its outcome
    /// is unknown.
    pub fn on_claim(&mut self, obtained: &[Partition], now: Monotonic) {
        let claiming = std::mem::take(&mut self.claiming);
        for partition in obtained.iter().filter(|partition| claiming.contains(partition)) {
            self.held.insert(*partition, now);
            self.changed.insert(*partition, now);
        }
    }

    /// The move has ended: the partition was given away, or the outcome of that is unknown. If this
    /// process still owns it, it claims it again.
    pub fn on_release(&mut self, partition: Partition, now: Monotonic) {
        if self.moves.remove(&partition).is_some() {
            self.on_loss(partition, now);
        }
    }

    /// The move has ended: the partition was not given away, because it did not become quiet in
    /// time or should stay.
    pub fn on_keep(&mut self, partition: Partition, now: Monotonic) {
        if let (Some(_), Some(until)) =
            (self.moves.remove(&partition), self.held.get_mut(&partition))
        {
            *until = now.after(self.settings.pause);
        }
    }

    /// The database refused an append to the partition, because this process does not own it as it
    /// believed. The shell treats this as [`Order::Disown`].
    pub fn on_loss(&mut self, partition: Partition, now: Monotonic) {
        self.held.remove(&partition);
        self.changed.insert(partition, now);
    }

    /// Disowns what the database says another process has, or none.
    fn compare(&mut self, sent: Monotonic, membership: &Membership, orders: &mut Vec<Order>) {
        for Ownership { partition, owner, .. } in &membership.partitions {
            let is_taken = *owner != Some(self.me) && self.is_current(*partition, sent);
            if is_taken && self.held.remove(partition).is_some() {
                orders.push(Order::Disown(*partition));
            }
        }
    }

    /// Whether a read that was sent then is later than the last change of the partition here.
    fn is_current(&self, partition: Partition, sent: Monotonic) -> bool {
        self.changed.get(&partition).is_none_or(|changed| sent >= *changed)
    }

    /// Whether the last read belongs to the same observation as one that is received now: the
    /// database has responded all the time.
    fn is_one_observation(&self, now: Monotonic) -> bool {
        self.read.is_some_and(|last| now.since(last) <= self.settings.gap)
    }

    /// Declares hosts dead whose beats have not changed for a TTL, or whose addresses refuse
    /// connections.
    fn observe(&mut self, now: Monotonic, membership: &Membership, orders: &mut Vec<Order>) {
        let is_one = self.is_one_observation(now);
        self.read = Some(now);
        let before = std::mem::take(&mut self.observed);
        for &Member { host, beats, is_dead, ttl, .. } in &membership.hosts {
            if is_dead || host == self.me {
                continue;
            }
            let same = before.get(&host).filter(|before| is_one && before.beats == beats);
            // Not more than a host can have, if its row was changed by hand.
            let ttl = ttl.unwrap_or(self.settings.ttl).min(TTL_MAX);
            let new = Observation { beats, since: now, ttl, is_refused: false };
            let observation = same.map_or(new, |same| Observation { ttl, ..*same });
            if observation.is_over(now, &self.settings) {
                orders.push(Order::Declare { host, beats });
            }
            self.observed.insert(host, observation);
        }
    }

    /// Computes the home of each partition, if the hosts have changed. A host that drains, or that cannot run
    /// the active generation, is no home. If this is true of all hosts, they keep the partitions, because no
    /// other host can take them.
    fn settle(&mut self, membership: &Membership) {
        let agreed = &membership.agreed;
        let is_home = |member: &&Member| {
            member.is_in_cluster() && member.reads_format >= agreed.writes_format
        };
        let members = || membership.hosts.iter().filter(is_home);
        let keeps = |member: &&Member| !member.is_draining && member.deployed.trouble.is_none();
        let mut hosts: BTreeSet<HostId> =
            members().filter(keeps).map(|member| member.host).collect();
        if hosts.is_empty() {
            hosts = members().map(|member| member.host).collect();
        }
        if !hosts.iter().eq(&self.hosts) {
            self.hosts = hosts.into_iter().collect();
            let of = |partition| Some((partition, *home(partition, &self.hosts)?));
            self.homes = Partition::all().filter_map(of).collect();
        }
        let is_eligible =
            |host: &HostId| membership.host(*host).is_some_and(|member| member.is_current(agreed));
        self.eligible = self.hosts.iter().copied().filter(is_eligible).collect();
    }

    /// Claims what is free and has its home here among the hosts that run what is active, and what this
    /// process owns without holding it: the result of an earlier claim was lost, or it was not given away.
    fn claim(&mut self, sent: Monotonic, membership: &Membership, orders: &mut Vec<Order>) {
        if !self.claiming.is_empty() {
            return;
        }
        let is_dead = |owner| membership.host(owner).is_none_or(|owner| owner.is_dead);
        let mut wanted = Vec::new();
        for &Ownership { partition, epoch, owner } in &membership.partitions {
            let is_free = owner.is_none_or(is_dead);
            // Only for those that are free: it hashes each host.
            let is_ours = || home(partition, &self.eligible) == Some(&self.me);
            let is_wanted = owner == Some(self.me) || (is_free && is_ours());
            // A move that is not reported yet may still give it away.
            let is_busy = self.held.contains_key(&partition) || self.moves.contains_key(&partition);
            if is_wanted && !is_busy && self.is_current(partition, sent) {
                wanted.push((partition, epoch));
            }
        }
        if !wanted.is_empty() {
            self.claiming = wanted.iter().map(|(partition, _)| *partition).collect();
            orders.push(Order::Claim(wanted));
        }
    }

    /// Moves what has its home elsewhere, a few partitions at a time, to homes that run what is active and
    /// have beaten: others may be rows without a process.
    fn rearrange(&mut self, now: Monotonic, orders: &mut Vec<Order>) {
        let (observed, eligible) = (&self.observed, &self.eligible);
        let has_beaten = |home: &HostId| observed.get(home).is_some_and(|seen| seen.beats > 0);
        for (partition, until) in &self.held {
            let home = self.homes.get(partition).filter(|home| **home != self.me);
            let is_elsewhere = home.is_some();
            let can_take = |home: &HostId| eligible.contains(home) && has_beaten(home);
            let is_due = now >= *until && home.is_some_and(can_take);
            let may_move = is_due && self.moves.len() < self.settings.moves_max;
            match self.moves.get_mut(partition) {
                None if is_elsewhere && may_move => {
                    self.moves.insert(*partition, false);
                    orders.push(Order::Move(*partition));
                }
                Some(stays) if !is_elsewhere && !*stays => {
                    *stays = true;
                    orders.push(Order::Stay(*partition));
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests;
