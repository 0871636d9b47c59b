//! Spare descriptors for `accept`: if the process has no other left, a health check is still accepted.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use tokio::net::TcpListener;

/// Concurrent health checks are few, and each one ends soon.
const SPARES: usize = 4;

/// Spare descriptors, which are copies of the listener's.
#[derive(Debug, Default)]
pub(crate) struct Spares(Vec<OwnedFd>);

impl Spares {
    /// Opens the missing ones, unless the process has no descriptor left.
    pub(crate) fn refill(&mut self, listener: &TcpListener) {
        while self.0.len() < SPARES {
            let Ok(spare) = listener.as_fd().try_clone_to_owned() else { return };
            self.0.push(spare);
        }
    }

    /// Frees one, for the connection that is accepted next. False if there is none.
    pub(crate) fn free_one(&mut self) -> bool {
        self.0.pop().is_some()
    }
}

/// Whether the process or the system has no descriptor or memory for another connection.
pub(crate) fn is_exhausted(error: &io::Error) -> bool {
    /// `ENOMEM`, `ENFILE`, `EMFILE` and `ENOBUFS`, as Linux numbers them.
    const EXHAUSTED: [i32; 4] = [12, 23, 24, 105];
    error.raw_os_error().is_some_and(|code| EXHAUSTED.contains(&code))
}
