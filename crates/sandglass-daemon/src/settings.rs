//! The bounds of the HTTP interface, each with the reason for its size.

use std::time::Duration;

/// Bounds of the HTTP interface. [`Settings::default`] fits one machine whose clients are a few
/// services and some people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Bounds of connections, with and without a key.
    pub connections: sandglass_http::Settings,
    /// Requests that wait for an entity to settle at the same time. Fewer than connections, so that a
    /// client can still cancel what they wait for. One tenant may hold about half of them, and some
    /// are reserved for operators.
    pub max_waiting: usize,
    /// Readers of events at the same time: each may hold a record of the journal and its text.
    /// Shared between tenants like `max_waiting`.
    pub max_subscribers: usize,
    /// Largest JSON body, in bytes: enough for the largest parameters of an action.
    pub max_body_bytes: usize,
    /// Largest module, in bytes: enough for a component that contains an interpreter.
    pub max_module_bytes: usize,
    /// How long a client may take to send a JSON body, or the next piece of a module.
    pub body_timeout: Duration,
    /// How long a request that waits for no handler may take: far longer than a disk needs.
    pub request_timeout: Duration,
    /// The longest wait for an entity to settle; a longer one that a client requests is cut to this.
    pub max_wait: Duration,
    /// How often a silent event stream sends a comment, so that proxies do not close the connection.
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
