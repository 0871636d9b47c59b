//! The OpenWOP host, as its clients see it: the built binary, over HTTP, with the sample
//! workflows and packs; killed and started again where that is the point.

mod binary;
#[path = "openwop/bounds.rs"]
mod bounds;
#[path = "openwop/children.rs"]
mod children;
#[path = "openwop/client.rs"]
mod client;
#[path = "openwop/conformance.rs"]
mod conformance;
#[path = "openwop/crashes.rs"]
mod crashes;
#[path = "openwop/errors.rs"]
mod errors;
#[path = "openwop/events.rs"]
mod events;
#[path = "openwop/forks.rs"]
mod forks;
#[path = "openwop/host.rs"]
mod host;
#[path = "openwop/idempotency.rs"]
mod idempotency;
#[path = "openwop/interrupts.rs"]
mod interrupts;
#[path = "openwop/journal.rs"]
mod journal;
#[path = "openwop/log.rs"]
mod log;
#[path = "openwop/mounted.rs"]
mod mounted;
#[path = "openwop/packs.rs"]
mod packs;
#[path = "openwop/schema.rs"]
mod schema;
