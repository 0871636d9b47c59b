//! How often things happened that only worlds of several hosts have.

use serde::Serialize;

/// How often things happened that only worlds of several hosts have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostCounts {
    /// Processes that started.
    pub started: u64,
    /// Processes that were killed.
    pub killed: u64,
    /// Pauses of processes.
    pub pauses: u64,
    /// Cuts of the network.
    pub cuts: u64,
    /// Outages of the database.
    pub outages: u64,
    /// Failovers of the database.
    pub failovers: u64,
    /// Acknowledged records that were lost by failovers.
    pub lost: u64,
    /// Processes that were declared dead.
    pub declared: u64,
    /// Processes that were declared dead and entered again.
    pub rejoined: u64,
    /// Partitions that were taken from dead processes.
    pub taken: u64,
    /// Partitions that were given away.
    pub moves: u64,
    /// Requests that were forwarded.
    pub forwards: u64,
    /// Appends of unknown outcome.
    pub unknown: u64,
    /// Effects of handlers.
    pub effects: u64,
    /// Records that readers of the feed got.
    pub fed: u64,
}

impl std::ops::AddAssign for HostCounts {
    fn add_assign(&mut self, other: Self) {
        self.started += other.started;
        self.killed += other.killed;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.outages += other.outages;
        self.failovers += other.failovers;
        self.lost += other.lost;
        self.declared += other.declared;
        self.rejoined += other.rejoined;
        self.taken += other.taken;
        self.moves += other.moves;
        self.forwards += other.forwards;
        self.unknown += other.unknown;
        self.effects += other.effects;
        self.fed += other.fed;
    }
}
