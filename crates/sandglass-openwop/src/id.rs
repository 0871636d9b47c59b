//! The ids of runs.

use sandglass_model::{EntityRef, Entropy as _, Partition, SystemEntropy};
use sandglass_runtime::ActorError;
use sandglass_workflow::step::ForkMode;
use sha2::{Digest as _, Sha256};

use crate::{REPLAY_TYPE, RUN_TYPE};

/// The prefix of ids of runs.
const RUN_PREFIX: &str = "run-";
/// The prefix of ids of replays.
const REPLAY_PREFIX: &str = "replay-";

/// A new id of a run.
pub(crate) fn of_run() -> Result<String, ActorError> {
    drawn(RUN_PREFIX)
}

/// A new id of a fork.
pub(crate) fn of_fork(mode: ForkMode) -> Result<String, ActorError> {
    drawn(prefix_of(mode))
}

const fn prefix_of(mode: ForkMode) -> &'static str {
    match mode {
        ForkMode::Branch => RUN_PREFIX,
        ForkMode::Replay => REPLAY_PREFIX,
    }
}

fn drawn(prefix: &str) -> Result<String, ActorError> {
    let mut bytes = [0; 16];
    SystemEntropy.fill(&mut bytes).map_err(|_| ActorError::NoRandomness)?;
    Ok(format!("{prefix}{}", hex(&bytes)))
}

/// The entity of the run `id`; `None` if that is not an id of a run.
pub(crate) fn entity_of(id: &str) -> Option<EntityRef> {
    let of = |prefix: &str| {
        let digits = id.strip_prefix(prefix)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 32 && digits.bytes().all(is_digit)).then_some(())
    };
    let entity_type = of(RUN_PREFIX).map(|()| RUN_TYPE).or(of(REPLAY_PREFIX).map(|()| REPLAY_TYPE));
    EntityRef::new(entity_type?, id).ok()
}

/// The id of the run that an idempotency key stands for: so the key is valid as long as the run
/// exists, also after a restart.
pub(crate) fn of_key(key: &str) -> String {
    let digest =
        Sha256::new().chain_update("openwop-idempotency-key\0").chain_update(key).finalize();
    format!("{RUN_PREFIX}{}", hex(&digest[..16]))
}

/// The id of the fork that an idempotency key of a fork stands for.
pub(crate) fn of_fork_key(key: &str, mode: ForkMode) -> String {
    let digest =
        Sha256::new().chain_update("openwop-fork-idempotency-key\0").chain_update(key).finalize();
    format!("{}{}", prefix_of(mode), hex(&digest[..16]))
}

/// The ids of the child run that `node` of the run `parent` starts as its `nth` in its execution number
/// `execution`: a repeated execution finds the same child.
pub(crate) struct ChildIds {
    /// The id in a store of one journal. Earlier versions of this program used it in all stores.
    pub(crate) in_one_journal: String,
    /// The id in a partitioned store: it is in the partition of the parent, so that a family of runs has one owner.
    pub(crate) in_partition: String,
}

impl ChildIds {
    pub(crate) fn new(parent: &str, node: &str, execution: u64, nth: usize) -> Self {
        let part = |text: &str| (text.len() as u64).to_be_bytes();
        let digest = Sha256::new()
            .chain_update("openwop-child\0")
            .chain_update(part(parent))
            .chain_update(parent)
            .chain_update(part(node))
            .chain_update(node)
            .chain_update(execution.to_be_bytes())
            .chain_update((nth as u64).to_be_bytes());
        let id = |digest: Sha256| format!("{RUN_PREFIX}{}", hex(&digest.finalize()[..16]));
        let in_one_journal = id(digest.clone());
        let attempts =
            (1..ATTEMPTS_MAX).map(|attempt| digest.clone().chain_update(attempt.to_be_bytes()));
        let mut ids = std::iter::once(in_one_journal.clone()).chain(attempts.map(id));
        let home = partition_of(parent);
        let in_partition =
            ids.find(|id| partition_of(id) == home).unwrap_or_else(|| in_one_journal.clone());
        Self { in_one_journal, in_partition }
    }
}

/// Names that are tried until one is in a certain partition. Each has a chance of 1 in 64, so this
/// number is practically never reached. If it is, the name is in another partition, which only costs time.
pub(crate) const ATTEMPTS_MAX: u32 = 4_096;

/// The partition of the run `id`.
fn partition_of(id: &str) -> Option<Partition> {
    EntityRef::new(RUN_TYPE, id).ok().map(|run| Partition::of(&run))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_in_the_partition_of_its_parent() {
        for number in 0..100 {
            let parent = of_key(&number.to_string());
            let ids = ChildIds::new(&parent, "send", 1, 0);
            assert_eq!(partition_of(&ids.in_partition), partition_of(&parent));
            for id in [&ids.in_one_journal, &ids.in_partition] {
                assert!(entity_of(id).is_some(), "{id}");
            }
            assert_eq!(ChildIds::new(&parent, "send", 1, 0).in_partition, ids.in_partition);
            for (node, execution, nth) in [("Send", 1, 0), ("send", 2, 0), ("send", 1, 1)] {
                let other = ChildIds::new(&parent, node, execution, nth);
                assert!(
                    other.in_one_journal != ids.in_one_journal
                        && other.in_partition != ids.in_partition
                );
            }
        }
    }

    #[test]
    fn the_id_of_a_child_in_one_journal_never_changes() {
        let ids = ChildIds::new("run-00000000000000000000000000000000", "send", 1, 0);
        assert_eq!(ids.in_one_journal, "run-42412639bb40a89f74f970e025b6596a");
    }
}
