//! What every HTTP interface of Sandglass needs and none should write again: bounded
//! connections, bodies that are read within a size, a depth and a time, keys, and how the
//! whole ends. It knows no route, and no shape of errors: what is wrong with a request is
//! a value, and the interface says it in its own words.
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
mod http2;
mod in_flight;
pub mod key;
mod loopback;
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
pub use loopback::{is_loopback_address, is_loopback_host};
pub use same_site::{CrossSite, require_same_site};
pub use serving::{Serving, listen, serve};
pub use settings::{HEAD_MIN_BYTES, Settings};
pub use shared_slots::{Holder, NoSlot, SharedSlots, Slot};
pub use slots::{ConnectionSlot, NoConnection};
pub use target::find_invalid_escape;
pub use tls::{
    Tls, TlsError, TlsSettings, parse_certificates, parse_private_key, parse_root_store,
};
