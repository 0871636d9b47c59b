//! Waiting, in one task and in several.

use std::pin::pin;

use futures_util::StreamExt;
use futures_util::future::{Either, join_all, select};
use futures_util::stream::FuturesUnordered;
use serde_json::{Value, json};
use wasip3::clocks::{monotonic_clock, system_clock};
use wasip3::random::random;

use crate::bindings::sandglass::integration0_1_1::{ask as asks, clock};
use crate::bindings::sandglass::integration0_2_0::{ask, progress, timer};
use crate::{Answer, Config};

/// Sleeps for `ms`.
pub(crate) async fn sleep(config: &Config) -> Answer {
    timer::sleep(config.number("ms", 5)).await;
    Ok(json!({ "slept": true, "left": clock::deadline_remaining_ms() > 0 }))
}

/// Sleeps in `count` tasks, each 1 ms longer than the next one. Returns the order in which they ended.
pub(crate) async fn sleep_many(config: &Config) -> Answer {
    let (count, ms) = (config.number("count", 3), config.number("ms", 1));
    let mut sleeps: FuturesUnordered<_> = (0..count)
        .map(|number| async move {
            timer::sleep(ms + count - number).await;
            number
        })
        .collect();
    let mut order = Vec::new();
    while let Some(number) = sleeps.next().await {
        order.push(number);
    }
    Ok(json!({ "order": order }))
}

/// Goes on with the first of two sleeps, and cancels the other.
pub(crate) async fn first(config: &Config) -> Answer {
    let ms = config.number("ms", 60_000);
    let ended = {
        let short = pin!(timer::sleep(1));
        let long = pin!(timer::sleep(ms));
        match select(short, long).await {
            Either::Left(_) => "short",
            Either::Right(_) => "long",
        }
    };
    Ok(json!({ "ended": ended }))
}

/// Uses the clocks and the randomness of WASI 0.3.
pub(crate) async fn wasi() -> Answer {
    let began = monotonic_clock::now();
    monotonic_clock::wait_for(2_000_000).await;
    monotonic_clock::wait_until(began + 4_000_000).await;
    let waited = monotonic_clock::now() - began;
    let numbers = random::get_random_bytes(4);
    let seconds = system_clock::now().seconds;
    Ok(json!({ "waited": waited >= 4_000_000, "numbers": numbers, "seconds": seconds }))
}

/// Writes lines to the standard output of WASI 0.3, and reads its empty input.
pub(crate) async fn print() -> Answer {
    let (mut writer, reader) = wasip3::wit_stream::new();
    let written = wasip3::cli::stdout::write_via_stream(reader);
    let rest = writer.write_all(b"one\ntwo\nthree".to_vec()).await;
    drop(writer);
    let written = written.await.is_ok();
    let (input, _) = wasip3::cli::stdin::read_via_stream();
    let input = input.collect().await;
    let directories = wasip3::filesystem::preopens::get_directories().len();
    Ok(json!({
        "rest": rest.len(), "written": written, "input": input.len(), "directories": directories,
    }))
}

/// Reports progress.
pub(crate) async fn report() -> Answer {
    progress::set_status("in several tasks".to_owned()).await;
    progress::heartbeat().await;
    progress::emit("{\"kind\":\"halfway\"}".to_owned()).await?;
    let wrong = progress::emit("{".to_owned()).await;
    Ok(json!({ "wrong": wrong.is_err() }))
}

fn request(config: &Config, number: u64) -> asks::Request {
    asks::Request {
        entity_type: config.text("entity_type").to_owned(),
        entity_id: format!("asked-{number}"),
        action: config.text("action").to_owned(),
        params: String::new(),
        until: asks::Until::Settled,
    }
}

/// Cancels an ask, and sleeps for a minute.
pub(crate) async fn cancel_ask(config: &Config) -> Answer {
    let is_cancelled = {
        let asked = pin!(ask::ask(request(config, 0)));
        matches!(select(asked, pin!(timer::sleep(1))).await, Either::Right(_))
    };
    timer::sleep(60_000).await;
    Ok(json!({ "cancelled": is_cancelled }))
}

/// Asks `count` entities at the same time.
pub(crate) async fn ask(config: &Config) -> Answer {
    let asks = (0..config.number("count", 2)).map(|number| ask::ask(request(config, number)));
    let answers: Vec<Value> = join_all(asks)
        .await
        .into_iter()
        .map(|answer| match answer {
            Ok(answer) => json!(answer.state),
            Err(error) => json!({ "error": error.message }),
        })
        .collect();
    Ok(json!({ "answers": answers }))
}
