//! Random numbers that the seed alone determines, in independent streams: one more draw for the
//! disk changes nothing that clients do.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_model::{Entropy, NoEntropy};
use sha2::{Digest, Sha256};

/// A stream of random numbers. Clones share the stream.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Arc<Mutex<fastrand::Rng>>);

impl Dice {
    /// The stream named `stream` of `seed`.
    pub(crate) fn new(seed: u64, stream: &str) -> Self {
        let digest = Sha256::new().chain_update(seed.to_be_bytes()).chain_update(stream).finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(u64::from_be_bytes(first)))))
    }

    /// Returns a number from 0 to `n - 1`, or 0 if `n` is 0.
    pub(crate) fn below(&self, n: usize) -> usize {
        if n == 0 { 0 } else { self.lock().usize(..n) }
    }

    pub(crate) fn within(&self, range: RangeInclusive<u64>) -> u64 {
        self.lock().u64(range)
    }

    /// Returns true with a probability of `chance` in 1,000.
    pub(crate) fn per_mille(&self, chance: u32) -> bool {
        self.lock().u32(..1_000) < chance
    }

    /// Returns one of `choices`, which must not be empty.
    pub(crate) fn pick<'a, T>(&self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len())]
    }

    /// The next number of the stream.
    pub(crate) fn next(&self) -> u64 {
        self.lock().u64(..)
    }

    fn lock(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entropy for Dice {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoEntropy> {
        self.lock().fill(bytes);
        Ok(())
    }
}
