//! Randomness as an argument, so that a simulation can repeat the ids that it draws.

use std::fmt;

/// No randomness is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system provides no randomness")]
pub struct NoEntropy;

/// A source of ids. They only have to differ, and protect nothing: a simulation can guess them.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fills `bytes` with random values.
    ///
    /// # Errors
    /// No randomness is available; `bytes` must not be used.
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoEntropy>;
}

/// The randomness of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), NoEntropy> {
        getrandom::fill(bytes).map_err(|_| NoEntropy)
    }
}
