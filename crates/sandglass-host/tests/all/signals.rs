//! Collects the signals of a handler.

use std::sync::{Arc, Mutex};

use sandglass_host::{Signal, Signals};
use tokio::sync::Notify;

/// The signals that a handler has sent.
#[derive(Debug, Default)]
pub(crate) struct Received {
    signals: Mutex<Vec<Signal>>,
    notify: Notify,
}

impl Received {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn all(&self) -> Vec<Signal> {
        self.signals.lock().expect("no panic").clone()
    }

    /// The status that is the only signal.
    pub(crate) fn status(&self) -> String {
        match self.all().as_slice() {
            [Signal::Status(status)] => status.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the handler has sent a signal.
    pub(crate) async fn wait(&self) {
        loop {
            let notified = self.notify.notified();
            if !self.all().is_empty() {
                return;
            }
            notified.await;
        }
    }
}

impl Signals for Received {
    fn signal(&self, signal: Signal) {
        self.signals.lock().expect("no panic").push(signal);
        self.notify.notify_waiters();
    }
}
