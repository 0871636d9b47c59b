//! Randomness, as an argument: the trait by which the shell draws what tells one life or
//! trace from another, so that a simulation draws the same again.

use std::fmt;

/// There is no randomness to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system gives no randomness")]
pub struct NoEntropy;

/// Where the shell draws ids. What can be guessed must not protect anything: these only
/// have to differ.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fills `bytes` with random ones.
    ///
    /// # Errors
    /// There are none; nothing is to be made of `bytes`.
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
