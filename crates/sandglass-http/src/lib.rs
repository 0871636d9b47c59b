//! What the HTTP interfaces of Sandglass share: bounded connections (TLS, HTTP/1.1, HTTP/2) and their
//! shutdown, request bodies with bounds on size, depth and time, API keys, and checks against requests
//! from pages of other sites.
//!
//! It knows no route, no runtime and no format of errors: what is wrong with a request is a value,
//! which each interface renders itself.
//!
//! Start with [`serve`] and the [`ConnectionSlot`] that it attaches to every request. The bodies are in
//! [`body`].
//!
//! ```text
//!  listener ──▶ connection ─────────────▶ guarded ──▶ door, routes, fallbacks: the interface
//!  (slots)      (TLS, head, time to       (panics,         │
//!                take what it is sent)     headers)        ├── key::bearer, key::Digest, same_site
//!                                                          ├── ConnectionSlot::authenticate
//!                                                          └── body::json, body::bytes
//! ```

pub mod body;
mod connection;
mod descriptors;
mod event_stream;
mod guard;
mod hop_by_hop;
mod http2;
pub mod key;
mod loopback;
mod owners;
mod peer_tls;
mod requests;
mod same_site;
mod serving;
mod settings;
mod shared_slots;
mod slots;
mod target;
pub mod timer;
mod tls;

pub use guard::{NoRoute, path_fallback, with_fallbacks, with_guards, with_method_fallback};
pub use hop_by_hop::remove_hop_by_hop;
pub use loopback::{is_loopback_address, is_loopback_host};
pub use owners::{Arrival, ForwardedRequest, NotForwarded, Owners, Serve};
pub use peer_tls::PeerTls;
pub use same_site::{CrossSite, require_same_site};
pub use serving::{Serving, listen, serve};
pub use settings::{HEAD_MIN_BYTES, Settings};
pub use shared_slots::{Holder, NoSlot, SharedSlots, Slot};
pub use slots::{ConnectionSlot, NoConnection};
pub use target::find_invalid_escape;
pub use tls::{
    Tls, TlsError, TlsSettings, parse_certificates, parse_private_key, parse_root_store,
};
