//! The threads that run guests, apart from the embedder's: a guest that spins
//! holds none that anybody else waits for.

use std::io;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;

/// Threads for what the host itself does that holds one: reading certificates,
/// once.
const OWN_BLOCKING_THREADS: usize = 4;

/// Threads that compile: the compiler spreads one module over all cores, and a second one
/// fills what the first leaves. More would only hold more memory.
pub(crate) const COMPILING_THREADS: usize = 2;

/// A task executor of the host's own. Dropping it ends its threads without
/// waiting for them.
#[derive(Debug)]
pub(crate) struct Executor(Option<Runtime>);

impl Executor {
    /// Starts `threads` threads for guests, and lets up to `blocking` more begin for
    /// what holds a thread.
    pub(crate) fn start(threads: usize, blocking: u32) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .max_blocking_threads(
                (blocking as usize).saturating_add(OWN_BLOCKING_THREADS + COMPILING_THREADS),
            )
            .thread_name("sandglass-guest")
            // After each slice of a guest, look for new guests and for I/O: a
            // spinner must not delay either by more than its slice.
            .global_queue_interval(1)
            .event_interval(1)
            .enable_all()
            .build()?;
        Ok(Self(Some(runtime)))
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime().spawn(task)
    }

    /// What timers, requests and blocking calls are started on.
    pub(crate) fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    fn runtime(&self) -> &Runtime {
        self.0.as_ref().expect("it is taken only by drop")
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            // Also where the last owner is a guest's own task: nothing may wait here.
            runtime.shutdown_background();
        }
    }
}
