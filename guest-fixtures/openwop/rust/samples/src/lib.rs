//! Nodes that use each import of the ABI, end in each way, and decide for an orchestrator.

mod arithmetic;
mod asking;
mod deciding;
mod endings;
mod observing;
mod state;

use node_pack::{Pack, export_pack};

export_pack!(Pack {
    name: "vendor.sandglass.samples",
    nodes: &[
        ("vendor.sandglass.samples.add", crate::arithmetic::add),
        ("vendor.sandglass.samples.probe", crate::observing::probe),
        ("vendor.sandglass.samples.state", crate::state::state),
        ("vendor.sandglass.samples.ask", crate::asking::ask),
        ("vendor.sandglass.samples.ask_by_response", crate::asking::ask_by_response),
        ("vendor.sandglass.samples.fail", crate::endings::fail),
        ("vendor.sandglass.samples.log", crate::observing::log),
        ("vendor.sandglass.samples.decide", crate::deciding::decide),
        ("vendor.sandglass.samples.effect", crate::state::effect),
        ("vendor.sandglass.samples.spin", crate::endings::spin),
    ],
});

/// Bytes as hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
