//! What the limits of sessions cost: finding what is due, a signal, the memory of one, and how
//! long a cancel takes in the middle of a host call. Each has a plain baseline in the same run; it
//! asserts nothing about time.
//!
//! ```sh
//! cargo bench --workspace --bench sessions               # some ten seconds
//! cargo bench --workspace --bench sessions -- cancel     # or pure
//! ```

#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "the figures are for people")]
#![allow(missing_docs, reason = "it is no library")]

mod cancel;
mod pure;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    if is_wanted("pure") {
        pure::run();
    }
    if is_wanted("cancel") {
        let mut threads = tokio::runtime::Builder::new_multi_thread();
        let threads = threads.worker_threads(2).enable_all().build().expect("threads");
        threads.block_on(cancel::run());
    }
}
