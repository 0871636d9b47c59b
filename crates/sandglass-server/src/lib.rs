//! Runs the two servers of Sandglass: the daemon, and the OpenWOP host.
//!
//! It reads their configuration, wires their parts together, reloads what can change, and shuts them
//! down. It parses no command line, waits for no signal and writes to no terminal: the caller does.
//!
//! ```text
//! options, configuration ──▶ Base: address, TLS, telemetry, host ──▶ journal ──▶ runtime ──▶ HTTP
//! ```

mod base;
mod cluster;
mod config;
mod daemon;
mod deployments;
mod error;
mod findings;
mod folder;
mod journal;
mod limits;
mod mounted;
mod openwop;
mod package;
mod server;
mod tls;

pub use config::{ClusterFiles, check_configuration};
pub use daemon::{DaemonOptions, DaemonServer};
pub use error::Error;
pub use journal::JournalPlace;
pub use openwop::{OpenWopOptions, OpenWopServer};
pub use server::{Report, Server, Stopped};
pub use tls::{PEM_MAX_BYTES, TlsFiles};
