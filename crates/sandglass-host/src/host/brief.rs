//! Handlers that begin on their caller's thread, because the last ones of their module were brief: two
//! changes of threads take longer than such a handler.
//!
//! A module may do something else the next time. So a handler that waits, or whose time slice has
//! ended, continues on the host's threads; at most half of the cores can be occupied in this way; and
//! the memory limit bounds the single instruction that no host can interrupt.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use sandglass_model::{Cause, RunReport};

/// How many handlers of a module in a row were brief before the next one begins on its caller's thread.
const BRIEF_IN_A_ROW: u32 = 16;

/// How many handlers in a row are brief after one whose slice ended, before the next one begins on its
/// caller's thread.
const BRIEF_AFTER_CUT: u32 = 4;

/// The highest memory limit of such a handler, in bytes: the default. Filling it is one instruction, of
/// about 0.1 s.
const MEMORY_MAX_BYTES: u64 = 64 << 20;

/// How often a caller yields before its handler begins on the host's threads.
const YIELDS: usize = 16;

/// How many handlers of a module in a row were brief until now.
#[derive(Debug, Default)]
pub(crate) struct Brief(AtomicU32);

impl Brief {
    /// Notes a handler that has ended; it was brief if it used at most `most` on the CPU.
    pub(crate) fn note(&self, report: &RunReport, most: Duration) {
        if Duration::from_micros(report.cpu_us) > most || report.cause != Cause::Returned {
            self.0.store(0, Ordering::Relaxed);
        } else {
            let more = |in_a_row| (in_a_row < BRIEF_IN_A_ROW).then_some(in_a_row + 1);
            let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// Notes a handler that computes beyond the time slice that began on its caller's thread: the next
    /// handlers begin on the host's threads, also before this one has ended. A few brief handlers
    /// outweigh that, because the slices of all handlers end at the same moments, and so one in a
    /// hundred brief ones is cut by chance.
    pub(super) fn note_slice_over(&self) {
        self.0.fetch_min(BRIEF_IN_A_ROW - BRIEF_AFTER_CUT, Ordering::Relaxed);
    }

    /// Whether the next handler, with this memory limit in bytes, is likely to be brief.
    pub(super) fn is_likely(&self, memory_bytes: u64) -> bool {
        self.0.load(Ordering::Relaxed) >= BRIEF_IN_A_ROW && memory_bytes <= MEMORY_MAX_BYTES
    }
}

/// How many callers' threads execute a guest now.
#[derive(Debug)]
pub(super) struct CallersThreads {
    occupied: AtomicUsize,
    most: usize,
}

impl CallersThreads {
    /// Allows as many as half of the cores.
    pub(super) fn of_this_machine() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Self { occupied: AtomicUsize::new(0), most: cores / 2 }
    }

    /// Occupies the caller's thread until the result is dropped. If too many are occupied, yields to
    /// other tasks, because those handlers will have ended soon; `None` if they have not.
    pub(super) async fn occupy_soon(&self) -> Option<Occupied<'_>> {
        if self.most == 0 {
            return None;
        }
        for _ in 0..YIELDS {
            if let Some(occupied) = self.occupy() {
                return Some(occupied);
            }
            tokio::task::yield_now().await;
        }
        self.occupy()
    }

    fn occupy(&self) -> Option<Occupied<'_>> {
        let more = |occupied| (occupied < self.most).then_some(occupied + 1);
        let change = self.occupied.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        change.ok().map(|_| Occupied(&self.occupied))
    }
}

/// The caller's thread executes a guest.
#[derive(Debug)]
pub(super) struct Occupied<'a>(&'a AtomicUsize);

impl Drop for Occupied<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
