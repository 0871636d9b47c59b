//! The HTTP interface of a runtime: entities, dispatches, sessions, events and modules, as JSON, with
//! a live view for browsers and an OpenAPI document of itself.
//!
//! It owns routes, permissions and the shape of requests and responses. It never decides anything
//! about an entity: each request becomes one call of the runtime, and the response shows its result.
//!
//! Start with [`Daemon::router`] (`route/mod.rs`), which lists every route, then read one handler in
//! `route/`. `serving.rs` has the shutdown, `access.rs` the keys.
//!
//! ```text
//!  connection ──▶ door ──────────▶ route ──▶ runtime ──▶ journal
//!  (bounded:      (key, or same     │            │           │
//!   head, body,    site; closing)   │            ▼           │
//!   time, slots)                    │         handlers       │
//!                                   └── events ◀── feed ◀────┘ (each reader at its own pace)
//! ```

mod access;
mod cluster;
mod daemon;
mod error;
mod extract;
mod feed;
mod find;
mod live;
mod module_store;
mod modules;
mod openapi;
mod page;
mod recent_kills;
mod reload;
mod route;
mod serving;
mod settings;
mod view;

pub use access::{InvalidKey, KEY_MAX_BYTES, KEY_MIN_BYTES, Key, Keys, Permission};
pub use cluster::{
    CLUSTER_KEY, Cluster, ClusterKey, Deployment, DeploymentError, Deployments, ExpectedActive,
    FORWARDED_BY, ForwardError, Forwarder, InvalidClusterKey, PRINCIPAL, Peers, Route,
    UploadedModule,
};
pub use daemon::{Daemon, Parts};
pub use module_store::StoreError;
pub use modules::{DeclaredModule, Modules, UploadOrigin};
pub use reload::{PreparedDeployment, ReloadError};
pub use serving::{Serving, ShutdownProgress};
pub use settings::Settings;
