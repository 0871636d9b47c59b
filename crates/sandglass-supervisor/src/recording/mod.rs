//! What the host told a guest in one run, kept so that the run can be had again
//! without the world that it spoke to: the answer of every host call, clock and
//! randomness among them, and a hash of its arguments.
//!
//! ```text
//! boundary --> tape --> recorder: one entry for each call            --> recording
//!               |
//!               +-----> player: compares each call with its entry, and answers from it
//! ```
//!
//! A recording is a sequence of CBOR items: a header ([`Header`]), and for each call an
//! array of the function's name, the hash of its arguments, the arguments in CBOR's
//! diagnostic notation or null, what the call was about or null, its answer or null
//! (the run ended inside it), and what it wrote to the guest's memory.

mod header;
pub mod packing;
mod player;
mod recorder;
mod room;
mod secrets;
mod tape;

use std::sync::Mutex;

use sha2::{Digest, Sha256};

pub use header::{Header, Invocation};
pub use packing::{Packer, Unpacker, Unreadable};
pub use player::{End, Found, Player, secrets_in};
pub use player::{PlayedCall, Watcher};
pub use recorder::Recorder;
pub use room::{Room, Share};
pub use secrets::Given;
pub use tape::{Source, Tape};

/// How much of each text, and of each list of bytes, is compared, in bytes. Nothing
/// interrupts the hashing, so this bounds it to a millisecond or two.
const COMPARED_BYTES: usize = 1 << 20;

/// The same for all texts of one call: `fd_write` may name a thousand buffers of the same bytes.
const COMPARED_BYTES_OF_CALL: usize = 4 << 20;

/// Functions by which a guest gives its result: they are carried out also when their
/// run is played.
const GIVE_A_RESULT: [&str; 2] = ["host_set_result", "sandglass:integration/fail.raise"];

/// What is kept of each run for its replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// Most host calls of a run that is recorded.
    pub calls: u64,
    /// Most bytes that its recording has.
    pub bytes: u64,
    /// Whether the arguments of its calls are kept, beside their hashes.
    pub arguments: KeepArguments,
}

/// What becomes of a run's recording.
#[derive(Debug, Default)]
pub enum Taping {
    /// It is neither recorded nor replayed.
    #[default]
    Off,
    /// It is recorded.
    Record(RecordingLimits),
    /// Until it is taken by the run.
    Play(Mutex<Option<Box<Player>>>),
}

/// Whether arguments of host calls are kept, beside their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepArguments {
    /// Only their hashes: enough to find the call that differs.
    No,
    /// Whole, up to 64 KiB for each call, without secrets: a divergence shows what was
    /// passed.
    Yes,
}

impl Default for RecordingLimits {
    /// 10,000 calls and 16 MiB: handlers that do more have loops over the outside, and
    /// their recordings would be most of the journal.
    fn default() -> Self {
        Self { calls: 10_000, bytes: 16 << 20, arguments: KeepArguments::No }
    }
}

/// The first 8 bytes of the SHA-256 of packed arguments.
fn hash(arguments: &[u8]) -> u64 {
    let digest = Sha256::digest(arguments);
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_be_bytes(first)
}
