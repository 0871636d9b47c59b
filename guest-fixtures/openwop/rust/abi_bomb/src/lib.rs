//! Says that it is of an ABI version that nobody has, and would otherwise do.

use node_pack::{Outcome, Pack, Request, export_pack, json};

const ABI_VERSION_OF_NOBODY: i32 = 99;

export_pack!(
    Pack {
        name: "vendor.openwop.misbehaving.abi-bomb",
        nodes: &[("vendor.openwop.misbehaving.abi-bomb", answer)],
    },
    super::ABI_VERSION_OF_NOBODY
);

fn answer(_request: &Request) -> Result<Outcome, String> {
    Ok(Outcome::Completed(json!({ "ran": true })))
}
