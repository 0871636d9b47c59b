//! Gets stuck three functions deep, in its own code or in a host call. The module keeps
//! its names and line tables, so that whoever kills it can say where it was.

use abi::{Answer, Value, json};

abi::guest!(work);

fn work(context: &Value) -> Answer {
    let config = &context["integration_config"];
    match config["url"].as_str() {
        Some(url) => wait_for_prices(url),
        None => Answer::Success(json!({ "prices": count_prices() })),
    }
}

#[inline(never)]
fn wait_for_prices(url: &str) -> Answer {
    match abi::http("GET", url, &[], "") {
        Ok(response) => Answer::Success(json!({ "status": response.status })),
        Err(reason) => Answer::Failure(reason),
    }
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
