//! Calls that block a thread: bounded in number, and counted while they linger after their caller has
//! gone.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_supervisor::secret::Answer;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{Level, LevelGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The blocking calls of one host.
#[derive(Debug)]
pub(crate) struct BlockingCalls {
    most: u32,
    permits: Arc<Semaphore>,
    metrics: Metrics,
}

impl BlockingCalls {
    pub(crate) fn new(most: u32, metrics: Metrics) -> Self {
        Self { most, permits: Arc::new(Semaphore::new(most as usize)), metrics }
    }

    /// Starts `work` on a thread. The output of the future is `None` if `work` panics. If the future is
    /// dropped, `work` continues and lingers.
    ///
    /// # Errors
    /// The most calls are in progress; the error is their number.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<'static, Option<T>>, u32> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().map_err(|_| self.most)?;
        Ok(self.start(permit, work))
    }

    /// As [`BlockingCalls::run`], but if the most calls are in progress, the future waits until one has
    /// ended. If it is dropped while it waits, `work` is not started.
    pub(crate) fn run_in_turn<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<'static, Option<T>> {
        let calls = Arc::clone(self);
        Box::pin(async move {
            let permit = Arc::clone(&calls.permits).acquire_owned().await.ok()?;
            calls.start(permit, work).await
        })
    }

    fn start<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Answer<'static, Option<T>> {
        let call = ThreadSide { stage: Arc::default(), _permit: permit };
        let caller = CallerSide { stage: Arc::clone(&call.stage), metrics: self.metrics.clone() };
        let running = tokio::task::spawn_blocking(move || {
            let _call = call;
            work()
        });
        Box::pin(async move {
            let _caller = caller;
            running.await.ok()
        })
    }
}

#[derive(Default)]
enum Stage {
    #[default]
    Running,
    Lingering(#[allow(dead_code, reason = "it counts while it lives")] LevelGuard),
    Ended,
}

type SharedStage = Arc<Mutex<Stage>>;

/// The thread's side. Dropping it releases the permit, and ends lingering.
struct ThreadSide {
    stage: SharedStage,
    _permit: OwnedSemaphorePermit,
}

impl Drop for ThreadSide {
    fn drop(&mut self) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::Ended;
    }
}

/// The caller's side. If it is dropped first, the call counts as lingering.
struct CallerSide {
    stage: SharedStage,
    metrics: Metrics,
}

impl Drop for CallerSide {
    fn drop(&mut self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Running = *stage {
            *stage = Stage::Lingering(self.metrics.hold(Level::LingeringCalls));
        }
    }
}
