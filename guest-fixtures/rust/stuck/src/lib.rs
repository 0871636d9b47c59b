//! Gets stuck three functions deep, in its own code or in a host call. The module keeps
//! its names and line tables, so that whoever kills it can say where it was.

use sandglass_guest::{Context, Failure, handler, http};
use serde::Serialize;

#[derive(Serialize)]
struct Prices {
    prices: u64,
}

#[handler(action = "Finish")]
fn work(context: &Context) -> Result<Prices, Failure> {
    match context.config("url") {
        Some(url) => wait_for_prices(url),
        None => Ok(Prices { prices: count_prices() }),
    }
}

#[inline(never)]
fn wait_for_prices(url: &str) -> Result<Prices, Failure> {
    let response = http::Request::get(url).send()?;
    Ok(Prices { prices: u64::from(response.status()) })
}

/// Looks for an end that isn't there.
#[inline(never)]
fn count_prices() -> u64 {
    let mut count = 0_u64;
    while std::hint::black_box(true) {
        count = next(count);
    }
    count
}

#[inline(never)]
fn next(count: u64) -> u64 {
    std::hint::black_box(count).wrapping_add(1)
}
