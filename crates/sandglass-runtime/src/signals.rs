//! Signals that handlers send, on their way to the entity, and host calls of handlers that timed out.
//! Their number and total size are bounded; what exceeds the bounds is dropped and counted.

use std::sync::Arc;
use std::time::Duration;

use sandglass_liveness::TimedOutCall;
use sandglass_model::{DispatchId, Limit, Overrun, WallTime};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::actor::SIGNAL_QUEUE_MAX;

/// Most memory that the payloads of one entity's waiting signals occupy, in bytes: JSON occupies
/// several times its length once it is parsed.
pub(crate) const SIGNAL_QUEUE_BYTES: u32 = 4 << 20;

/// Sends signals of one handler run to its entity. Signals are not actions.
#[derive(Clone, Debug)]
pub struct Signals {
    dispatch: DispatchId,
    attempt: u32,
    queue: SignalQueue,
    /// The kinds that show no activity.
    synthetic: Arc<[String]>,
}

/// Where all handler runs of one entity send their signals.
#[derive(Clone, Debug)]
pub(crate) struct SignalQueue {
    sender: mpsc::Sender<Sent>,
    /// One permit for each byte that may wait.
    free_bytes: Arc<Semaphore>,
}

/// What comes out of the queue.
#[derive(Clone, Debug)]
pub(crate) enum Sent {
    Signal(HandlerSignal),
    /// A host call of this attempt reached its own time limit.
    CallTimedOut {
        attempt: u32,
        call: TimedOutCall,
    },
}

/// A signal of a handler run.
#[derive(Clone, Debug)]
pub(crate) struct HandlerSignal {
    pub(crate) dispatch: DispatchId,
    pub(crate) name: String,
    pub(crate) payload: Value,
    /// What it occupies of the queue's free bytes, until its last clone is dropped.
    pub(crate) _permit: Arc<OwnedSemaphorePermit>,
}

impl SignalQueue {
    /// An empty queue, and where its signals come out.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Sent>) {
        let (sender, receiver) = mpsc::channel(SIGNAL_QUEUE_MAX);
        let free_bytes = Arc::new(Semaphore::new(SIGNAL_QUEUE_BYTES as usize));
        (Self { sender, free_bytes }, receiver)
    }
}

impl Signals {
    pub(crate) fn new(
        (dispatch, attempt): (DispatchId, u32),
        queue: SignalQueue,
        synthetic: Arc<[String]>,
    ) -> Self {
        Self { dispatch, attempt, queue, synthetic }
    }

    /// Whether the spec lists signals called `name` as synthetic: they show no activity.
    #[must_use]
    pub fn is_synthetic(&self, name: &str) -> bool {
        self.synthetic.iter().any(|one| one == name)
    }

    /// Sends `payload` under `name`, its kind, without waiting. Returns false if the signal is
    /// dropped because too many signals, or too many bytes of them, wait.
    #[must_use = "a dropped signal should be counted"]
    pub fn send(&self, name: impl Into<String>, payload: Value) -> bool {
        let bytes = u32::try_from(occupied_bytes(&payload)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.queue.free_bytes).try_acquire_many_owned(bytes);
        let Ok(permit) = permit else { return false };
        let (dispatch, name) = (self.dispatch, name.into());
        let signal = HandlerSignal { dispatch, name, payload, _permit: Arc::new(permit) };
        self.queue.sender.try_send(Sent::Signal(signal)).is_ok()
    }

    /// Notes, without waiting, that a host call of the handler reached its own time limit `limit`
    /// and took `took`, until `ended`. A session records that at once, so that a crash of the host
    /// does not lose it. The handler's report must contain the call, too: if the queue is full, the
    /// call is recorded with the end of the handler.
    pub fn call_timed_out(
        &self,
        host_call: &str,
        limit: Duration,
        took: Duration,
        ended: WallTime,
    ) {
        let Overrun { threshold_ms, observed_ms, .. } =
            Overrun::once(Limit::HostCallTimeout, limit, took);
        let (dispatch, host_call, since) =
            (self.dispatch, host_call.to_owned(), ended.before(took));
        let call = TimedOutCall { dispatch, host_call, since, threshold_ms, observed_ms };
        // A full queue loses nothing, see above.
        let _ = self.queue.sender.try_send(Sent::CallTimedOut { attempt: self.attempt, call });
    }
}

/// About how many bytes `value` occupies in memory. Maps are trees whose nodes have space for
/// eleven entries.
fn occupied_bytes(value: &Value) -> usize {
    const NODE_BYTES: usize = 11 * (size_of::<String>() + size_of::<Value>());
    let more = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.capacity(),
        Value::Array(values) => {
            let unused = values.capacity().saturating_sub(values.len());
            values.iter().map(occupied_bytes).sum::<usize>() + unused * size_of::<Value>()
        }
        Value::Object(entries) => {
            // All nodes but the root are at least half full.
            let nodes = entries.len().div_ceil(5) * NODE_BYTES;
            let held = entries.iter().map(|(key, value)| key.capacity() + occupied_bytes(value));
            nodes + held.sum::<usize>()
        }
    };
    size_of::<Value>() + more
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_bytes_of_waiting_signals_are_bounded_and_released() {
        let (queue, mut receiver) = SignalQueue::new();
        let of = (DispatchId::from_bytes([7; 16]), 1);
        let signals = Signals::new(of, queue.clone(), Arc::default());
        // As the JSON of 16 KiB that occupies the most.
        let largest = Value::Array(vec![json!({"": 0}); 2300]);
        assert!(occupied_bytes(&largest) > 1 << 20);
        let sent = (0..SIGNAL_QUEUE_MAX).filter(|_| signals.send("progress", largest.clone()));
        let sent = sent.count();
        assert_eq!(sent, SIGNAL_QUEUE_BYTES as usize / occupied_bytes(&largest));
        assert!(sent > 0 && signals.send("progress", json!(1)), "there is space for a small one");
        let first = receiver.try_recv().expect("it waits");
        let clone = first.clone();
        drop(first);
        assert!(!signals.send("progress", largest.clone()), "a clone is left");
        drop(clone);
        assert!(signals.send("progress", largest));
        while receiver.try_recv().is_ok() {}
        assert_eq!(queue.free_bytes.available_permits(), SIGNAL_QUEUE_BYTES as usize);
    }
}
