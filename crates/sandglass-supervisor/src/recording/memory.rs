//! The memory for the recordings of all runs of a host.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_telemetry::Metrics;

/// The step by which a recording takes memory, in bytes. Most recordings need one step, so the shared
/// counter changes rarely.
const STEP_BYTES: usize = 64 << 10;

/// The memory for recordings.
#[derive(Debug)]
pub struct RecordingMemory {
    bytes: u64,
    taken: AtomicU64,
    metrics: Metrics,
}

/// The memory for recordings is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recordings of other runs took all of the {0} bytes that the host has for them")]
pub(crate) struct OutOfMemory(u64);

impl RecordingMemory {
    /// Creates a pool of `bytes`.
    pub fn new(bytes: u64, metrics: Metrics) -> Arc<Self> {
        Arc::new(Self { bytes, taken: AtomicU64::new(0), metrics })
    }

    /// Creates an empty share.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { memory: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, more: u64) -> Result<(), OutOfMemory> {
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, |taken| {
            taken.checked_add(more).filter(|taken| *taken <= self.bytes)
        });
        taken.map(drop).map_err(|_| {
            self.metrics.recording_refused();
            OutOfMemory(self.bytes)
        })
    }
}

/// The memory of one recording, until this is dropped.
#[derive(Debug)]
pub struct Share {
    memory: Arc<RecordingMemory>,
    bytes: u64,
}

impl Share {
    /// Grows the share to at least `bytes`.
    ///
    /// # Errors
    /// The pool has too little; the share is unchanged.
    pub(super) fn cover(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let wanted = bytes.next_multiple_of(STEP_BYTES) as u64;
        if wanted > self.bytes {
            self.memory.take(wanted - self.bytes)?;
            self.bytes = wanted;
        }
        Ok(())
    }

    /// Shrinks the share to at most `bytes`.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let more = self.bytes.saturating_sub(bytes as u64);
        self.memory.taken.fetch_sub(more, Ordering::AcqRel);
        self.bytes -= more;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 2 * STEP_BYTES as u64;

    #[test]
    fn shares_are_bounded_and_all_memory_is_returned() {
        let memory = RecordingMemory::new(ALL, Metrics::disabled());
        let (mut one, mut other) = (memory.share(), memory.share());
        one.cover(1).expect("enough memory");
        one.cover(2).expect("it has that");
        other.cover(STEP_BYTES).expect("enough memory");
        assert_eq!(other.cover(STEP_BYTES + 1), Err(OutOfMemory(ALL)));
        one.shrink(10);
        assert_eq!(memory.taken.load(Ordering::SeqCst), ALL / 2 + 10);
        one.shrink(20);
        drop(one);
        other.cover(STEP_BYTES + 1).expect("enough memory again");
        drop(other);
        assert_eq!(memory.taken.load(Ordering::SeqCst), 0);
    }
}
