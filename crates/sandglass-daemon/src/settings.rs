//! The bounds of the HTTP interface, each with the reason for its size.

use std::time::Duration;

/// How much the HTTP interface takes. [`Settings::default`] fits one machine whose
/// callers are a few services and some people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What it takes of connections, with and without a key.
    pub connections: sandglass_http::Settings,
    /// Requests that wait at once for an entity to settle. Fewer than connections, so
    /// that a client that wants to cancel what they wait for gets through. A tenant may hold about
    /// half of them, and some are kept for operators.
    pub max_waiting: usize,
    /// Readers of events at once: each may hold a record of the journal and its text. Shared as
    /// `max_waiting` is.
    pub max_subscribers: usize,
    /// Largest JSON body, in bytes: room for the largest parameters of an action.
    pub max_body_bytes: usize,
    /// Largest module, in bytes: room for a component that brings its interpreter.
    pub max_module_bytes: usize,
    /// How long a client may take for a JSON body, or for the next piece of a module.
    pub body_timeout: Duration,
    /// How long anything may take that waits for no handler: far longer than a disk.
    pub request_timeout: Duration,
    /// The longest wait for an entity to settle; who asks for a longer one waits as
    /// long as this.
    pub max_wait: Duration,
    /// How often a reader of events hears something when nothing happens, so that
    /// whatever stands between doesn't take the connection for dead.
    pub keep_alive: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            connections: sandglass_http::Settings::default(),
            max_waiting: 128,
            max_subscribers: 32,
            max_body_bytes: 2 << 20,
            max_module_bytes: 32 << 20,
            body_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            max_wait: Duration::from_secs(600),
            keep_alive: Duration::from_secs(15),
        }
    }
}
