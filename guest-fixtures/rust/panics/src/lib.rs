//! Panics three functions deep. The module keeps its names and line tables, so
//! the trap's backtrace says where. It imports nothing: the host places the context.

#![allow(unsafe_code, reason = "the host finds the export by this name")]

/// The host calls this once per dispatch.
#[unsafe(no_mangle)]
pub extern "C" fn run(_context: usize, context_len: usize) -> i32 {
    handle_batch(context_len)
}

#[inline(never)]
fn handle_batch(index: usize) -> i32 {
    let prices = [3, 5, 8];
    price_of_item(&prices, index + prices.len())
}

#[inline(never)]
fn price_of_item(prices: &[i32], index: usize) -> i32 {
    look_up(prices, index) * 2
}

#[inline(never)]
fn look_up(prices: &[i32], index: usize) -> i32 {
    match prices.get(index) {
        Some(price) => *price,
        None => panic!("no item {index} in a batch of {}", prices.len()),
    }
}
