//! The Tokio runtime of a command.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// Starts a runtime with this many threads, or one for each core. It ignores SIGXFSZ: a journal that
/// reaches the limit on the size of files (`ulimit -f`) then fails like one on a full disk, from
/// which the runtime recovers, instead of ending the process.
///
/// # Errors
/// Errors if the operating system refuses a thread.
pub(crate) fn start(threads: Option<usize>) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let threads = builder.enable_all().build()?;
    {
        let _guard = threads.enter();
        // Tokio never removes its handler, so a write fails with EFBIG from here on (setrlimit(2)).
        drop(signal(SignalKind::from_raw(libc::SIGXFSZ))?);
    }
    Ok(threads)
}
