//! The bounds of the HTTP interface, each with the reason for its size.

use std::time::Duration;

/// How much the HTTP interface takes. [`Settings::default`] fits one machine whose
/// callers are a few services and some people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Connections that are open at once and authenticated; at least 1. If there is one more,
    /// an idle one of the same client, or of the client with the most, is closed; if there is none,
    /// the request is refused.
    pub max_connections: usize,
    /// Connections that are open at once and not authenticated; at least 1. If there is one
    /// more, the oldest idle one of the address that has the most is closed.
    pub max_unauthenticated: usize,
    /// Of those, connections of a single address (IPv6: of a /64 network); at least 1.
    pub max_unauthenticated_per_address: usize,
    /// Connections for health checks while all those are busy; at least 1.
    pub max_reserve: usize,
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
    /// How long a client that is not authenticated may take for its TLS handshake, for its
    /// request head, and be idle between two.
    pub head_timeout: Duration,
    /// How long an authenticated client may be idle, including the time for the next head.
    pub idle_timeout: Duration,
    /// How long it may take for a JSON body, or for the next piece of a module.
    pub body_timeout: Duration,
    /// How long a client may take no byte of its answer.
    pub write_timeout: Duration,
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
        let sandglass_http::Settings {
            max_connections,
            max_unauthenticated,
            max_unauthenticated_per_address,
            max_reserve,
            ..
        } = sandglass_http::Settings::default();
        Self {
            max_connections,
            max_unauthenticated,
            max_unauthenticated_per_address,
            max_reserve,
            max_waiting: 128,
            max_subscribers: 32,
            max_body_bytes: 2 << 20,
            max_module_bytes: 32 << 20,
            head_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            request_timeout: Duration::from_secs(30),
            max_wait: Duration::from_secs(600),
            keep_alive: Duration::from_secs(15),
        }
    }
}

impl Settings {
    /// What of it bounds connections.
    pub(crate) fn connections(&self) -> sandglass_http::Settings {
        sandglass_http::Settings {
            max_connections: self.max_connections,
            max_unauthenticated: self.max_unauthenticated,
            max_unauthenticated_per_address: self.max_unauthenticated_per_address,
            max_reserve: self.max_reserve,
            head_timeout: self.head_timeout,
            idle_timeout: self.idle_timeout,
            write_timeout: self.write_timeout,
            ..sandglass_http::Settings::default()
        }
    }
}
