//! Records the host calls of a run, so that the run can be replayed without the outside world: the
//! result of every call, including clock and randomness, and a hash of its arguments.
//!
//! ```text
//! boundary --> RunRecording --> Recorder: writes one entry for each call     --> recording
//!                    |
//!                    +--------> Replayer: compares each call with its entry, and returns its result
//! ```
//!
//! A recording is a sequence of CBOR items: a header ([`Header`]), and for each call an array of the
//! function's name, the hash of its arguments, the arguments in CBOR's diagnostic notation or null,
//! what the call was about or null, its result or null (the run ended inside it), and what it wrote
//! to the guest's memory. If the guest went on while the call was in flight, its result is
//! `undefined`, and its completion is a later item: an array of the call's number, the point at which
//! the completion was delivered, how many calls had begun then
//! ([`Completion`](crate::in_flight::Completion)), and the result, or `undefined` if the guest
//! cancelled the call before it learned of the completion. Recordings are stored in journals, so the
//! format is a contract.

mod diagnostic;
mod header;
mod memory;
pub mod packing;
mod recorder;
mod replayer;
mod run_recording;
mod secrets;

use std::sync::Mutex;

use sha2::{Digest, Sha256};

pub use header::{Header, Invocation};
pub use memory::{RecordingMemory, Share};
pub use packing::{Packer, Unpacker, Unreadable};
pub use recorder::Recorder;
pub use replayer::{End, ReplayProgress, Replayer, secrets_in};
pub use replayer::{ReplayedCall, Watcher};
pub use run_recording::{RunRecording, Source};
pub use secrets::{GivenSecrets, SeenSecrets};

/// How much of each text, and of each byte string, is compared, in bytes. Hashing is not interrupted,
/// so this bounds it to a millisecond or two.
const COMPARED_BYTES: usize = 1 << 20;

/// How much of all texts of one call is compared: `fd_write` may name the same bytes a thousand times.
const COMPARED_BYTES_OF_CALL: usize = 4 << 20;

/// Functions that set the result of a guest: a replay executes them.
const RESULT_SETTERS: [&str; 2] = ["host_set_result", "sandglass:integration/fail.raise"];

/// The bounds of a run's recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// Most host calls of a run that is recorded.
    pub calls: u64,
    /// Most bytes of the recording.
    pub bytes: u64,
    /// Whether the arguments of calls are recorded besides their hashes.
    pub arguments: KeepArguments,
}

/// Whether a run is recorded or replayed.
#[derive(Debug, Default)]
pub enum RecordingMode {
    /// It is neither recorded nor replayed.
    #[default]
    Off,
    /// It is recorded.
    Record(RecordingLimits),
    /// It replays a recording, which the run takes when it starts.
    Replay(Mutex<Option<Box<Replayer>>>),
}

/// Whether arguments of host calls are recorded besides their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepArguments {
    /// Only their hashes: enough to find the call that differs.
    No,
    /// Up to 64 KiB for each call, without secrets, so that a divergence shows what was passed.
    Yes,
}

impl Default for RecordingLimits {
    /// 10,000 calls and 16 MiB: handlers with more call the outside in loops, and their recordings would
    /// dominate the journal.
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
