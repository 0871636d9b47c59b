//! Measures an OpenWOP host on this machine: runs of workflows, and readers of their events. The
//! host is `sandglass openwop` in a process of its own, so that its memory can be measured
//! separately, and nothing but the shipped program is measured. Its clients execute on one thread
//! of this process, and use the same cores.
//!
//! ```text
//! running, reading, slowing, holding ──▶ client, events ──HTTP──▶ server: `sandglass openwop`
//!                                                                         │ journal, full sync
//! appending: the same batches alone ──▶ a journal of this process         ▼
//! ```

mod appending;
mod client;
mod events;
mod holding;
mod reading;
mod running;
mod server;
mod slowing;
mod waiting;
mod workflows;

pub(crate) use holding::memory;
pub(crate) use reading::readers;
pub(crate) use running::runs;
pub(crate) use slowing::slow_readers;
