//! Counts the allocations of one dispatch and their bytes. An allocation costs some tens of
//! nanoseconds including its release, and more if another thread releases it.
//!
//! ```sh
//! cargo bench -p sandglass-bench --bench allocations
//! ```
//!
//! It is a program of its own because it counts the allocations of all threads of its process.

#![allow(clippy::print_stdout, reason = "the figures are for people")]
#![allow(missing_docs, reason = "it is no library")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_bench::{Repeating, Way};

/// Dispatches before the counted ones: by then, everything that is allocated only once exists.
const WARM_UP: u32 = 2_000;

/// Dispatches that are counted.
const COUNTED: u32 = 10_000;

/// Forwards to the system's allocator, and counts the calls.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(bytes as u64, Ordering::Relaxed);
}

#[allow(unsafe_code, reason = "the trait of allocators is unsafe")]
// SAFETY: each method passes its arguments on to the system's allocator, which upholds the contract
// of the trait, and returns what that returns; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller upholds the contract of this method, which is also that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    println!("{:<32} {:>12} {:>12}", "one dispatch", "allocations", "bytes");
    for way in Way::ALL {
        let repeating = Repeating::new(way)?;
        repeating.dispatch(WARM_UP)?;
        let before = counted();
        repeating.dispatch(COUNTED)?;
        let after = counted();
        let each = |at: usize| (after[at] - before[at]) as f64 / f64::from(COUNTED);
        println!("{:<32} {:>12.1} {:>12.0}", way.name(), each(0), each(1));
    }
    Ok(())
}

fn counted() -> [u64; 2] {
    [&ALLOCATIONS, &BYTES].map(|counter| counter.load(Ordering::Relaxed))
}
