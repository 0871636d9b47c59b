//! Buffers that go between the host and the pack: who owns them, and how a pair of pointer
//! and length becomes one number.
#![allow(unsafe_code, reason = "the host names memory by its address")]

use std::alloc::{self, Layout};

/// Allocates `size` bytes for the host to fill; 0 where there is no room for them.
#[must_use]
pub fn allocate(size: u32) -> u32 {
    match layout_of(size) {
        // SAFETY: the layout has at least one byte.
        Some(layout) => unsafe { alloc::alloc(layout) as u32 },
        None => 0,
    }
}

/// Frees what [`allocate`] or [`give`] gave.
///
/// # Safety
/// `pointer` and `size` are a pair that one of them gave, or one of them is 0, and it wasn't
/// freed before.
pub unsafe fn free(pointer: u32, size: u32) {
    if pointer == 0 || size == 0 {
        return;
    }
    if let Some(layout) = layout_of(size) {
        // SAFETY: the caller says that it was allocated with this size.
        unsafe { alloc::dealloc(pointer as *mut u8, layout) }
    }
}

/// The `len` bytes at `pointer`, which stay the host's. The ABI lets a module free its request
/// or leave it; here it is left, since a host may free it as well.
///
/// # Safety
/// They are bytes that were written, and nobody writes or frees them within `'a`.
#[must_use]
pub unsafe fn borrow<'a>(pointer: u32, len: u32) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller says so.
    unsafe { std::slice::from_raw_parts(pointer as *const u8, len as usize) }
}

/// Gives `bytes` to the host, which frees them.
#[must_use]
pub fn give(bytes: Vec<u8>) -> u64 {
    pair_of(Box::leak(bytes.into_boxed_slice()))
}

/// The pair of `bytes`, packed: the pointer in the low half, the length in the high one.
#[must_use]
pub fn pair_of(bytes: &[u8]) -> u64 {
    (bytes.len() as u64) << 32 | u64::from(bytes.as_ptr() as u32)
}

/// What the host allocated by `openwop_alloc` and filled; none where it answered (0, 0).
pub(crate) fn take(pair: u64) -> Option<Vec<u8>> {
    let (pointer, len) = (pair as u32, (pair >> 32) as u32);
    if pointer == 0 {
        return None;
    }
    // SAFETY: the host wrote these bytes, and hands them over with its answer.
    let bytes = unsafe { borrow(pointer, len) }.to_vec();
    // SAFETY: it allocated them with this length.
    unsafe { free(pointer, len) };
    Some(bytes)
}

fn layout_of(size: u32) -> Option<Layout> {
    Layout::from_size_align(size.max(1) as usize, 1).ok()
}
