//! The bounds of connections, each with the reason for its size.

use std::time::Duration;

/// The least that [`Settings::head_max_bytes`] can be: what hyper reads at once.
pub const HEAD_MIN_BYTES: usize = 8 << 10;

/// Bounds of the connections of an interface. A process needs a descriptor for each
/// connection: `max_connections` + `max_unauthenticated` + `max_reserve` of them, and up to 256 more for
/// connections of other hosts of its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Open connections over which a request was authenticated; at least 1. If one more is
    /// authenticated, an idle one of the same client, or of the client with the most, is closed; if
    /// there is none, the request is refused.
    pub max_connections: usize,
    /// Open connections that are not authenticated; at least 1. If there is one more, the oldest idle
    /// one of the address that has the most is closed.
    pub max_unauthenticated: usize,
    /// Those of them that one address may have (IPv6: of a /64 network); at least 1.
    pub max_unauthenticated_per_address: usize,
    /// Further connections while all unauthenticated ones have a request in flight; at least 1.
    /// They carry one request each, which should be a health check or authenticate.
    pub max_reserve: usize,
    /// How long a client that is not authenticated may take for the TLS handshake, for a request
    /// head, and be idle between two requests.
    pub head_timeout: Duration,
    /// How long an authenticated client may be idle, including the time for the next head.
    pub idle_timeout: Duration,
    /// How long a client may read nothing of a response.
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
            // A client leaves as soon as its key was read, which takes milliseconds.
            max_unauthenticated: 256,
            // A proxy, or a client that opens a pool of 64 at once; half is left to other addresses.
            max_unauthenticated_per_address: 128,
            // Monitors, load balancers and a few people.
            max_reserve: 16,
            head_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            // Two encoded names, a key and what proxies add.
            head_max_bytes: 32 << 10,
            // A client's library and some proxies stay far below.
            headers_max: 64,
        }
    }
}
