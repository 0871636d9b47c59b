//! Takes memory until it gets no more, and gives up.

use std::hint::black_box;

use node_pack::{Outcome, Pack, Request, export_pack, json};

const PIECE_BYTES: usize = 16 << 20;
/// More than any host should let a node have; whoever gets it completes, and is told so.
const WANTED_BYTES: usize = 1 << 30;

export_pack!(Pack {
    name: "vendor.openwop.misbehaving.memory-bomb",
    nodes: &[("vendor.openwop.misbehaving.memory-bomb", explode)],
});

fn explode(_request: &Request) -> Result<Outcome, String> {
    let mut pieces = Vec::new();
    while pieces.len() * PIECE_BYTES < WANTED_BYTES {
        let mut piece: Vec<u8> = Vec::new();
        if piece.try_reserve_exact(PIECE_BYTES).is_err() {
            std::process::abort();
        }
        pieces.push(black_box(piece));
    }
    Ok(Outcome::Completed(json!({ "gotBytes": WANTED_BYTES })))
}
