//! The members of a cluster: the processes that share one store, and which of them owns each
//! partition, as one snapshot of what the store contains.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::entropy::{Entropy, NoEntropy, SystemEntropy};
pub use crate::id::HostId;
use crate::partition::Partition;

impl HostId {
    /// Draws a new one from the randomness of the operating system.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn random() -> Result<Self, NoEntropy> {
        Self::drawn(&SystemEntropy)
    }

    /// Draws a new one from `entropy`.
    ///
    /// # Errors
    /// No randomness is available.
    pub fn drawn(entropy: &dyn Entropy) -> Result<Self, NoEntropy> {
        let mut bytes = [0; 16];
        entropy.fill(&mut bytes)?;
        Ok(Self::from_bytes(bytes))
    }
}

/// One process that has entered itself into the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub host: HostId,
    /// Its machine and process id, for people. Not unique.
    pub name: String,
    /// Where other members reach it. `None` if it is not in the cluster: it opened the store alone.
    pub url: Option<String>,
    /// The version of its program.
    pub version: String,
    /// The newest format of records that it reads.
    pub reads_format: u32,
    /// Whether it gives its partitions away, and gets no others.
    pub is_draining: bool,
    /// How many beats it has counted. An observer that sees the same number for a whole TTL may
    /// declare the member dead.
    pub beats: u64,
    /// How long it may go on without a beat before it is declared dead: its lease is shorter. `None` if it
    /// states none.
    pub ttl: Option<Duration>,
    /// Whether it was declared dead, or has left. That is final: the process has to enter with a
    /// new id.
    pub is_dead: bool,
    /// What it runs.
    pub deployed: DeploymentStatus,
}

/// What a process runs of what the hosts have agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentStatus {
    /// The generation whose specs and modules it runs; `None` if it runs none.
    pub generation: Option<u64>,
    /// Why it cannot run the generation that is active, for people, without secrets. `None` if it runs that
    /// one, or is loading it.
    pub trouble: Option<String>,
}

/// What all hosts of a store follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The generation that is active; `None` if none was activated.
    pub generation: Option<u64>,
    /// How often generations were stored or activated. If it is another number than before, so is what can
    /// be activated.
    pub changes: u64,
    /// The format of records that is written. A process that reads only earlier ones may own nothing.
    pub writes_format: u32,
}

impl Member {
    /// Whether it takes part in the cluster: it is not dead, and other members reach it.
    #[must_use]
    pub const fn is_in_cluster(&self) -> bool {
        !self.is_dead && self.url.is_some()
    }

    /// Whether it runs what the hosts have agreed on.
    #[must_use]
    pub fn is_current(&self, agreed: &Agreement) -> bool {
        self.deployed.generation == agreed.generation
    }
}

/// Why two hosts of a cluster refuse each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The other host refuses the cluster key of this one.
    KeyRefused,
    /// The other host sends a cluster key that this one does not accept.
    OtherKey,
    /// There is no TLS connection that both trust.
    Certificate,
}

impl Refusal {
    /// What is wrong with the other host, and what to do, as the rest of a sentence.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::KeyRefused => "refuses the cluster key of this host; give all hosts the same one",
            Self::OtherKey => {
                "sends a cluster key that this host does not accept; give all hosts the same one"
            }
            Self::Certificate => {
                "and this host have no TLS connection that both trust; give both certificates of the same \
                 CA that are valid for the addresses that they advertise"
            }
        }
    }
}

/// The owner of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The partition.
    pub partition: Partition,
    /// Grows with each takeover and never falls. Every append proves it, so a former owner appends
    /// nothing.
    pub epoch: u64,
    /// The process that may append. `None` if the last one gave the partition away.
    pub owner: Option<HostId>,
}

/// What the store contained about hosts and partitions at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Membership {
    /// All hosts in the store, also dead ones, in any order.
    pub hosts: Vec<Member>,
    /// All partitions, in any order.
    pub partitions: Vec<Ownership>,
    /// What all hosts follow.
    pub agreed: Agreement,
}

impl Membership {
    /// The host with this id; `None` if the store does not contain it.
    #[must_use]
    pub fn host(&self, host: HostId) -> Option<&Member> {
        self.hosts.iter().find(|member| member.host == host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_id_is_32_lower_case_digits() {
        let host = HostId::random().expect("randomness");
        let text = host.to_string();
        assert_eq!(text.len(), 32);
        assert!(text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')), "{text}");
        assert_eq!(text.parse(), Ok(host));
        assert_ne!(HostId::random(), Ok(host));
    }
}
