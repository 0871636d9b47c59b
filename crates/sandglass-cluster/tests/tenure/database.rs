//! The database that the hosts share: the statements of the protocol as conditional updates, and
//! what must hold of each.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_model::{
    Agreement, DeploymentStatus, HostId, Member, Membership, Ownership, Partition,
};

use crate::fault::Fault;

/// A statement.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Join { url: String, ttl: Duration },
    Beat(DeploymentStatus),
    Read,
    Claim(Vec<(Partition, u64)>),
    Release { partition: Partition, epoch: u64 },
    Declare { host: HostId, beats: u64 },
    Leave,
}

/// Its result.
#[derive(Clone, Debug)]
pub(crate) enum Response {
    Done(bool),
    Read(Membership),
    Claimed(Vec<(Partition, u64)>),
    /// It was not executed, and the client knows that.
    Failed,
}

#[derive(Debug)]
pub(crate) struct Database {
    members: BTreeMap<HostId, Member>,
    partitions: Vec<Ownership>,
    agreed: Agreement,
    /// The highest epoch with which each partition was ever claimed.
    highest: Vec<u64>,
    fault: Option<Fault>,
    /// How many hosts were declared dead.
    pub(crate) declared: u64,
    /// How many partitions were taken from dead hosts.
    pub(crate) taken: u64,
    /// How many partitions were given away.
    pub(crate) released: u64,
}

/// How many dead rows without partitions are kept.
const DEAD_MAX: usize = 4;

impl Database {
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        let free = |partition| Ownership { partition, epoch: 0, owner: None };
        Self {
            members: BTreeMap::new(),
            partitions: Partition::all().map(free).collect(),
            agreed: Agreement::default(),
            highest: vec![0; Partition::all().len()],
            fault,
            declared: 0,
            taken: 0,
            released: 0,
        }
    }

    pub(crate) fn membership(&self) -> Membership {
        let hosts = self.members.values().cloned().collect();
        Membership { hosts, partitions: self.partitions.clone(), agreed: self.agreed }
    }

    pub(crate) fn owner(&self, partition: Partition) -> Option<HostId> {
        self.partitions[partition.index()].owner
    }

    pub(crate) fn epoch(&self, partition: Partition) -> u64 {
        self.partitions[partition.index()].epoch
    }

    /// The generation that is active.
    pub(crate) fn generation(&self) -> Option<u64> {
        self.agreed.generation
    }

    /// Activates another generation.
    pub(crate) fn activate(&mut self) {
        self.agreed.changes += 1;
        self.agreed.generation = Some(self.agreed.changes);
    }

    pub(crate) fn set_draining(&mut self, host: HostId, is_draining: bool) {
        if let Some(member) = self.members.get_mut(&host) {
            member.is_draining = is_draining;
        }
    }

    fn is_dead(&self, host: HostId) -> bool {
        self.members.get(&host).is_none_or(|member| member.is_dead)
    }

    /// Executes a statement of the host `by`, and states what it broke.
    pub(crate) fn execute(
        &mut self,
        by: HostId,
        request: Request,
    ) -> Result<Response, &'static str> {
        Ok(match request {
            Request::Join { url, ttl } => {
                let member = Member {
                    host: by,
                    name: String::new(),
                    url: Some(url),
                    version: String::new(),
                    reads_format: 1,
                    is_draining: false,
                    beats: 0,
                    ttl: Some(ttl),
                    is_dead: false,
                    deployed: DeploymentStatus::default(),
                };
                self.members.insert(by, member);
                Response::Done(true)
            }
            Request::Beat(deployed) => Response::Done(self.beat(by, deployed)?),
            Request::Read => Response::Read(self.membership()),
            Request::Claim(wanted) => Response::Claimed(self.claim(by, &wanted)?),
            Request::Release { partition, epoch } => {
                let is_late = self.fault == Some(Fault::LateRelease);
                let one = &mut self.partitions[partition.index()];
                let is_owned = one.owner == Some(by) && (one.epoch == epoch || is_late);
                if is_owned {
                    one.owner = None;
                    self.released += 1;
                }
                Response::Done(is_owned)
            }
            Request::Declare { host, beats } => {
                let is_blind = self.fault == Some(Fault::BlindDeclaration);
                let member = self.members.get_mut(&host);
                let alive = member.filter(|member| !member.is_dead);
                let silent = alive.filter(|member| member.beats == beats || is_blind);
                let is_declared = silent.map(|member| member.is_dead = true).is_some();
                self.declared += u64::from(is_declared);
                self.forget();
                Response::Done(is_declared)
            }
            Request::Leave => {
                if let Some(member) = self.members.get_mut(&by) {
                    member.is_dead = true;
                }
                Response::Done(true)
            }
        })
    }

    fn beat(&mut self, by: HostId, deployed: DeploymentStatus) -> Result<bool, &'static str> {
        let was_dead = self.is_dead(by);
        let is_admitted = self.fault == Some(Fault::BeatOfDead);
        let member = self.members.get_mut(&by).filter(|member| !member.is_dead || is_admitted);
        let beaten =
            member.map(|member| (member.beats, member.deployed) = (member.beats + 1, deployed));
        let has_beaten = beaten.is_some();
        if has_beaten && was_dead { Err("a dead host has beaten") } else { Ok(has_beaten) }
    }

    fn claim(
        &mut self,
        by: HostId,
        wanted: &[(Partition, u64)],
    ) -> Result<Vec<(Partition, u64)>, &'static str> {
        let mut obtained = Vec::new();
        let is_current = self.members.get(&by).is_some_and(|it| it.is_current(&self.agreed));
        let is_current = is_current || self.fault == Some(Fault::ClaimOfLaggard);
        for &(partition, seen) in wanted {
            let Ownership { epoch, owner, .. } = self.partitions[partition.index()];
            let of_dead = owner.is_some_and(|owner| owner != by && self.is_dead(owner));
            let is_free = owner == Some(by) || (is_current && (owner.is_none() || of_dead));
            let is_free = is_free || self.fault == Some(Fault::ClaimOfLive);
            let is_seen = epoch == seen || self.fault == Some(Fault::ClaimOfAnyEpoch);
            if !is_free || !is_seen {
                continue;
            }
            let next = if self.fault == Some(Fault::SameEpoch) { epoch } else { epoch + 1 };
            let highest = &mut self.highest[partition.index()];
            if next <= *highest {
                return Err("an epoch did not grow");
            }
            *highest = next;
            self.partitions[partition.index()] =
                Ownership { partition, epoch: next, owner: Some(by) };
            self.taken += u64::from(of_dead);
            obtained.push((partition, next));
        }
        Ok(obtained)
    }

    /// Removes the rows of dead hosts that own nothing, if there are many.
    fn forget(&mut self) {
        let owns = |host| self.partitions.iter().any(|one| one.owner == Some(host));
        let dead = self.members.values().filter(|member| member.is_dead && !owns(member.host));
        let dead: Vec<HostId> = dead.map(|member| member.host).collect();
        if dead.len() > DEAD_MAX {
            for host in dead {
                self.members.remove(&host);
            }
        }
    }
}
