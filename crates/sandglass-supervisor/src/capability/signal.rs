//! The signals that a handler sends while it runs. A signal is not an action: it changes no state and
//! no sequence.

use std::fmt;
use std::time::Duration;

use sandglass_model::id::{ACTIVITY_KINDS, NAME_MAX_BYTES, check_name};
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

/// The kind of progress that states none.
const PROGRESS: &str = "progress";
/// Kinds that progress cannot have, because other signals of a handler have them.
const OTHER_SIGNALS: [&str; 2] = ["heartbeat", "status"];

/// Reads the JSON of a guest's progress. If it is an object, its `kind` is the kind of the signal.
///
/// # Errors
/// It is not valid JSON, has more than [`SIGNAL_VALUES_MAX`] values, or its `kind` is a text that is
/// reserved or no name.
pub fn progress(text: &str) -> Result<Value, String> {
    let bounds = json::Bounds { max_values: SIGNAL_VALUES_MAX, ..json::Bounds::DEFAULT };
    let progress = json::read_within(text, bounds)
        .map_err(|error| format!("the progress is not valid JSON: {error}"))?;
    if let Some(kind) = kind_of(&progress) {
        check_name("kind of progress", kind, NAME_MAX_BYTES).map_err(|error| error.to_string())?;
        if ACTIVITY_KINDS.contains(&kind) || OTHER_SIGNALS.contains(&kind) {
            return Err(format!("the progress has the kind `{kind}`, which is reserved"));
        }
    }
    Ok(progress)
}

fn kind_of(progress: &Value) -> Option<&str> {
    progress.get("kind")?.as_str()
}

/// A signal of a handler.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// Its progress: any JSON. An object may state its kind, see [`Signal::kind`].
    Progress(Value),
    /// It is still at work.
    Heartbeat,
    /// What it is doing, in one line for people.
    Status(String),
}

impl Signal {
    /// Its kind: `heartbeat`, `status`, the `kind` of the progress, or `progress`.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Progress(progress) => kind_of(progress).unwrap_or(PROGRESS),
            Self::Heartbeat => "heartbeat",
            Self::Status(_) => "status",
        }
    }
}

/// The receiver of a handler's signals. It is called on the guest's thread, so it must not block.
pub trait Signals: Send + Sync + fmt::Debug {
    /// Takes one signal, or drops it and counts that.
    fn signal(&self, signal: Signal);

    /// Whether a machine sends signals of this kind by itself, so that they show no activity.
    fn is_synthetic(&self, kind: &str) -> bool {
        let _ = kind;
        false
    }

    /// Notes that a host call of the handler reached its own limit `limit`, and took `took`. The host
    /// sends this; a guest cannot. `host_call` is the name of the call in reports, which count the
    /// call in any case.
    fn call_timed_out(&self, host_call: &str, limit: Duration, took: Duration) {
        let _ = (host_call, limit, took);
    }
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

    #[test]
    fn progress_states_its_kind_unless_that_is_reserved_or_no_name() {
        let kind = |text: &str| progress(text).map(|it| Signal::Progress(it).kind().to_owned());
        assert_eq!(kind(r#"{"kind": "checkpoint"}"#).as_deref(), Ok("checkpoint"));
        for none in ["{}", "3", r#"{"kind": 3}"#, r#""kind""#] {
            assert_eq!(kind(none).as_deref(), Ok("progress"), "{none}");
        }
        for reserved in ACTIVITY_KINDS.into_iter().chain(OTHER_SIGNALS) {
            let refused = kind(&format!(r#"{{"kind": "{reserved}"}}"#)).expect_err("reserved");
            assert!(refused.contains("is reserved"), "{refused}");
        }
        assert!(kind(r#"{"kind": ""}"#).is_err());
    }
}
