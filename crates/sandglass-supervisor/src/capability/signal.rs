//! The signals that a handler sends while it runs. A signal is not an action: it changes no state and
//! no sequence.

use std::fmt;

use sandglass_source::json;
use serde_json::Value;

/// Longest status text, in bytes: one line of a status view.
pub const STATUS_MAX_BYTES: u32 = 256;

/// Largest signal, in bytes of JSON. Progress is a note; data goes into the result.
pub const SIGNAL_MAX_BYTES: u32 = 16 * 1024;

/// Most values of a signal's JSON, counted as for [`sandglass_source::json::MAX_VALUES`]. 16 KiB of
/// text can contain objects that occupy more than 1 MiB, and queues, subscribers and the journal
/// keep signals.
pub const SIGNAL_VALUES_MAX: u32 = 1024;

/// Reads the JSON of a guest's progress.
///
/// # Errors
/// It is not valid JSON, or has more than [`SIGNAL_VALUES_MAX`] values.
pub fn progress(text: &str) -> Result<Value, String> {
    let bounds = json::Bounds { max_values: SIGNAL_VALUES_MAX, ..json::Bounds::DEFAULT };
    json::read_within(text, bounds)
        .map_err(|error| format!("the progress is not valid JSON: {error}"))
}

/// A signal of a handler.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// Its progress: any JSON.
    Progress(Value),
    /// It is still at work.
    Heartbeat,
    /// What it is doing, in one line for people.
    Status(String),
}

/// The receiver of a handler's signals. It is called on the guest's thread, so it must not block.
pub trait Signals: Send + Sync + fmt::Debug {
    /// Takes one signal, or drops it and counts that.
    fn signal(&self, signal: Signal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_bounded_in_values_and_an_object_counts_as_eight() {
        let objects = |count: usize| format!("[{}0]", "{\"\":0},".repeat(count));
        assert!(progress("{\"step\": 3, \"of\": 7}").is_ok());
        // The list, its last number, and ten for each object with its key and its number.
        assert!(progress(&objects(102)).is_ok());
        let refused = progress(&objects(103)).expect_err("1,032 values");
        assert!(refused.contains("more than the 1024 values"), "{refused}");
    }
}
