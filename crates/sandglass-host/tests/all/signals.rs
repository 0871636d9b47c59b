//! Collects the signals of a handler.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::{Signal, Signals};
use tokio::sync::Notify;

/// The signals that a handler has sent.
#[derive(Debug, Default)]
pub(crate) struct Received {
    signals: Mutex<Vec<Signal>>,
    calls: Mutex<Vec<(String, Duration, Duration)>>,
    notify: Notify,
}

impl Received {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn all(&self) -> Vec<Signal> {
        self.signals.lock().expect("no panic").clone()
    }

    /// The host calls that reached their own time limit: their names, their limits, and how long they
    /// took.
    pub(crate) fn timed_out_calls(&self) -> Vec<(String, Duration, Duration)> {
        self.calls.lock().expect("no panic").clone()
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

    fn call_timed_out(&self, host_call: &str, limit: Duration, took: Duration) {
        self.calls.lock().expect("no panic").push((host_call.to_owned(), limit, took));
    }
}
