//! Several hosts that share the entities of one store.
//!
//! - [`tenure`]: the ownership protocol: when this host may begin effects, when another host is
//!   dead, and which partitions this host takes and gives away. Start here.
//! - [`placement`]: which host each partition should be on.
//! - [`routes`]: where requests go.
//!
//! These modules are pure: they do no I/O and read no clock. `tests/tenure` simulates hosts that share
//! a store, with every failure that the protocol has to survive. Around them:
//!
//! - [`Cluster`]: what the process knows, and its way to the other hosts ([`Peers`]).
//! - `member`: the task that beats and carries out the orders of the tenure.
//! - `measure`: what it reports as metrics.

mod cluster;
mod measure;
mod member;
mod peers;
pub mod placement;
pub mod routes;
pub mod tenure;
mod timer;

pub use cluster::{Cluster, ClusterState};
pub use peers::{AcceptsProof, PeerBody, PeerError, PeerKey, Peers};
pub use placement::home;
pub use routes::{Route, Routes};
pub use tenure::{Order, Settings, TTL_MAX, Tenure};
