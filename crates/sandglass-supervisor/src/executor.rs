//! The threads that run guests. They are separate from the embedder's, so a guest that spins delays no
//! other task of the embedder.

mod giving_way;
mod starting;

use std::io;
use std::sync::Arc;
use std::task::Poll;

use sandglass_model::Clock;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::opaque::opaque;
pub use giving_way::give_way;
pub use starting::Begin;
use starting::{Line, Starter};

/// Threads for blocking work of this crate: reading certificates, once.
const OWN_BLOCKING_THREADS: usize = 4;

/// The task executor of a host. Dropping it ends its threads without waiting for them.
pub struct Executor {
    runtime: Option<Runtime>,
    line: Arc<Line>,
}

impl Executor {
    /// Starts `threads` threads for guests, and allows up to `blocking` more for calls that block.
    pub fn start(threads: usize, blocking: u32, clock: &Arc<dyn Clock>) -> io::Result<Self> {
        let threads = threads.max(1);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .max_blocking_threads((blocking as usize).saturating_add(OWN_BLOCKING_THREADS))
            .thread_name("sandglass-guest")
            .on_thread_start(giving_way::runs_guests)
            // After each slice of a guest, check for new guests and for I/O: a
            // spinner must not delay either by more than its slice.
            .global_queue_interval(1)
            .event_interval(1)
            .enable_all()
            .build()?;
        let line = Arc::default();
        for number in 0..threads {
            runtime.spawn(Starter::new(&line, number, clock));
        }
        Ok(Self { runtime: Some(runtime), line })
    }

    /// Starts the run that `begin` creates, on a thread for guests.
    pub fn start_run(&self, begin: Begin) {
        self.line.join(begin);
    }

    /// Starts the run that `begin` creates on this thread. If it is pending, it continues on a thread for
    /// guests.
    pub fn start_here(&self, begin: Begin) -> Poll<()> {
        let _entered = self.handle().enter();
        starting::start(begin)
    }

    /// The runtime for timers, requests and blocking calls.
    pub fn handle(&self) -> &Handle {
        self.runtime.as_ref().expect("it is taken only by drop").handle()
    }
}

opaque!(Executor as "Executor" { runtime });

impl Drop for Executor {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // The last owner may be a guest's own task, which must not wait here.
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use sandglass_model::SystemClock;

    /// Longer than any thread waits for a CPU.
    const LONG: Duration = Duration::from_secs(20);

    fn executor(threads: usize) -> Executor {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        Executor::start(threads, 1, &clock).expect("threads")
    }

    /// A run that executes `work`, and reports its end.
    fn reporting(
        sender: &mpsc::Sender<()>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Begin {
        let sender = sender.clone();
        Box::new(move || {
            Box::pin(async move {
                work.await;
                // The receiver is gone once its test has seen enough.
                let _ = sender.send(());
            })
        })
    }

    #[test]
    fn every_run_of_every_thread_is_started() {
        const EACH: usize = 1000;
        let executor = executor(2);
        let (sender, ended) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..EACH).for_each(|_| executor.start_run(reporting(&sender, async {})))
                });
            }
        });
        for _ in 0..4 * EACH {
            ended.recv_timeout(LONG).expect("it is started");
        }
    }

    #[test]
    fn a_run_that_panics_ends_alone() {
        let executor = executor(1);
        let (sender, ended) = mpsc::channel();
        executor.start_run(Box::new(|| Box::pin(async { panic!("this is meant") })));
        executor.start_run(reporting(&sender, async {}));
        ended.recv_timeout(LONG).expect("the next one is started");
    }

    #[test]
    fn a_run_that_waits_delays_no_other_and_continues() {
        let executor = executor(1);
        let (answer, waited_for) = tokio::sync::oneshot::channel::<()>();
        let (sender, ended) = mpsc::channel();
        executor.start_run(reporting(&sender, async {
            waited_for.await.expect("the answer");
        }));
        executor.start_run(reporting(&sender, async {}));
        ended.recv_timeout(LONG).expect("the one behind it");
        answer.send(()).expect("it waits");
        ended.recv_timeout(LONG).expect("the one that waited");
    }

    #[test]
    fn runs_that_yield_share_one_thread() {
        const ALL: usize = 3;
        let (executor, begun) = (executor(1), Arc::new(AtomicUsize::new(0)));
        let (sender, ended) = mpsc::channel();
        for _ in 0..ALL {
            let begun = Arc::clone(&begun);
            executor.start_run(reporting(&sender, async move {
                begun.fetch_add(1, Ordering::Relaxed);
                while begun.load(Ordering::Relaxed) < ALL {
                    give_way().await;
                }
            }));
        }
        for _ in 0..ALL {
            ended.recv_timeout(LONG).expect("each gets to run");
        }
    }

    #[test]
    fn a_stream_of_new_runs_does_not_starve_tasks() {
        fn comes_again(executor: Arc<Executor>, enough: Arc<AtomicBool>) -> Begin {
            Box::new(move || {
                Box::pin(async move {
                    if !enough.load(Ordering::Relaxed) {
                        executor.start_run(comes_again(Arc::clone(&executor), enough));
                    }
                })
            })
        }
        let (executor, enough) = (Arc::new(executor(1)), Arc::new(AtomicBool::new(false)));
        executor.start_run(comes_again(Arc::clone(&executor), Arc::clone(&enough)));
        let (sender, ended) = mpsc::channel();
        executor.start_run(reporting(&sender, async {
            for _ in 0..10 {
                give_way().await;
            }
        }));
        ended.recv_timeout(LONG).expect("it goes on between the others");
        enough.store(true, Ordering::Relaxed);
    }
}
