//! Calls that hold a thread: bounded in number, and counted while they run on
//! after whoever called them has gone.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_supervisor::secret::Answer;
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::{Level, LevelGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The blocking calls of one host.
pub(crate) struct BlockingCalls {
    most: u32,
    places: Arc<Semaphore>,
    metrics: Metrics,
}

impl BlockingCalls {
    pub(crate) fn new(most: u32, metrics: Metrics) -> Self {
        Self { most, places: Arc::new(Semaphore::new(most as usize)), metrics }
    }

    /// Starts `work` on a thread; the future answers nothing where it panics.
    /// Dropping the future leaves it lingering.
    ///
    /// # Errors
    /// As many as may be are under way; that many.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Answer<'static, Option<T>>, u32> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| self.most)?;
        let call = Call { stage: Arc::default(), _place: place };
        let heard = Heard { stage: Arc::clone(&call.stage), metrics: self.metrics.clone() };
        let running = tokio::task::spawn_blocking(move || {
            let _call = call;
            work()
        });
        Ok(Box::pin(async move {
            let _heard = heard;
            running.await.ok()
        }))
    }
}

impl fmt::Debug for BlockingCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingCalls").field("most", &self.most).finish_non_exhaustive()
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

/// The thread's side: gives the place back, and is counted out.
struct Call {
    stage: SharedStage,
    _place: OwnedSemaphorePermit,
}

impl Drop for Call {
    fn drop(&mut self) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::Ended;
    }
}

/// The caller's side: counts the call as lingering where it goes first.
struct Heard {
    stage: SharedStage,
    metrics: Metrics,
}

impl Drop for Heard {
    fn drop(&mut self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Running = *stage {
            *stage = Stage::Lingering(self.metrics.hold(Level::LingeringCalls));
        }
    }
}
