//! What the journal costs, and how fast it is read: dispatches through a real runtime
//! against a plain baseline in the same run, replay, and recovery. It prints the tables of
//! `docs/performance.md`, and asserts nothing about time.
//!
//! ```sh
//! cargo bench --workspace --bench journal                # all of it, some two minutes
//! cargo bench --workspace --bench journal -- dispatch    # or guest, replay, recovery
//! ```
//!
//! It has a main function of its own: each figure is one long run with its quantiles,
//! beside a baseline, which is nothing that a bench harness repeats.

#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "the figures are for people")]
#![allow(missing_docs, reason = "it is no library")]

mod baseline;
mod dispatching;
mod history;
mod machine;
mod recovery;
mod replaying;
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
    machine::print(folder.path());
    if is_wanted("dispatch") {
        threads.block_on(dispatching::run(folder.path()));
    }
    if is_wanted("guest") {
        threads.block_on(dispatching::run_with_a_guest(folder.path()));
    }
    let path = folder.path().join("history.db");
    if is_wanted("replay") || is_wanted("recovery") {
        threads.block_on(history::write(&path, history::ENTITIES));
    }
    if is_wanted("replay") {
        replaying::run(&path);
    }
    if is_wanted("recovery") {
        threads.block_on(recovery::run(&path));
    }
}
