//! Captures the report of the handler. If the entity starts further handlers, the first report is
//! kept, because it is that of the requested one.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{Busy, Dispatched, ModuleHash, RunReport};
use sandglass_runtime::{HandlerRun, Handlers, HostHandlers, Reserved, RunFuture};

pub(super) struct Capture {
    handlers: HostHandlers,
    report: Arc<Mutex<Option<RunReport>>>,
}

impl Capture {
    pub(super) fn new(handlers: HostHandlers) -> Arc<Self> {
        Arc::new(Self { handlers, report: Arc::default() })
    }

    pub(super) fn report(&self) -> Option<RunReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Handlers for Capture {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let run = self.handlers.start(run);
        let captured = Arc::clone(&self.report);
        Box::pin(async move {
            let report = run.await;
            let mut captured = captured.lock().unwrap_or_else(PoisonError::into_inner);
            captured.get_or_insert_with(|| report.clone());
            drop(captured);
            report
        })
    }

    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        self.handlers.reserve(dispatched, tenant)
    }

    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        self.handlers.module_hash(module)
    }
}
