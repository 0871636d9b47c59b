//! A load of clients that send one request after the other, and what it measures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::sample::Sample;

const WARM_UP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(5);

/// Requests per second of all clients together, and how long each took. `client` makes what the client of a
/// number repeats.
///
/// # Panics
/// If a client does.
pub(crate) fn round<R: FnMut()>(
    clients: usize,
    client: impl Fn(usize) -> R + Sync,
) -> (f64, Sample) {
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let all: Vec<_> = (0..clients)
            .map(|number| {
                let (is_over, client) = (&is_over, &client);
                threads.spawn(move || {
                    let mut request = client(number);
                    let mut took = Vec::new();
                    let measured = Instant::now() + WARM_UP;
                    while !is_over.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        request();
                        if begun >= measured {
                            took.push(begun.elapsed());
                        }
                    }
                    took
                })
            })
            .collect();
        thread::sleep(WARM_UP + LENGTH);
        is_over.store(true, Ordering::Relaxed);
        let took = all.into_iter().flat_map(|one| one.join().expect("each request succeeds"));
        let took: Vec<_> = took.collect();
        let rate = took.len() as f64 / LENGTH.as_secs_f64();
        let mut sample = Sample::default();
        sample.add(took);
        (rate, sample)
    })
}

/// Prints the median of some rounds, and the range of their rates.
pub(crate) fn print(what: &str, mut rounds: Vec<(f64, Sample)>) {
    rounds.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (least, most) = (rounds[0].0, rounds[rounds.len() - 1].0);
    let (median, sample) = &rounds[rounds.len() / 2];
    println!("{what}: {median:.0}/s ({least:.0} to {most:.0}), {sample}");
}
