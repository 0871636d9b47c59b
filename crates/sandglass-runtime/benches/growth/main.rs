//! How cost grows with work, over three orders of magnitude: what a dispatch costs with more context, result,
//! host calls and other handlers in flight; what an action costs with more entities and a longer history; and
//! what a start, a page of records and a replay cost with more records. It prints the table of
//! `docs/performance.md`, and asserts nothing about time.
//!
//! ```sh
//! cargo bench --workspace --bench growth                     # all of it, some minutes
//! cargo bench --workspace --bench growth -- host             # or runtime, records
//! ```
//!
//! The last column is by which power of the work its cost grows in the last step: 0.0 if it is constant, 1.0
//! if it is linear.

#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "the figures are for people")]
#![allow(clippy::cast_precision_loss, reason = "no count here needs 53 bits")]
#![allow(missing_docs, reason = "it is no library")]

#[path = "../journal/history.rs"]
#[allow(dead_code, reason = "the benchmark of the journal uses the rest")]
mod history;
mod host;
mod records;
#[path = "../journal/replaying.rs"]
#[allow(dead_code, reason = "the benchmark of the journal uses the rest")]
mod replaying;
mod runtime;
#[path = "../journal/timing.rs"]
mod timing;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use timing::Quantiles;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often something that takes little is repeated; the median is printed.
const REPEATED: usize = 101;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    // On a disk: the usual temporary folder may be memory.
    let folder = std::env::var_os("SANDGLASS_BENCH_FOLDER").map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let folder = tempfile::tempdir_in(folder).expect("a folder on a disk");
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(2).enable_all().build().expect("threads");
    if is_wanted("host") {
        threads.block_on(host::run());
    }
    if is_wanted("runtime") {
        threads.block_on(runtime::run(folder.path()));
    }
    if is_wanted("records") {
        threads.block_on(records::run(folder.path()));
    }
}

/// What something costs with each amount of work.
pub(crate) struct Growth {
    what: String,
    costs: Vec<(u64, Duration)>,
}

impl Growth {
    pub(crate) fn of(what: impl Into<String>) -> Self {
        Self { what: what.into(), costs: Vec::new() }
    }

    pub(crate) fn add(&mut self, work: u64, cost: Duration) {
        self.costs.push((work, cost));
    }

    /// Prints a row: the cost with each amount of work, and the power by which it grows in the last step.
    pub(crate) fn print(&self) {
        let cells: Vec<String> =
            self.costs.iter().map(|(work, cost)| format!("{work}: {}", short(*cost))).collect();
        let power = match self.costs[..] {
            [.., (less, before), (more, after)] => {
                let grown = after.as_secs_f64() / before.as_secs_f64();
                format!("{:.1}", grown.log10() / (more as f64 / less as f64).log10())
            }
            _ => "-".to_owned(),
        };
        println!("| {} | {} | {power} |", self.what, cells.join(" | "));
    }
}

fn short(cost: Duration) -> String {
    match cost.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.1} s"),
        seconds if seconds >= 1e-3 => format!("{:.1} ms", seconds * 1e3),
        seconds => format!("{:.1} us", seconds * 1e6),
    }
}

/// The median time that `each` takes.
pub(crate) async fn repeat<F: Future>(mut each: impl FnMut() -> F) -> Duration {
    let mut all = Vec::with_capacity(REPEATED);
    for _ in 0..REPEATED {
        let begun = Instant::now();
        each().await;
        all.push(begun.elapsed());
    }
    Quantiles::of(all).p50
}
