//! Carries asks and signals of guests from the host to the runtime.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{Answer, Asks, Host, Signal};
use sandglass_model::{Answered, Ask, AskError, Clock, EntitySignal, Monotonic, SignalError};
use sandglass_telemetry::Metrics;

use crate::asking::Asking;
use crate::signals::Signals;

/// The clocks of host and runtime. Points of one mean nothing to the other.
#[derive(Clone, Debug)]
pub(super) struct Clocks {
    pub(super) host: Host,
    pub(super) runtime: Arc<dyn Clock>,
}

impl Clocks {
    pub(super) fn on_the_host(&self, at: Monotonic) -> Monotonic {
        self.host.clock().now().after(at.since(self.runtime.now()))
    }

    fn on_the_runtime(&self, at: Monotonic) -> Monotonic {
        self.runtime.now().after(at.since(self.host.clock().now()))
    }
}

/// Forwards the asks of a guest, and its signals to other entities.
#[derive(Debug)]
pub(super) struct HostAsks {
    pub(super) asks: Asking,
    pub(super) clocks: Clocks,
}

impl Asks for HostAsks {
    fn knows(&self, entity_type: &str, action: &str) -> bool {
        self.asks.knows(entity_type, action)
    }

    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>> {
        let (asks, clocks) = (self.asks.clone(), self.clocks.clone());
        Box::pin(async move {
            let not_after = clocks.on_the_runtime(ask.not_after);
            asks.ask(Ask { not_after, ..ask }).await
        })
    }

    fn signal(&self, signal: EntitySignal) -> Answer<'static, Result<(), SignalError>> {
        Box::pin(self.asks.clone().signal(signal))
    }
}

/// Forwards the signals of a guest. Signals that the entity cannot keep up with are dropped and
/// counted.
#[derive(Debug)]
pub(super) struct SignalAdaptor {
    pub(super) signals: Signals,
    pub(super) entity_type: String,
    pub(super) metrics: Metrics,
    /// The clock of the runtime.
    pub(super) clock: Arc<dyn Clock>,
}

impl sandglass_host::Signals for SignalAdaptor {
    fn signal(&self, signal: Signal) {
        let kind = signal.kind().to_owned();
        let payload = match signal {
            Signal::Progress(progress) => progress,
            Signal::Heartbeat => serde_json::Value::Null,
            Signal::Status(status) => status.into(),
        };
        if !self.signals.send(kind, payload) {
            self.metrics.signal_dropped(&self.entity_type);
        }
    }

    fn is_synthetic(&self, kind: &str) -> bool {
        self.signals.is_synthetic(kind)
    }

    fn call_timed_out(&self, host_call: &str, limit: Duration, took: Duration) {
        self.signals.call_timed_out(host_call, limit, took, self.clock.wall());
    }
}
