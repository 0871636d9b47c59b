//! The threads that asynchronous work of a command runs on.

use std::io;

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

/// Threads for a command that writes a journal: as many as asked for, or one for each
/// core. A journal that reaches the limit on the size of files (`ulimit -f`) is then a
/// disk without room, for which there is a way on, and not the end of the process.
///
/// # Errors
/// The operating system gives no threads.
pub(crate) fn start(threads: Option<usize>) -> io::Result<Runtime> {
    let mut builder = Builder::new_multi_thread();
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    let threads = builder.enable_all().build()?;
    {
        let _inside = threads.enter();
        // Once it is listened for it stays so, and a write is an error (setrlimit(2)).
        drop(signal(SignalKind::from_raw(libc::SIGXFSZ))?);
    }
    Ok(threads)
}
