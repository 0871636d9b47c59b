//! A program of tasks that a seed determines: sleeps, yields, reports, cancelled waits and streams, in
//! one another. What it returns depends on the order in which they complete.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use futures_util::future::{join, join_all, select};
use serde_json::json;
use wasip3::clocks::monotonic_clock;
use wit_bindgen::yield_async;

use crate::bindings::sandglass::integration0_2_0::{progress, timer};
use crate::bindings::wit_stream;
use crate::{Answer, Config};

/// Levels of tasks in one another.
const DEPTH_MAX: u32 = 3;

/// SplitMix64: the numbers of one task.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

type Log = Rc<RefCell<Vec<String>>>;

/// Executes the program of `seed`.
pub(crate) async fn execute(config: &Config) -> Answer {
    let log = Log::default();
    task(config.number("seed", 0), 0, log.clone()).await;
    let log = log.take();
    Ok(json!({ "steps": log.len(), "log": log }))
}

fn task(seed: u64, depth: u32, log: Log) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        let mut numbers = Numbers(seed);
        for step in 0..1 + numbers.below(4) {
            one_step(&mut numbers, depth, &log).await;
            log.borrow_mut().push(format!("{:x}.{step}", seed & 0xffff));
        }
    })
}

async fn one_step(numbers: &mut Numbers, depth: u32, log: &Log) {
    let kinds = if depth < DEPTH_MAX { 8 } else { 6 };
    match numbers.below(kinds) {
        0 => timer::sleep(numbers.below(4)).await,
        1 => monotonic_clock::wait_for(numbers.below(2_000_000)).await,
        2 => {
            for _ in 0..numbers.below(4) {
                yield_async().await;
            }
        }
        3 => {
            progress::heartbeat().await;
            let number = numbers.below(1000);
            // Progress that is refused is reported as an error, which does not matter here.
            let _ = progress::emit(format!("{{\"number\":{number}}}")).await;
        }
        // One of the two is cancelled.
        4 => {
            let short = std::pin::pin!(timer::sleep(numbers.below(3)));
            let long = std::pin::pin!(monotonic_clock::wait_for(numbers.below(4_000_000)));
            select(short, long).await;
        }
        5 => {
            let (mut writer, reader) = wit_stream::new();
            let bytes = vec![7_u8; 1 + numbers.below(100) as usize];
            let write = async move {
                timer::sleep(1).await;
                writer.write_all(bytes).await.len()
            };
            let (_, read) = join(write, reader.collect()).await;
            log.borrow_mut().push(format!("{} bytes", read.len()));
        }
        6 => {
            let seeds: Vec<u64> = (0..1 + numbers.below(4)).map(|_| numbers.next()).collect();
            join_all(seeds.into_iter().map(|seed| task(seed, depth + 1, log.clone()))).await;
        }
        _ => {
            let tasks = [numbers.next(), numbers.next()];
            let [one, other] = tasks.map(|seed| task(seed, depth + 1, log.clone()));
            select(one, other).await;
        }
    }
}
