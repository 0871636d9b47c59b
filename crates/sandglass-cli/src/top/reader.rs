//! Who reads standard output: whether they have gone away, which writing alone would tell
//! only when there is something to write.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The reading end of standard output.
#[derive(Debug)]
pub(super) struct Reader(Option<AsyncFd<OwnedFd>>);

impl Reader {
    /// Must be called where tasks run. A file and some others can't be asked: nobody is ever
    /// gone from those.
    #[expect(deprecated, reason = "what it can't know, that nobody else closes it, is so here")]
    pub(super) fn of_output() -> Self {
        let output = io::stdout().as_fd().try_clone_to_owned();
        Self(output.and_then(|fd| AsyncFd::with_interest(fd, Interest::ERROR)).ok())
    }

    /// Returns when nobody can read any more.
    pub(super) async fn gone(&self) {
        let Some(output) = &self.0 else { return pending().await };
        if output.ready(Interest::ERROR).await.is_err() {
            pending().await
        }
    }
}
