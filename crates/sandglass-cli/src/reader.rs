//! Notices that the reader of standard output has gone away, which a write alone would reveal only
//! at the next change.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The reading end of standard output.
#[derive(Debug)]
pub(crate) struct Reader(Option<AsyncFd<OwnedFd>>);

impl Reader {
    /// Must be called inside a Tokio runtime. A regular file cannot be polled and has no reader
    /// that could go away.
    #[expect(deprecated, reason = "it assumes that no other code closes the descriptor, as here")]
    pub(crate) fn of_stdout() -> Self {
        let output = io::stdout().as_fd().try_clone_to_owned();
        Self(output.and_then(|fd| AsyncFd::with_interest(fd, Interest::ERROR)).ok())
    }

    /// Returns once standard output has no reader.
    pub(crate) async fn gone(&self) {
        let Some(output) = &self.0 else { return pending().await };
        if output.ready(Interest::ERROR).await.is_err() {
            pending().await
        }
    }
}
