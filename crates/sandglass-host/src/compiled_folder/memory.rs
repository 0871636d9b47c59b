//! Files that are in memory only, and that only this process has.

use std::fs::File;
use std::io;

/// A new one, for compiled code: mapped, it takes the memory of its pages that are used, and of
/// those only once.
///
/// # Errors
/// The process has no descriptor left, or the system no memory.
#[cfg(target_os = "linux")]
pub(crate) fn file_in_memory() -> io::Result<File> {
    let file = rustix::fs::memfd_create("compiled code", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// A new file without a name, where there is none in memory.
///
/// # Errors
/// As on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn file_in_memory() -> io::Result<File> {
    tempfile::tempfile()
}
