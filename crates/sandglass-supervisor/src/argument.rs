//! Arguments of host functions that are texts or bytes, and why one cannot be used.

use crate::host_memory::OutOfHostMemory;

/// Why a text or bytes cannot be read from the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It lies outside the memory.
    #[error(
        "{what} lies outside the guest's memory (pointer {ptr}, length {len}, memory {memory} bytes)"
    )]
    OutOfBounds {
        /// What it is.
        what: &'static str,
        /// Where it begins.
        ptr: u32,
        /// Its length, in bytes.
        len: u32,
        /// The size of the memory, in bytes.
        memory: usize,
    },
    /// It is not UTF-8.
    #[error("{what} is no UTF-8 (byte {at})")]
    NotUtf8 {
        /// What it is.
        what: &'static str,
        /// The first byte that is not valid.
        at: usize,
    },
    /// The account of the run has no room for it.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfHostMemory),
    /// It is longer than the call may read.
    #[error("{what} has {len} bytes, and {max} are allowed")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Its length, in bytes.
        len: u32,
        /// The most that is allowed, in bytes.
        max: u32,
    },
}
