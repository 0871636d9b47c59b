//! The HTTP interface of a runtime: entities, dispatches, events and modules, as
//! JSON, described by the OpenAPI document that it serves. It decides nothing: what it
//! is asked for, the runtime does.
//!
//! ```text
//!  connection ──▶ door ──────────▶ route ──▶ runtime ──▶ journal
//!  (bounded:      (key, or same     │            │           │
//!   head, body,    site; closing)   │            ▼           │
//!   time, places)                   │         handlers       │
//!                                   └── events ◀── feed ◀────┘ (each reader at its own pace)
//! ```

mod access;
mod daemon;
mod error;
mod extract;
mod feed;
mod live;
mod lookup;
mod module_store;
mod modules;
mod openapi;
mod page;
mod reload;
mod route;
mod serving;
mod settings;
mod view;

pub use access::{InvalidKey, KEY_MAX_BYTES, KEY_MIN_BYTES, Key, Keys, Permission};
pub use daemon::{Daemon, Parts};
pub use module_store::StoreError;
pub use modules::{DeclaredModule, Modules};
pub use reload::ReloadError;
pub use serving::{Serving, ShutdownProgress};
pub use settings::Settings;
