//! The ids of runs.

use sandglass_model::{EntityRef, Entropy as _, SystemEntropy};
use sandglass_runtime::ActorError;
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

/// A new id of a replay.
pub(crate) fn of_replay() -> Result<String, ActorError> {
    drawn(REPLAY_PREFIX)
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

/// The ids of the branch and of the replay that an idempotency key of a fork stands for.
pub(crate) fn of_fork_key(key: &str) -> [String; 2] {
    let digest =
        Sha256::new().chain_update("openwop-fork-idempotency-key\0").chain_update(key).finalize();
    [RUN_PREFIX, REPLAY_PREFIX].map(|prefix| format!("{prefix}{}", hex(&digest[..16])))
}

/// The id of the child run that `node` of the run `parent` starts as its `nth` in its execution number
/// `execution`: a repeated execution finds the same child.
pub(crate) fn of_child(parent: &str, node: &str, execution: u64, nth: usize) -> String {
    let part = |text: &str| (text.len() as u64).to_be_bytes();
    let digest = Sha256::new()
        .chain_update("openwop-child\0")
        .chain_update(part(parent))
        .chain_update(parent)
        .chain_update(part(node))
        .chain_update(node)
        .chain_update(execution.to_be_bytes())
        .chain_update((nth as u64).to_be_bytes())
        .finalize();
    format!("{RUN_PREFIX}{}", hex(&digest[..16]))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
