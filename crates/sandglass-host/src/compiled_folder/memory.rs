//! Files that exist only in memory and only in this process.

use std::fs::File;
use std::io;

/// A new file for compiled code. Mapped, it takes memory only for pages that are used, and only once.
///
/// # Errors
/// The process has no descriptor left, or the system no memory.
#[cfg(target_os = "linux")]
pub(crate) fn file_in_memory() -> io::Result<File> {
    let file = rustix::fs::memfd_create("compiled code", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// A new file without a name, on systems that have no files in memory.
///
/// # Errors
/// As on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn file_in_memory() -> io::Result<File> {
    tempfile::tempfile()
}
