//! An allocator that counts what is in use.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Asks the system's allocator, and counts.
struct Counting;

static ALLOCATED: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How much is allocated and not freed, in bytes.
pub(crate) fn live_bytes() -> u64 {
    // In this order: what is freed was allocated before.
    let freed = FREED.load(Ordering::SeqCst);
    ALLOCATED.load(Ordering::SeqCst) - freed
}

#[allow(unsafe_code, reason = "the trait of allocators is unsafe")]
// SAFETY: each method passes on what it is given to the system's allocator, which keeps the
// promises of the trait, and its results are returned; counting neither allocates nor panics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: the caller keeps the promises of this method, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATED.fetch_add(size as u64, Ordering::SeqCst);
        FREED.fetch_add(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        FREED.fetch_add(layout.size() as u64, Ordering::SeqCst);
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}
