//! The CPU time of a run.

use std::time::Duration;

use sandglass_model::{Clock, Monotonic};

/// Adds up the CPU time of a run, poll by poll.
///
/// The first poll counts with its wall time: reading the CPU clock of a thread is a system call (two of
/// them, of 1.4 microseconds each when measured), and most runs end after one poll of a few
/// microseconds. A guest that runs longer than a slice, or waits, is polled again, and from then on the
/// CPU clock counts.
#[derive(Debug)]
pub struct CpuTime {
    /// When the work began; `None` after its first poll.
    began: Option<Monotonic>,
    spent: Duration,
}

impl CpuTime {
    /// Starts to count work that begins `now` on this thread, and is polled soon.
    pub const fn from(now: Monotonic) -> Self {
        Self { began: Some(now), spent: Duration::ZERO }
    }

    /// Executes `work`, and counts its time.
    pub fn of<T>(&mut self, clock: &dyn Clock, work: impl FnOnce() -> T) -> T {
        let on_thread = if self.began.is_some() { None } else { thread_time() };
        let Some(before) = on_thread else {
            let began = self.began.take().unwrap_or_else(|| clock.now());
            let answer = work();
            self.spent += clock.now().since(began);
            return answer;
        };
        let answer = work();
        self.spent += thread_time().map_or(Duration::ZERO, |now| now.saturating_sub(before));
        answer
    }

    /// The time so far.
    pub const fn total(&self) -> Duration {
        self.spent
    }
}

/// The CPU time of this thread; `None` if the system does not report it.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the standard library does not have this clock")]
fn thread_time() -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a `timespec` that lives across the call, which writes
    // nothing else.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let nanos = u32::try_from(time.tv_nsec).ok()?;
    (answer == 0).then(|| Duration::new(seconds, nanos))
}

#[cfg(not(unix))]
const fn thread_time() -> Option<Duration> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::SystemClock;
    use std::sync::mpsc;

    #[test]
    fn waiting_costs_nothing_from_the_second_poll_on_and_work_counts() {
        let clock = SystemClock::new();
        let mut spent = CpuTime::from(clock.now());
        spent.of(&clock, || ());
        let first = spent.total();
        // Half a second in which this thread does nothing.
        let (_never, nothing) = mpsc::channel::<()>();
        let waited = spent.of(&clock, || nothing.recv_timeout(Duration::from_millis(500)));
        assert!(waited.is_err());
        assert!(spent.total() - first < Duration::from_millis(250), "{spent:?}");
        let before = spent.total();
        let began = clock.now();
        spent.of(&clock, || while clock.now().since(began) < Duration::from_millis(50) {});
        assert!(spent.total() > before, "{spent:?}");
    }
}
