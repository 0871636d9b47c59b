//! How cost grows with work, over three orders of magnitude: what a dispatch costs with more context, result,
//! host calls and other handlers in flight; what an action costs with more entities and a longer history; and
//! what a start, a page of records and a replay cost with more records. Workflows and readers are in the
//! benchmark of this name in `sandglass-openwop`. It prints the table of
//! `docs/performance.md`, and asserts nothing about time.
//!
//! ```sh
//! cargo bench --workspace --bench growth                          # all of it, some minutes
//! cargo bench -p sandglass-runtime --bench growth -- host         # or runtime, records
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
mod table;
#[path = "../journal/timing.rs"]
mod timing;

use std::path::PathBuf;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
