//! Runs a guest on the task of whoever waits for it, and not on the host's own
//! threads: an option for embedders that accept what it costs them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use sandglass_model::RunReport;
use tokio::runtime::Handle;

use crate::host::CallerGuard;

/// A run that its caller polls; it answers nothing where the run was lost to a panic.
/// Dropped before its end, it first names the cause and then gives back all that the
/// run holds.
pub(crate) struct InPlace<'a> {
    _caller: CallerGuard,
    running: Option<Running>,
    /// Whose timers and requests the run has; those of whoever polls it, where there is none.
    executor: Option<&'a Handle>,
}

type Running = Pin<Box<dyn Future<Output = RunReport> + Send>>;

impl<'a> InPlace<'a> {
    /// Takes `running`, whose timers and requests are on `executor`, where there is one:
    /// connections that are kept for other runs must outlive the caller's.
    pub(crate) fn new(
        executor: Option<&'a Handle>,
        caller: CallerGuard,
        running: impl Future<Output = RunReport> + Send + 'static,
    ) -> Self {
        Self { _caller: caller, running: Some(Box::pin(running)), executor }
    }
}

impl Future for InPlace<'_> {
    type Output = Option<RunReport>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<RunReport>> {
        let _entered = self.executor.map(Handle::enter);
        let Some(running) = &mut self.running else { return Poll::Ready(None) };
        // A panic of the embedder's own ends its run, and not its task: as on the
        // host's threads.
        match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(report)) => {
                self.running = None;
                Poll::Ready(Some(report))
            }
            Err(_) => {
                self.running = None;
                Poll::Ready(None)
            }
        }
    }
}
