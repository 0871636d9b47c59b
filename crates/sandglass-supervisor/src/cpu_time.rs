//! How long a run was on a CPU.

use std::time::Duration;

use sandglass_model::{Clock, Monotonic};

/// Adds up a run's time on CPUs, poll by poll.
///
/// The first poll counts as long as it took: reading a thread's own clock is a system call
/// (1.4 microseconds where this was measured, and it takes two), and most runs are over
/// after one poll of a few microseconds. A guest that goes on for longer than a slice, or
/// waits, comes to a second one, and from there on the thread's clock counts.
#[derive(Debug)]
pub struct CpuTime {
    /// When the work began, until its first poll is over.
    began: Option<Monotonic>,
    spent: Duration,
}

impl CpuTime {
    /// Of work that begins `now`, on this thread, and is polled as soon as it is prepared.
    pub const fn from(now: Monotonic) -> Self {
        Self { began: Some(now), spent: Duration::ZERO }
    }

    /// Does `work`, and counts it.
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

/// How long this thread has been on a CPU; nothing where the system doesn't say.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the standard library doesn't have this clock")]
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
