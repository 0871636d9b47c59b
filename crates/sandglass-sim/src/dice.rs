//! Randomness that a seed alone decides: streams that don't disturb one another, so that
//! one more draw for the disk changes nothing of what clients do.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_model::{Entropy, NoEntropy};
use sha2::{Digest, Sha256};

/// One stream. Clones draw from the same one.
#[derive(Clone, Debug)]
pub(crate) struct Dice(Arc<Mutex<fastrand::Rng>>);

impl Dice {
    /// The stream of this name.
    pub(crate) fn new(seed: u64, stream: &str) -> Self {
        let digest = Sha256::new().chain_update(seed.to_be_bytes()).chain_update(stream).finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(u64::from_be_bytes(first)))))
    }

    /// From 0 to `n - 1`; 0 where `n` is 0.
    pub(crate) fn below(&self, n: usize) -> usize {
        if n == 0 { 0 } else { self.lock().usize(..n) }
    }

    pub(crate) fn within(&self, range: RangeInclusive<u64>) -> u64 {
        self.lock().u64(range)
    }

    /// True so many times of a thousand.
    pub(crate) fn per_mille(&self, chance: u32) -> bool {
        self.lock().u32(..1_000) < chance
    }

    /// One of `choices`, which has some.
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
