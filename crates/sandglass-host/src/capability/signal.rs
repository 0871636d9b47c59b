//! What a handler tells while it runs. A signal is no action: it changes no
//! state and no sequence.

use std::fmt;

use serde_json::Value;

/// Longest status text, in bytes: one line of a status view.
pub(crate) const STATUS_MAX_BYTES: u32 = 256;

/// Largest signal, in bytes of JSON. Progress is a note; data goes into the result.
pub(crate) const SIGNAL_MAX_BYTES: u32 = 16 * 1024;

/// One thing that a handler tells.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// How far it has come: any JSON.
    Progress(Value),
    /// That it is still at work.
    Heartbeat,
    /// What it is doing, in a line for people.
    Status(String),
}

/// Who takes what a handler tells. Called on the guest's thread, so it must
/// neither wait nor take long.
pub trait Signals: Send + Sync + fmt::Debug {
    /// Takes one signal, or drops it and counts that.
    fn signal(&self, signal: Signal);
}
