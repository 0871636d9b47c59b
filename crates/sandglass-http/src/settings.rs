//! The bounds of connections, each with the reason for its size.

use std::time::Duration;

/// The least that [`Settings::head_max_bytes`] can be: what hyper reads at once.
pub const HEAD_MIN_BYTES: usize = 8 << 10;

/// How much a served interface takes of its connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Connections that are open at once; at least 1. More wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take for its request head, and be idle between two.
    pub head_timeout: Duration,
    /// How long a client may take no byte of its answer.
    pub write_timeout: Duration,
    /// Largest request head, in bytes; at least [`HEAD_MIN_BYTES`].
    pub head_max_bytes: usize,
    /// Most headers of a request.
    pub headers_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: 256,
            head_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            // Two encoded names, a key and what proxies add.
            head_max_bytes: 32 << 10,
            // A client's library and some proxies stay far below.
            headers_max: 64,
        }
    }
}
