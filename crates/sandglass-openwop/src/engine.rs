//! What the handlers of runs, the service and the logs share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sandglass_host::Host;
use sandglass_journal::Journals;
use sandglass_model::Clock;
use sandglass_telemetry::Metrics;

use crate::context::Contexts;
use crate::library::Library;
use crate::settings::Settings;

/// What all parts of an OpenWOP host share.
pub(crate) struct Engine {
    pub(crate) host: Host,
    pub(crate) journals: Journals,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) library: Library,
    pub(crate) settings: Settings,
    pub(crate) contexts: Contexts,
    /// How many runs are executing.
    active: AtomicUsize,
}

impl Engine {
    pub(crate) fn new(
        host: Host,
        journals: Journals,
        clock: Arc<dyn Clock>,
        library: Library,
        settings: Settings,
    ) -> Self {
        let (contexts, active) = Default::default();
        Self { host, journals, clock, library, settings, contexts, active }
    }

    /// Where the metrics of the host go.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.host.telemetry().metrics
    }

    /// How many runs are executing.
    pub(crate) fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed)
    }

    /// Counts one more run as executing until the result is dropped.
    pub(crate) fn count_active(self: &Arc<Self>) -> Active {
        self.active.fetch_add(1, Ordering::Relaxed);
        Active(Arc::clone(self))
    }
}

/// A handler of a run that is executing.
pub(crate) struct Active(Arc<Engine>);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}
